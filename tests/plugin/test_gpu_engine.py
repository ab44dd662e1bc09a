"""A real engine of TensorRT for RTX on a real GPU: runs and agrees, or is refused in its words.

TensorRT for RTX refuses the data-centre cards it does not support when an engine is loaded; there
the words of the refusal are what is tested.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import patched
from nonzero_plugin.engine import BuildOptions, Engine, build_engine, run_engine
from nonzero_plugin.errors import EngineLoadError
from onnx import TensorProto
from onnx.inliner import inline_local_functions

pytestmark = [pytest.mark.gpu, pytest.mark.rtx]


def build(model: onnx.ModelProto, folder: Path, **settings: Any) -> Path:
    engine = folder / "m.engine"
    options = BuildOptions(trt="tensorrt_rtx", **settings)
    build_engine(patched.save(model, folder / "m.onnx"), engine, options)
    return engine


def load(path: Path) -> Engine | None:
    """The engine, or None after its refusal was seen to say what it must."""
    try:
        return Engine(path)
    except EngineLoadError as error:
        text = str(error)
        assert "cannot run on this GPU" in text and "ompute capabilit" in text, text
        return None


def test_a_built_engine_runs_with_true_shapes(tmp_path: Path) -> None:
    engine = load(build(patched.single(TensorProto.FLOAT, ["n", 8], perm=[1, 0]), tmp_path))
    if engine is None:
        return
    x = np.zeros((8, 8), np.float32)
    x[[0, 2, 7], [3, 2, 0]] = [1, np.nan, 1e-42]
    with engine.create_context() as context:
        for array in (x, np.zeros_like(x), np.ones((100, 8), np.float32), x):
            indices = context.run({"x": array})["indices"]
            np.testing.assert_array_equal(indices, np.argwhere(array != 0))


def test_contexts_at_once_and_timing(tmp_path: Path) -> None:
    engine = load(build(patched.gather_nd(), tmp_path))
    if engine is None:
        return
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((500, 4)).astype(np.float32),
        "mask": rng.random(500) < 0.3,
    }
    result = run_engine(engine, feeds, contexts=3, repeat=20)
    np.testing.assert_array_equal(result.outputs["y"], feeds["x"][feeds["mask"]])
    assert result.timing is not None and result.timing.device > 0


def test_verify_original_against_engine(tmp_path: Path) -> None:
    from nonzero_rewrite.verify_engine import verify_engine

    engine = load(build(patched.gather_nd(), tmp_path))
    if engine is None:
        return
    result = verify_engine(inline_local_functions(patched.gather_nd()), engine)
    assert result.ok, result


def test_max_nonzero_cuts_and_is_seen(tmp_path: Path) -> None:
    engine = load(build(patched.single(TensorProto.BOOL, ["n"]), tmp_path, max_nonzero={"*": 5}))
    if engine is None:
        return
    result = run_engine(engine, {"x": np.ones(50, bool)})
    assert result.truncated and result.outputs["indices"].tolist() == [[0, 1, 2, 3, 4]]
    assert not run_engine(engine, {"x": np.arange(50) < 3}).truncated


UNREGISTERED = """
    import sys
    from nonzero_plugin._tensorrt import load_tensorrt
    trt = load_tensorrt("tensorrt_rtx")
    from nonzero_plugin.plan_file import explain_load_failure
    from nonzero_plugin.execute import _collecting_logger
    logger, messages = _collecting_logger(trt)
    plan = open(sys.argv[1], "rb").read()
    assert trt.Runtime(logger).deserialize_cuda_engine(plan) is None
    print(explain_load_failure("m.engine", "tensorrt_rtx", messages, plan, trt))
"""


def test_b30_a_new_process_without_registering_is_told_the_call(tmp_path: Path) -> None:
    path = build(patched.single(), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(UNREGISTERED), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "NonZeroPlugin, version 1, namespace 'nonzero_rewrite'" in done.stdout
    assert "nonzero_plugin.register()" in done.stdout
