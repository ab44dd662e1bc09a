"""The commands build, run and doctor: arguments, exit codes, streams."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from helpers import patched
from nonzero_plugin.engine import BuildOptions
from nonzero_plugin.errors import CudaError
from onnx import TensorProto, helper

from nonzero_rewrite.cli import main
from nonzero_rewrite.cli.engine_options import build_options


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return patched.save(patched.single(), tmp_path / "m.onnx")


def test_every_option_reaches_the_builder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Path, Path, BuildOptions]] = []

    def build_engine(model: Path, engine: Path, options: BuildOptions, show: Any) -> Any:
        seen.append((model, engine, options))
        raise SystemExit(0)

    monkeypatch.setattr("nonzero_plugin.engine.build_engine", build_engine)
    arguments = """--trt tensorrt --profile x=1x4:2x4:3x4;y=5 --trt-min-shapes x:[1,4]
        --trt-opt-shapes x:[2,4] --trt-max-shapes x:[9,4] --workspace 2G --timing-cache t.cache
        --optimization-level 4 --version-compatible --hardware-compatible --compute-capability
        8.9,12.0 --compute-capability 8.6 --fp16 --bf16 --set-max-nonzero 9 --set-max-nonzero
        a/b=c=7 --unpatched --backend torch --verbose"""
    invoke("build", model, "-o", tmp_path / "e", "--original", model, *arguments.split())
    ((_, engine, options),) = seen
    assert engine == tmp_path / "e" and options.command.startswith("nonzero-rewrite")
    expected = BuildOptions(
        trt="tensorrt",
        profiles=("x=1x4:2x4:3x4;y=5", "x=1x4:2x4:9x4"),
        workspace=2 << 30,
        timing_cache=Path("t.cache"),
        optimization_level=4,
        version_compatible=True,
        hardware_compatible=True,
        compute_capabilities=("8.9", "12.0", "8.6"),
        fp16=True,
        bf16=True,
        max_nonzero={"*": 9, "a/b=c": 7},
        unpatched=True,
        backend="torch",
        original=model,
        command=options.command,
        verbose=True,
    )
    assert options == expected


def test_without_options_everything_is_tensorrt_s_default(model: Path) -> None:
    options = build_options()
    assert options == BuildOptions(command=options.command)


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--workspace", "4X"], "'4X' is not a size such as", 2),
        (["--optimization-level", "9"], "9 is not in the range", 2),
        (["--set-max-nonzero", "many"], "'many' is not N or NODE=N", 2),
        (["--trt", "trt"], "'trt' is not one of", 2),
        (["--profile", "x"], "is not NAME=MIN:OPT:MAX", 1),
        (["--trt-min-shapes", "x=1"], "is not NAME:[D0,D1,...]", 1),
        (["-o", "no/such/folder/e"], "its folder no/such/folder does not exist", 1),
    ],
)
def test_wrong_arguments(model: Path, arguments: list[str], says: str, code: int) -> None:
    result = invoke("build", model, *arguments)
    assert result.exit_code == code and says in result.stderr and not result.stdout
    assert "Traceback" not in result.output


@pytest.mark.rtx
def test_build_tells_what_it_assumed_and_where_everything_is(model: Path, tmp_path: Path) -> None:
    result = invoke("build", model, "--trt", "tensorrt_rtx")
    assert result.exit_code == 0, result.output
    engine = tmp_path / "m.engine"
    assert engine.is_file() and str(engine) in result.stdout and "nz" in result.stdout
    assert "assumed 1x4:128x4:1024x4" in result.stderr and "--profile" in result.stderr
    sidecar = json.loads((tmp_path / "m.engine.json").read_text())
    assert sidecar["command"].startswith("nonzero-rewrite")


@pytest.mark.rtx
def test_json_is_alone_on_stdout_also_when_the_build_fails(tmp_path: Path) -> None:
    bad = patched.make_model(
        [
            patched.plugin_node("x", "i", perm=[1, 0]),
            helper.make_node("ScatterND", ["x", "i", "u"], ["y"], name="adds", reduction="add"),
        ],
        [("x", TensorProto.FLOAT, ["n", 4]), ("u", TensorProto.FLOAT, ["k"])],
        [("y", TensorProto.FLOAT, ["n", 4])],
        opset=18,
    )
    path = patched.save(bad, tmp_path / "bad.onnx")
    result = invoke("build", path, "--trt", "tensorrt_rtx", "--json")
    assert result.exit_code == 4
    account = json.loads(result.stdout)
    assert account["built"] is False and account["node"] == "adds" and account["messages"]
    assert "scatters only overwrite" in account["error"]
    assert "descends from NonZero 'nz'" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["bad.onnx"]


@pytest.mark.rtx
def test_unpatched_says_what_is_lost(tmp_path: Path) -> None:
    plain = helper.make_model(
        helper.make_graph(
            [helper.make_node("NonZero", ["x"], ["y"])],
            "plain",
            [helper.make_tensor_value_info("x", TensorProto.BOOL, ["n"])],
            [helper.make_tensor_value_info("y", TensorProto.INT64, [1, None])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(plain, tmp_path / "m.onnx")
    result = invoke("build", tmp_path / "m.onnx", "--trt", "tensorrt_rtx", "--unpatched")
    assert result.exit_code == 0, result.output
    for part in ("Transpose", "not shared", "no count"):
        assert part in result.stderr
    result = invoke("build", tmp_path / "m.onnx", "--trt", "tensorrt_rtx")
    assert result.exit_code == 4 and "--unpatched" in result.stderr


def test_run_without_a_gpu_says_exactly_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require_device(self: Any) -> int:
        raise CudaError("cudaGetDeviceCount", 100, "cudaErrorNoDevice", "no CUDA-capable device")

    monkeypatch.setattr("nonzero_plugin.cudart.Cuda.require_device", require_device)
    (tmp_path / "m.engine").write_bytes(b"engine")
    result = invoke("run", tmp_path / "m.engine", "--inputs", tmp_path / "x.npz")
    assert result.exit_code == 1 and not result.stdout and "Traceback" not in result.output
    assert "needs an NVIDIA GPU" in result.stderr and "no CUDA-capable device" in result.stderr
    result = invoke(
        "verify", patched.save(patched.single(), tmp_path / "m.onnx"), tmp_path / "m.engine"
    )
    assert result.exit_code == 1 and "no CUDA-capable device" in result.stderr


def test_run_on_a_missing_engine(tmp_path: Path) -> None:
    result = invoke("run", tmp_path / "none.engine")
    assert result.exit_code == 1 and "none.engine: cannot be read" in result.stderr


def test_run_prints_and_writes_what_the_engine_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from helpers.fake_runtime import FakeCuda, make_fake_runtime
    from nonzero_plugin import execute

    runtime = make_fake_runtime()
    monkeypatch.setattr(execute, "Cuda", FakeCuda)
    monkeypatch.setattr(execute, "choose_runtime", lambda path, trt: runtime)
    engine, given, written = (tmp_path / name for name in ("m.engine", "x.npz", "y.npz"))
    engine.write_bytes(b"engine")
    x = np.eye(8, dtype=np.float32)
    np.savez(given, i0=x)
    result = invoke("run", engine, "--inputs", given, "-o", written, "--repeat", 3)
    assert result.exit_code == 0, result.output
    assert "indices: int64 [8, 2]" in result.stdout and "median of 3 runs" in result.stdout
    with np.load(written) as outputs:
        np.testing.assert_array_equal(outputs["indices"], np.argwhere(x))
    account = json.loads(invoke("run", engine, "--inputs", given, "--json").stdout)
    assert account["outputs"] == {"indices": {"shape": [8, 2], "dtype": "int64"}}
    result = invoke("run", engine)
    assert result.exit_code == 2 and "the engine has inputs 'x'" in result.stderr
    np.savez(given, z=x)
    result = invoke("run", engine, "--inputs", given)
    assert result.exit_code == 1 and "has no input 'z'" in result.stderr


@pytest.mark.rtx
def test_doctor_on_an_engine_and_its_sidecar(model: Path, tmp_path: Path) -> None:
    assert invoke("build", model, "--trt", "tensorrt_rtx").exit_code == 0
    engine = tmp_path / "m.engine"
    account = json.loads(invoke("doctor", engine, "--trt", "tensorrt_rtx", "--json").stdout)
    target = account["target"]
    assert target["kind"] == "engine" and target["sidecar_fits"] is True
    assert [need["plugin"] for need in target["needs"]] == [
        ["NonZeroPlugin", "1", "nonzero_rewrite"]
    ]
    assert target["needs"][0]["registered"] is True
    text = invoke("doctor", engine, "--trt", "tensorrt_rtx").stdout
    assert "registered, exact match" in text and "built by tensorrt_rtx" in text
    engine.write_bytes(engine.read_bytes() + b"more")
    account = json.loads(invoke("doctor", engine, "--trt", "tensorrt_rtx", "--json").stdout)
    assert any("is not the engine its sidecar describes" in text for text in account["problems"])


def test_doctor_survives_whatever_is_broken(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "tensorrt.py").write_text("import os; os.abort()")
    (tmp_path / "onnxruntime.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = invoke("doctor", "--trt", "tensorrt", "--json")
    assert result.exit_code == 0
    account = json.loads(result.stdout)
    assert "the process ended with" in account["tensorrt"]["error"]
    assert "broken" in account["onnxruntime"]["error"]
    assert any(text.startswith("engines cannot be built") for text in account["problems"])
    result = invoke("doctor", tmp_path / "none.onnx", "--trt", "tensorrt")
    assert result.exit_code == 1 and "none.onnx: there is no such file" in result.stdout


def test_help_of_each_command_is_quick_and_imports_no_library() -> None:
    for name in ("build", "run", "doctor"):
        started = time.perf_counter()
        code = (
            "import sys\nfrom nonzero_rewrite.cli import main\n"
            "try:\n    main()\nexcept SystemExit:\n    pass\n"
            "print({'onnx', 'numpy', 'tensorrt_rtx', 'cuda'} & set(sys.modules))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, name, "--help"], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip().endswith("set()"), done.stdout
        assert time.perf_counter() - started < 5


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_for_terminals(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nonzero_plugin.engine import BuildEvent

    from nonzero_rewrite.cli.build import build_progress

    monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
    monkeypatch.setenv("TTY_INTERACTIVE", "1" if terminal else "0")
    monkeypatch.setenv("TERM", "xterm")
    with build_progress() as show:
        show(BuildEvent("stage", {"name": "build"}))
        show(BuildEvent("progress", {"phase": "Building", "parent": None, "step": 0, "steps": 3}))
        show(BuildEvent("progress", {"phase": "Inner", "parent": "Building", "steps": 1}))
        show(BuildEvent("progress", {"phase": "Building", "step": 2}))
        show(BuildEvent("progress", {"phase": "Building", "done": True}))
        show(BuildEvent("progress", {"phase": "never started", "step": 1}))
        show(BuildEvent("log", {"severity": "WARNING", "text": "kept for the result"}))
        show(BuildEvent("stage", {"name": "write"}))
    printed = capsys.readouterr()
    assert not printed.out and "kept for the result" not in printed.err
    assert ("TensorRT: write" in printed.err) is terminal


@pytest.mark.rtx
def test_what_the_rewriter_leaves_at_the_top_is_served_where_it_stands(tmp_path: Path) -> None:
    """TensorRT for RTX has no NonZero of its own, so a build after a rewrite brings one."""
    engine = tmp_path / "out.engine"
    result = invoke(
        Path(__file__).parents[2] / "models" / "yolo_score_head.onnx",
        *("-o", str(tmp_path / "out.onnx"), "--skip", "/NonZero_1", "--build", str(engine)),
    )
    assert result.exit_code == 0, result.stderr
    assert engine.exists()
    assert "1 NonZero that were left alone are served where they stand" in result.stdout
