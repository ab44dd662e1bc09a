"""Cases people ran into when they built, ran or loaded engines with NonZero, by their id.

Each goes from the model as exporters write it through the command line to a real engine of TensorRT
for RTX. What needs a GPU is in ``tests/plugin/test_gpu_engine.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from nonzero_rewrite.cli import main

FLOAT, BOOL, INT32, INT64 = (
    TensorProto.FLOAT,
    TensorProto.BOOL,
    TensorProto.INT32,
    TensorProto.INT64,
)


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, Sequence[Any]]],
    outputs: Sequence[tuple[str, int, Sequence[Any]]],
    constants: dict[str, Any] | None = None,
) -> onnx.ModelProto:
    made = helper.make_model(
        helper.make_graph(
            list(nodes),
            "case",
            [helper.make_tensor_value_info(*item) for item in inputs],
            [helper.make_tensor_value_info(*item) for item in outputs],
            [numpy_helper.from_array(np.array(v), k) for k, v in (constants or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(made, full_check=True)
    return made


def node(op_type: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> Any:
    return helper.make_node(
        op_type, inputs.split(), outputs.split(), name=name or op_type, **attributes
    )


def rewrite(made: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(made, folder / "original.onnx")
    result = invoke(folder / "original.onnx", "-o", folder / "patched.onnx")
    assert result.exit_code == 0, result.output
    return folder / "patched.onnx"


def build(made: onnx.ModelProto, folder: Path, *options: str) -> dict[str, Any]:
    patched = rewrite(made, folder)
    engine = folder / "m.engine"
    result = invoke("build", patched, "-o", engine, "--trt", "tensorrt_rtx", "--json", *options)
    assert result.exit_code == 0, result.output
    assert engine.is_file()
    account: dict[str, Any] = json.loads(result.stdout)
    return account


@pytest.mark.rtx
def test_b01_nonzero_to_gather_builds(tmp_path: Path) -> None:
    made = model(
        [node("NonZero", "x", "i", "/decoder/NonZero"), node("Gather", "i row", "y", axis=0)],
        [("x", FLOAT, [4, 5])],
        [("y", INT64, [None])],
        {"row": np.int64(1)},
    )
    account = build(made, tmp_path)
    assert account["plugin_nodes"] and account["profiles"] == ["x=4x5"]


@pytest.mark.rtx
def test_b03_nms_stays_a_blocker_and_the_build_says_which_node(tmp_path: Path) -> None:
    made = model(
        [
            node("NonZero", "mask", "i", "nz"),
            node("NonMaxSuppression", "boxes scores n", "selected", "head/nms"),
            node("Gather", "selected two", "column", axis=1),
            node("Squeeze", "column one", "kept"),
        ],
        [("boxes", FLOAT, [1, 9, 4]), ("scores", FLOAT, [1, 1, 9]), ("mask", BOOL, [9])],
        [("kept", INT64, [None]), ("i", INT64, [1, None])],
        {"two": [2], "one": [1], "n": [3]},
    )
    patched = rewrite(made, tmp_path)
    result = invoke("build", patched, "-o", tmp_path / "m.engine", "--trt", "tensorrt_rtx")
    assert result.exit_code == 4, result.output
    assert "at node 'head/nms' (NonMaxSuppression)" in result.stderr
    assert "select boxes outside the engine" in result.stderr
    assert patched.is_file() and not (tmp_path / "m.engine").exists()


@pytest.mark.rtx
def test_b06_int32_of_unknown_length(tmp_path: Path) -> None:
    made = model([node("NonZero", "x", "i")], [("x", INT32, ["n"])], [("i", INT64, [1, None])])
    account = build(made, tmp_path, "--profile", "x=1:7:1000")
    assert account["profiles"] == ["x=1:7:1000"] and not account["notes"]


@pytest.mark.rtx
@pytest.mark.parametrize("transposed", [False, True])
def test_b11_reshape_behind_nonzero(tmp_path: Path, transposed: bool) -> None:
    nodes = [node("NonZero", "x", "i"), node("Reshape", "i shape", "y")]
    shape, dims = [-1], [None]
    if transposed:
        nodes[1:] = [node("Transpose", "i", "t"), node("Reshape", "t shape", "y")]
        shape, dims = [-1, 1], [None, 1]
    made = model(nodes, [("x", FLOAT, [4, 4])], [("y", INT64, dims)], {"shape": shape})
    build(made, tmp_path)


@pytest.mark.rtx
@pytest.mark.parametrize(("dims", "result"), [(["n", 4], [None]), (["n"], [None, 4])])
def test_b12_a_bool_input_as_mask(tmp_path: Path, dims: list[Any], result: list[Any]) -> None:
    made = model(
        [
            node("NonZero", "mask", "i"),
            node("Transpose", "i", "t", perm=[1, 0]),
            node("GatherND", "x t", "y"),
        ],
        [("x", FLOAT, ["n", 4]), ("mask", BOOL, dims)],
        [("y", FLOAT, result)],
    )
    build(made, tmp_path)


@pytest.mark.rtx
def test_b14_asking_for_a_cuda_graph_is_refused_by_name(tmp_path: Path) -> None:
    made = model(
        [node("NonZero", "x", "i", "/head/nz")], [("x", FLOAT, [4, 4])], [("i", INT64, [2, None])]
    )
    build(made, tmp_path)
    result = invoke("run", tmp_path / "m.engine", "--cuda-graph")
    assert result.exit_code == 1 and "'/head/nz'" in result.stderr
    assert "cannot be captured in a CUDA graph" in result.stderr


@pytest.mark.rtx
def test_b16_a_fully_static_model(tmp_path: Path) -> None:
    made = model([node("NonZero", "x", "i")], [("x", FLOAT, [5, 6])], [("i", INT64, [2, None])])
    account = build(made, tmp_path)
    assert account["profiles"] == ["x=5x6"] and not account["notes"]


def test_b18_b46_without_tensorrt_there_is_a_hint_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt.py").write_text("__version__ = '8.6.1'")  # before IPluginV3
    monkeypatch.syspath_prepend(str(tmp_path))
    onnx.save(
        model([node("Relu", "x", "y")], [("x", FLOAT, [1])], [("y", FLOAT, [1])]),
        tmp_path / "m.onnx",
    )
    result = invoke("build", tmp_path / "m.onnx", "--trt", "tensorrt")
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert "tensorrt 8.6.1 has no IPluginV3" in result.stderr
    assert "TensorRT 10.3 or newer" in result.stderr
    (tmp_path / "tensorrt.py").write_text("raise ImportError('libnvinfer.so.10: not found')")
    result = invoke("build", tmp_path / "m.onnx", "--trt", "tensorrt")
    assert result.exit_code == 1 and "libnvinfer.so.10: not found" in result.stderr
    assert "NVIDIA's package index" in result.stderr


@pytest.mark.rtx
def test_b29_indices_are_int64_for_everything_behind_them(tmp_path: Path) -> None:
    made = model(
        [
            node("NonZero", "mask", "i"),
            node("Transpose", "i", "t", perm=[1, 0]),
            node("Squeeze", "t one", "s"),
            node("Add", "s ten", "added"),
            node("Max", "s ten", "most"),
            node("Concat", "s pair", "both", axis=0),
            node("Identity", "s", "plain"),
        ],
        [("mask", BOOL, ["n"])],
        [(name, INT64, [None]) for name in ("added", "most", "both", "plain")],
        {"one": [1], "ten": np.int64(10), "pair": [1, 2]},
    )
    build(made, tmp_path)


@pytest.mark.rtx
def test_b31_node_and_creator_that_differ(tmp_path: Path) -> None:
    made = model(
        [node("NonZero", "x", "i", "nz")], [("x", FLOAT, [4, 4])], [("i", INT64, [2, None])]
    )
    patched = rewrite(made, tmp_path)
    changed = onnx.load(patched)
    for attribute in changed.graph.node[0].attribute:
        if attribute.name == "plugin_version":
            attribute.s = b"2"
    onnx.save(changed, patched)
    result = invoke("build", patched, "--trt", "tensorrt_rtx")
    assert result.exit_code == 4
    assert "asks for plugin NonZeroPlugin, version 2" in result.stderr
    assert "registered is NonZeroPlugin, version 1" in result.stderr
    account = json.loads(invoke("doctor", patched, "--trt", "tensorrt_rtx", "--json").stdout)
    (need,) = account["target"]["needs"]
    assert need["registered"] is False and "(version differs)" in need["why"]
    assert any("version differs" in problem for problem in account["problems"])


@pytest.mark.rtx
def test_b32_the_end_of_build_says_what_loads_the_engine(tmp_path: Path) -> None:
    made = model([node("NonZero", "x", "i")], [("x", FLOAT, [4, 4])], [("i", INT64, [2, None])])
    patched = rewrite(made, tmp_path)
    result = invoke("build", patched, "--trt", "tensorrt_rtx")
    assert result.exit_code == 0
    assert "needs Python and this package" in result.stdout and "trtexec" in result.stdout
    assert "nonzero_plugin.register()" in result.stdout


@pytest.mark.rtx
def test_b43_the_count_as_a_slice_bound(tmp_path: Path) -> None:
    """masked_scatter: the first num_nonzero rows of the source replace the masked items."""
    made = model(
        [
            node("NonZero", "mask", "i"),
            node("Transpose", "i", "t", perm=[1, 0]),
            node("Shape", "t", "extents"),
            node("Gather", "extents zero", "n"),
            node("Slice", "source zero n zero", "part"),
            node("ScatterND", "x t part", "y"),
        ],
        [("x", FLOAT, ["a", 8]), ("mask", BOOL, ["a", 8]), ("source", FLOAT, ["k"])],
        [("y", FLOAT, ["a", 8])],
        {"zero": [0]},
    )
    build(made, tmp_path)


@pytest.mark.rtx
def test_b46_doctor_tells_what_was_really_loaded(tmp_path: Path) -> None:
    account = json.loads(invoke("doctor", "--trt", "tensorrt_rtx", "--json").stdout)
    trt = account["tensorrt"]
    assert trt["flavour"] == "tensorrt_rtx" and trt["version"].startswith("1.")
    assert any("libtensorrt_rtx" in path or "tensorrt_rtx_1" in path for path in trt["libraries"])
    assert any("parser" in path for path in trt["libraries"])
    assert ["NonZeroPlugin", "1", "nonzero_rewrite"] in trt["registry"]
    assert account["onnxruntime"]["providers"] and account["packages"]["polygraphy"]
    assert set(account["backends"]) == {"cuda_python", "cupy", "torch"}
    text = invoke("doctor", "--trt", "tensorrt_rtx").stdout
    for part in ("TensorRT: tensorrt_rtx 1.", "CUDA", "NVRTC", "providers", "nonzero_rewrite"):
        assert part in text
