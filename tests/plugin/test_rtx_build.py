"""Real engines by the real builder of TensorRT for RTX, on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import patched
from nonzero_plugin.build import _BOOT, BuildEvent, BuildOptions, build_engine
from nonzero_plugin.errors import EngineBuildError
from nonzero_plugin.plan_file import plugin_triples
from nonzero_plugin.registry import OURS
from nonzero_plugin.sidecar import read_sidecar, sha256_of
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model

from nonzero_rewrite import Options, rewrite_model
from nonzero_rewrite.rules import DEFAULT_RULES

pytestmark = pytest.mark.rtx

RTX = BuildOptions(trt="tensorrt_rtx")


def rtx(**settings: Any) -> BuildOptions:
    return BuildOptions(trt="tensorrt_rtx", **settings)


def build(model: onnx.ModelProto, folder: Path, options: BuildOptions = RTX) -> Any:
    return build_engine(patched.save(model, folder / "m.onnx"), folder / "m.engine", options)


@pytest.mark.parametrize("perm", [[0, 1], [1, 0]])
@pytest.mark.parametrize(
    ("element", "rank"),
    [
        (TensorProto.FLOAT, 1),
        (TensorProto.FLOAT, 8),
        (TensorProto.FLOAT16, 2),
        (TensorProto.BFLOAT16, 3),
        (TensorProto.INT8, 4),
        (TensorProto.INT32, 5),
        (TensorProto.INT64, 2),
        (TensorProto.BOOL, 1),
        (TensorProto.BOOL, 6),
    ],
)
def test_types_ranks_and_layouts_build(
    tmp_path: Path, element: int, rank: int, perm: list[int]
) -> None:
    shape = ["n", *[2] * (rank - 1)]
    result = build(patched.single(element, shape, perm=perm), tmp_path)
    assert result.engine_bytes == (tmp_path / "m.engine").stat().st_size > 1000
    assert result.plugin_nodes == ("nz",)
    assert plugin_triples((tmp_path / "m.engine").read_bytes()) == [OURS]


def test_b16_static_models_get_a_profile(tmp_path: Path) -> None:
    result = build(patched.single(shape=[5, 6]), tmp_path)
    assert result.profiles == ("x=5x6",) and not result.notes


def test_the_result_is_described_beside_the_engine(tmp_path: Path) -> None:
    original = patched.save(patched.single(function=True), tmp_path / "original.onnx")
    options = rtx(
        profiles=("x=1x4:10x4:100x4", "x=100x4:1000x4:9999x4"),
        workspace=1 << 30,
        optimization_level=2,
        compute_capabilities=("8.9", "sm_120"),
        max_nonzero={"nz": 50},
        original=original,
        command="the command",
        timing_cache=tmp_path / "t.cache",
    )
    result = build(patched.single(), tmp_path, options)
    assert result.profiles == options.profiles
    assert result.compute_capabilities == ("SM89", "SM120")
    sidecar = read_sidecar(tmp_path / "m.engine")
    assert sidecar is not None
    assert sidecar["engine"]["sha256"] == sha256_of(tmp_path / "m.engine")
    assert sidecar["model"]["sha256"] == sha256_of(tmp_path / "m.onnx")
    assert sidecar["original"]["file"] == "original.onnx"
    assert sidecar["plugin"] == {
        "name": "NonZeroPlugin",
        "version": "1",
        "namespace": "nonzero_rewrite",
        "fields_format": 1,
        "nodes": ["nz"],
    }
    assert sidecar["tensorrt"] == {"flavour": "tensorrt_rtx", "version": result.version}
    assert sidecar["max_nonzero"] == {"nz": 50} and sidecar["command"] == "the command"
    assert (tmp_path / "t.cache").stat().st_size
    names = {"m.onnx", "m.engine", "m.engine.json", "original.onnx", "t.cache"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_timing_cache_that_is_none_is_replaced(tmp_path: Path) -> None:
    cache = tmp_path / "t.cache"
    cache.write_bytes(b"no cache at all")
    build(patched.single(), tmp_path, rtx(timing_cache=cache))
    assert cache.read_bytes() != b"no cache at all"


def test_max_nonzero_bounds_what_comes_behind(tmp_path: Path) -> None:
    """The bound is in the engine: a smaller promise makes another engine."""
    model = patched.gather_nd()
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    events: list[BuildEvent] = []
    path = patched.save(model, tmp_path / "m.onnx")
    build_engine(path, tmp_path / "a.engine", rtx(verbose=True), events.append)
    free = "\n".join(event.data.get("text", "") for event in events)
    events.clear()
    build_engine(
        path, tmp_path / "b.engine", rtx(verbose=True, max_nonzero={"*": 100}), events.append
    )
    capped = "\n".join(event.data.get("text", "") for event in events)
    assert "[0,1024]" in free and "[0,100]" in capped and "[0,100]" not in free


def test_unpatched_models_build_into_the_same_kind_of_engine(tmp_path: Path) -> None:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("NonZero", ["x"], ["y"], name="nz")],
            "unpatched",
            [helper.make_tensor_value_info("x", TensorProto.BOOL, ["n", 4])],
            [helper.make_tensor_value_info("y", TensorProto.INT64, [2, None])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with pytest.raises(EngineBuildError, match="rewrite it with nonzero-rewrite first"):
        build(model, tmp_path)
    result = build(model, tmp_path, rtx(unpatched=True))
    assert result.plugin_nodes == ("nz",)
    assert plugin_triples((tmp_path / "m.engine").read_bytes()) == [OURS]


def test_b39_external_data_is_found_beside_the_model(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")
    model = patched.make_model(
        [helper.make_node("Mul", ["x", "w"], ["s"]), patched.plugin_node("s", "indices")],
        [("x", TensorProto.FLOAT, ["n", 4])],
        [("indices", TensorProto.INT64, [2, None])],
        initializers=[weight],
    )
    folder = tmp_path / "models"
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (folder / "weights.bin").stat().st_size
    build_engine(path, tmp_path / "a.engine", RTX)
    build_engine(path, tmp_path / "b.engine", rtx(max_nonzero={"*": 9}))  # edited in memory
    (folder / "weights.bin").unlink()
    with pytest.raises(EngineBuildError, match=r"m\.onnx"):
        build_engine(path, tmp_path / "c.engine", RTX)


def test_b31_the_near_miss_is_shown_before_parsing(tmp_path: Path) -> None:
    for attribute, value in (("plugin_version", "2"), ("plugin_namespace", "other")):
        with pytest.raises(EngineBuildError) as caught:
            build(patched.single(**{attribute: value}), tmp_path)
        text = str(caught.value)
        assert "node 'nz' asks for plugin NonZeroPlugin, version" in text and value in text
        assert "registered is NonZeroPlugin, version 1, namespace 'nonzero_rewrite'" in text
        assert f"({attribute.removeprefix('plugin_')} differs)" in text
        assert caught.value.node == "nz" and caught.value.phase == "parse"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fp16": True}, "--fp16 does not exist.*convert the model first"),
        ({"bf16": True}, "--bf16 does not exist"),
        ({"version_compatible": True}, "lean runtime"),
        ({"hardware_compatible": True}, "--compute-capability"),
        ({"compute_capabilities": ("9.0",)}, "'9.0'; it knows 7.5, 8.0, .*12.0.* and current"),
        ({"profiles": ("y=1x4",)}, "no input 'y'; its inputs are 'x'"),
        ({"profiles": ("x=1x5:2x5:3x5",)}, "the network fixes it at 4"),
        ({"max_nonzero": {"other": 3}}, "no NonZeroPlugin node 'other'"),
        ({"trt": "tensorrt"}, "tensorrt cannot be imported"),
    ],
)
def test_options_that_cannot_be_had_are_refused(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(EngineBuildError, match=says):
        build(patched.single(), tmp_path, BuildOptions(**{"trt": "tensorrt_rtx", **options}))
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_a_missing_backend_package_is_named_at_build_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "path"
    broken.mkdir()
    (broken / "cupy.py").write_text("raise ImportError('no cupy here')")
    monkeypatch.syspath_prepend(str(broken))
    with pytest.raises(EngineBuildError, match=r"node 'nz'.*package cupy.*nonzero-rewrite\[cuda"):
        build(patched.single(backend="cupy"), tmp_path)


def if_model() -> onnx.ModelProto:
    """NonZero in a branch and one outside: TensorRT for RTX 1.7.1 ends the process on it."""
    branch = helper.make_graph(
        [patched.plugin_node("x", "inner", name="nz_in")],
        "then",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.INT64, [2, None])],
    )
    other = helper.make_graph(
        [patched.plugin_node("x", "outer", name="nz_else")],
        "else",
        [],
        [helper.make_tensor_value_info("outer", TensorProto.INT64, [2, None])],
    )
    choose = helper.make_node(
        "If", ["c"], ["y"], name="choose", then_branch=branch, else_branch=other
    )
    return patched.make_model(
        [choose, patched.plugin_node("x", "z", name="nz_out")],
        [("x", TensorProto.FLOAT, ["n", 4]), ("c", TensorProto.BOOL, [])],
        [("y", TensorProto.INT64, [2, None]), ("z", TensorProto.INT64, [2, None])],
    )


def test_an_end_of_the_library_s_process_is_an_error_that_says_where(tmp_path: Path) -> None:
    engine = tmp_path / "m.engine"
    engine.write_bytes(b"an older engine")
    with pytest.raises(EngineBuildError) as caught:
        build(if_model(), tmp_path)
    assert caught.value.phase in ("abort", "build") and caught.value.node in ("nz_in", "nz_else")
    assert "stands in choose." in str(caught.value) and caught.value.messages
    assert engine.read_bytes() == b"an older engine"
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "m.engine"}


def test_models_that_are_none(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    for content in (b"", b"\x00\x01garbage", b"\x08\x08"):
        bad.write_bytes(content)
        with pytest.raises(EngineBuildError, match=r"not an ONNX model|holds no ONNX graph"):
            build_engine(bad, tmp_path / "m.engine", RTX)
    with pytest.raises(EngineBuildError, match="no such file"):
        build_engine(tmp_path / "none.onnx", tmp_path / "m.engine", RTX)
    with pytest.raises(EngineBuildError, match=r"its folder .* does not exist"):
        build_engine(bad, tmp_path / "none" / "m.engine", RTX)
    with pytest.raises(EngineBuildError, match="is an input of this command"):
        build_engine(bad, bad, RTX)


def test_files_that_cannot_be_written_are_an_error_not_a_crash(tmp_path: Path) -> None:
    cache = tmp_path / "none" / "t.cache"
    with pytest.raises(EngineBuildError, match=r"t\.cache: cannot be written: its fol") as caught:
        build(patched.single(), tmp_path, rtx(timing_cache=cache))
    assert caught.value.phase == "write"
    (tmp_path / "e.engine").mkdir()
    path = tmp_path / "m.onnx"
    with pytest.raises(EngineBuildError, match=r"e\.engine: is a folder; name a file in it"):
        build_engine(path, tmp_path / "e.engine", RTX)
    assert {found.name for found in tmp_path.iterdir()} == {"m.onnx", "e.engine"}


def test_names_with_spaces_and_other_letters(tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "mödel 模型 'a'"
    folder.mkdir()
    patched.save(patched.single(), folder / "m 1.onnx")
    monkeypatch.chdir(folder)
    result = build_engine("m 1.onnx", "e 1.engine", RTX)
    assert result.engine == Path("e 1.engine") and (folder / "e 1.engine").is_file()


def test_progress_tells_stages_and_phases(tmp_path: Path) -> None:
    events: list[BuildEvent] = []
    path = patched.save(patched.single(), tmp_path / "m.onnx")
    build_engine(path, tmp_path / "m.engine", RTX, events.append)
    stages = [event.data["name"] for event in events if event.kind == "stage"]
    assert stages == ["import", "parse", "build", "write"]
    phases = [event.data for event in events if event.kind == "progress"]
    assert any(data["phase"] == "Building engine" and data.get("steps") for data in phases)
    assert not any(event.kind == "log" for event in events)  # nothing to warn about


INTERRUPTED = """
    import sys, time
    from nonzero_plugin.build import BuildOptions, build_engine

    def show(event):
        if event.kind == "stage" and event.data["name"] == "build":
            print("building", flush=True)
            time.sleep(60)

    build_engine(sys.argv[1], sys.argv[2], BuildOptions(trt="tensorrt_rtx"), show)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    path = patched.save(patched.single(), tmp_path / "m.onnx")
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(path), str(tmp_path / "m.engine")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "building"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in said
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.skipif(sys.platform == "win32", reason="uses a FIFO")
def test_the_child_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    never = tmp_path / "never.onnx"
    os.mkfifo(never)  # reading it waits for ever
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    places = {"engine": str(tmp_path / "e"), "temporary": str(tmp_path / ".e.tmp")}
    request = {"model": str(never), **places, "options": RTX.to_dict()}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    assert any("parse" in line for line in iter(process.stdout.readline, ""))
    time.sleep(0.2)
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(timeout=30) == 130
    process.stdout.close()


