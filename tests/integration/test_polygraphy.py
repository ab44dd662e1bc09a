"""Polygraphy's own commands, on original and patched models."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.manifest import MODELS, entries, path_of
from helpers.polygraphy_command import polygraphy

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.densities import inputs_of_density
from nonzero_rewrite.polygraphy_gate import holds_plugin, needs_plugin

MOE = MODELS / "moe_block.onnx"
SHAPES = [
    *("--trt-min-shapes", "hidden:[1,1,16]"),
    *("--trt-opt-shapes", "hidden:[2,7,16]"),
    *("--trt-max-shapes", "hidden:[4,9,16]"),
]
# TensorRT for RTX 1.7 has no RoiAlign and no ScatterND with a reduction; `scan` says so.
NOT_BUILT_BY_RTX = {"fasterrcnn": "RoiAlign", "pillar_scatter": "reduction"}


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("patched") / "patched.onnx"
    onnx.save(rewrite_model(MOE).model, path)
    return path


# NumPy's and Polygraphy's own: statistics of outputs without items, a name that will go.
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value encountered")
@pytest.mark.filterwarnings("ignore:CompareFunc.simple:DeprecationWarning")
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["name"])
def test_its_comparator_finds_no_difference_in_onnxruntime(entry: dict[str, Any]) -> None:
    from polygraphy.backend.onnx import BytesFromOnnx, OnnxFromPath
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator, CompareFunc

    from nonzero_rewrite.polygraphy_loaders import RewriteNonZero

    original = OnnxFromPath(str(path_of(entry)))
    runners = [
        OnnxrtRunner(SessionFromOnnx(BytesFromOnnx(loader)), name=name)
        for name, loader in (("original", original), ("patched", RewriteNonZero(original)))
    ]
    inputs = inputs_of_density(path_of(entry), (0.0, 0.3, 1.0), time_budget=1.0)
    results = Comparator.run(runners, data_loader=[dict(found.feeds) for found in inputs])
    exact = CompareFunc.simple(atol=0, rtol=0, check_error_stat="elemwise")
    assert [len(iterations) for _, iterations in results.items()] == [len(inputs)] * 2
    assert bool(Comparator.compare_accuracy(results, compare_func=exact))


@pytest.mark.rtx
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["name"])
def test_trt_nonzero_builds_an_rtx_engine(entry: dict[str, Any], tmp_path: Path) -> None:
    sizes = [f"{name}:{size}".replace(" ", "") for name, size in entry["sizes"].items()]
    shapes = [w for bound in ("min", "opt", "max") for w in (f"--trt-{bound}-shapes", *sizes)]
    done = polygraphy(
        *("run", path_of(entry), "--trt-nonzero", *shapes, "--save-engine", "x.engine"),
        folder=tmp_path,
    )
    reason = NOT_BUILT_BY_RTX.get(entry["name"])
    if reason:
        assert reason in done.stdout
        assert not (tmp_path / "x.engine").exists()
        return
    assert "Finished engine building" in done.stdout, done.stdout
    plugins = rewrite_model(path_of(entry)).plan.count("plugin")
    assert holds_plugin(tmp_path / "x.engine") == bool(plugins)
    # Without an RTX GPU the engine cannot be loaded; a GPU it was built for runs it.
    assert done.returncode == 0 or "deserialize" in done.stdout, done.stdout


@pytest.mark.rtx
def test_the_generated_script_compares_both(tmp_path: Path) -> None:
    done = polygraphy(
        *("run", MOE, "--onnxrt", "--trt-nonzero", *SHAPES, "--nonzero-max", "60"),
        *("/NonZero_1:50", "--nonzero-backend", "cuda_python", "--nonzero-rules", "+where-sum"),
        *("--onnx-flags", "native_instancenorm", "--trt-outputs", "*", "--gen-script", "x.py"),
        *("--save-engine", "x.engine"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    text = (tmp_path / "x.py").read_text("utf-8")
    assert "max_nonzero=60, max_nonzero_of=[('/NonZero_1', 50)]" in text
    assert "OnnxrtRunner" in text
    assert "NATIVE_INSTANCENORM" in text
    code = f"import os; os.environ['POLYGRAPHY_USE_TENSORRT_RTX'] = '1'\n{text}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert holds_plugin(tmp_path / "x.engine"), done.stderr


@pytest.mark.rtx
@pytest.mark.parametrize(
    "command", ["convert", "run", "capability", "without extension", "data loader"]
)
def test_patched_models_in_stock_commands(command: str, patched: Path, tmp_path: Path) -> None:
    if command == "convert":
        done = polygraphy("convert", patched, *SHAPES, "-o", "x.engine", folder=tmp_path)
    elif command == "run":
        save = ("--save-engine", "x.engine")
        done = polygraphy("run", patched, "--trt", *SHAPES, *save, folder=tmp_path)
    elif command == "capability":
        done = polygraphy("inspect", "capability", patched, folder=tmp_path)
        assert "fully supported" in done.stdout, done.stdout
        return
    elif command == "without extension":
        refused = polygraphy(
            *("convert", patched, *SHAPES, "-o", "x.engine"), folder=tmp_path, extension=False
        )
        assert "NonZero plugin creator version 1 was not found" in refused.stdout
        ours = ("convert", patched, "-o", "x.engine", "--trt-config-script", script("trt_config"))
        settings = {"NONZERO_PROFILE": "hidden=1x1x16:2x7x16:4x9x16"}
        libraries = script("rtx_libraries")
        if libraries:  # a wheel for Linux
            done = polygraphy(*ours, folder=tmp_path, extension=False, **settings)
            assert f"start this command with LD_LIBRARY_PATH={libraries}" in done.stdout
            assert done.returncode == 1
            settings["LD_LIBRARY_PATH"] = libraries
        done = polygraphy(*ours, folder=tmp_path, extension=False, **settings)
    else:
        done = polygraphy(
            *("run", patched, "--onnxrt", "--data-loader-script", script("data_loader")),
            folder=tmp_path,
            NONZERO_DENSITIES="0,1",
        )
        assert done.returncode == 0, done.stdout
        assert "inputs of density 1: NonZero nodes select" in done.stdout
        return
    assert "Finished engine building" in done.stdout, done.stdout
    assert holds_plugin(tmp_path / "x.engine")


def script(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "nonzero_rewrite.scripts", name],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--nonzero-max", "many"), "--nonzero-max: 'many' is neither N nor NODE:N"),
        (("--nonzero-rules", "magic"), "unknown rule 'magic'"),
        (("--nonzero-max", "nobody:3"), "no NonZero is called 'nobody'"),
    ],
)
def test_what_a_user_can_fix_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    done = polygraphy("run", MOE, "--trt-nonzero", *arguments, folder=tmp_path)
    assert done.returncode == 1
    assert f"[!] {sentence}" in done.stdout
    assert "Traceback" not in done.stdout


def test_an_engine_is_for_trt(tmp_path: Path) -> None:
    (tmp_path / "x.engine").write_bytes(b"")
    done = polygraphy("run", "x.engine", "--trt-nonzero", folder=tmp_path)
    assert done.returncode == 1
    assert "[!] --trt-nonzero rewrites ONNX models, and this is of type engine" in done.stdout


def test_a_missing_tensorrt_is_one_sentence(patched: Path, tmp_path: Path) -> None:
    (tmp_path / "tensorrt.py").write_text("raise ImportError('not here')\n")
    done = polygraphy(
        *("convert", patched, "-o", "x.engine"),
        folder=tmp_path,
        rtx=False,
        PYTHONPATH=path_with(tmp_path),
    )
    lines = [line for line in done.stdout.splitlines() if "NonZeroPlugin is not registered" in line]
    assert len(lines) == 1, done.stdout
    assert "pip install" in lines[0]
    assert "Failed to load plugin" not in done.stdout


def path_with(folder: Path) -> str:
    import os

    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt") is not None, reason="tensorrt is installed"
)
def test_trt_nonzero_without_tensorrt_says_what_to_do(tmp_path: Path) -> None:
    done = polygraphy("run", MOE, "--trt-nonzero", folder=tmp_path, rtx=False)
    lines = [line for line in done.stdout.splitlines() if "tensorrt is not installed" in line]
    assert len(lines) == 1, done.stdout
    if importlib.util.find_spec("tensorrt_rtx"):
        assert "set POLYGRAPHY_USE_TENSORRT_RTX=1" in lines[0]


def test_other_commands_import_nothing_heavy(patched: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from polygraphy.tools._main import main\n"
        "sys.argv[1:] = sys.argv[1].split('|')\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sorted({m.partition('.')[0] for m in sys.modules}),"
        " *(m for m in sys.modules if m.startswith('nonzero')))"
    )
    heavy = {"tensorrt", "tensorrt_rtx", "onnx", "numpy", "onnxruntime", "cuda", "click", "rich"}
    for arguments in (["-h"], ["run", "-h"], ["inspect", "-h"]):
        done = subprocess.run(
            [sys.executable, "-c", code, "|".join(arguments)],
            capture_output=True,
            text=True,
            check=True,
        )
        loaded = set(done.stdout.rpartition("LOADED")[2].split())
        assert "nonzero_rewrite.polygraphy_ext" in loaded
        assert not loaded & heavy
        assert not loaded & {"nonzero_plugin.registry", "nonzero_rewrite.rewrite"}


def test_which_commands_need_the_plugin(patched: Path) -> None:
    model, original = str(patched), str(MOE)
    for needing in (
        ["run", model, "--trt", "--onnxrt"],
        ["-v", "convert", model, "-o", "x.engine"],
        ["inspect", "capability", model],
        ["debug", "precision", model],
    ):
        assert needs_plugin(needing), needing
        assert not needs_plugin([original if word == model else word for word in needing])
    for other in (
        [],
        ["-h"],
        ["run", model, "--onnxrt"],
        ["run", model, "--trt-nonzero"],
        ["inspect", "model", model],
        ["surgeon", "sanitize", model],
        ["convert", "missing.onnx", "-o", "x.engine"],
    ):
        assert not needs_plugin(other), other


def test_a_file_that_is_no_model_needs_no_plugin(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    data = rewrite_model(MOE).model.SerializeToString()
    for text in (b"", b"\xff" * 40, data[: len(data) // 2], b"nonzero_rewrite"):
        path.write_bytes(text)
        assert not holds_plugin(path)
    path.write_bytes(data)
    assert holds_plugin(path)
    for name in ("x.engine", "x.bin"):
        other = tmp_path / name
        other.write_bytes(b"")
        assert not holds_plugin(other)
        other.write_bytes(b"\xffplan\0NonZeroPlugin\0")
        assert holds_plugin(other)
    other.write_bytes(data)  # a model by another name
    assert needs_plugin(["run", str(other), "--trt", "--model-type", "onnx"])


@pytest.mark.parametrize("name", ["moe_block", "early_exit", "keypoints"])
def test_plugin_match_and_replace(name: str, tmp_path: Path, assert_parity: Any) -> None:
    model = MODELS / f"{name}.onnx"
    where = ("--plugin-dir", MODELS.parent / "plugin")
    done = polygraphy("plugin", "list", model, *where, folder=tmp_path)
    assert "{'nonzero_plugin': " in done.stdout, done.stdout
    polygraphy("plugin", "match", model, *where, "-o", "found.yaml", folder=tmp_path)
    done = polygraphy(
        *("plugin", "replace", model, *where, "--config", "found.yaml", "-o", "x.onnx"),
        folder=tmp_path,
    )
    assert "instances of nonzero_plugin" in done.stdout
    assert "not all instances" not in done.stdout
    replaced = onnx.load(tmp_path / "x.onnx")
    onnx.checker.check_model(replaced, full_check=True)
    nodes = [node for node in replaced.graph.node if node.op_type == "NonZeroPlugin"]
    assert nodes
    assert all(len(node.output) == 2 for node in nodes)
    assert all(node.op_type != "NonZero" for node in replaced.graph.node)
    assert_parity(model, replaced, time_budget=1.0)