def test_the_plan_holds_the_node_s_settings(tmp_path: Path) -> None:
    """TensorRT copies borrowed arrays late; what it copied is looked for in the plan's bytes."""
    build(patched.single(TensorProto.BOOL, ["n", 3], perm=[1, 0], index_type=7), tmp_path)
    plan = (tmp_path / "m.engine").read_bytes()
    for name, data in (
        (b"format_version", np.array([1], np.int32)),
        (b"perm", np.array([1, 0], np.int32)),
        (b"index_type", np.array([7], np.int32)),
        (b"max_nonzero", np.array([0], np.int64)),
        (b"input_type", np.array([TensorProto.BOOL], np.int32)),
    ):
        assert data.tobytes() in plan[plan.index(name) : plan.index(name) + 120], name
    assert b"cuda_python\0" in plan and b"nonzero-rewrite " in plan


@pytest.mark.parametrize(
    ("rule", "x", "expand", "size"),
    [
        (
            "size-from-indices",
            "float[n] x, float[q] w, bool[q] m",
            "s = Shape(x) c = Expand(m, s)",
            "e = Expand(h, k)",
        ),
        (
            "rows",
            "float[n,4] x, float[n,4] w, bool[n] m",
            "f = Unsqueeze(m, minus) s = Shape(x) c = Expand(f, s)",
            "r = Concat <axis = 0> (k, four) e = Expand(h, r)",
        ),
    ],
)
def test_a_masked_write_of_torch_export_builds_by_a_rule(
    tmp_path: Path, rule: str, x: str, expand: str, size: str
) -> None:
    """x[mask] = exp(w[mask]), whose size torch.export takes from ReduceSum(mask)."""
    text = f"""<ir_version: 8, opset_import: ["": 18]> g ({x}) => ({x.split(" ", maxsplit=1)[0]} y)
      <int64[1] minus = {{-1}}, int64[1] four = {{4}}> {{
        i = NonZero(m) t = Transpose <perm = [1, 0]> (i) p = GatherND(w, t)
        h = Exp(p) {expand} j = NonZero(c) u = Transpose <perm = [1, 0]> (j)
        flat = Reshape(m, minus) ones = Cast <to = 7> (flat) k = ReduceSum(ones) {size}
        v = Reshape(e, minus) y = ScatterND(x, u, v) }}"""
    without = Options(rules=DEFAULT_RULES - {rule})
    with pytest.raises(EngineBuildError, match="convertExplicitDDSPluginToImplicit"):
        build(rewrite_model(parse_model(text), without).model, tmp_path)
    assert build(rewrite_model(parse_model(text)).model, tmp_path).engine_bytes
