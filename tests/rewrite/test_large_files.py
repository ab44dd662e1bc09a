"""Weights inside a large file: taken over from the file, to the byte what protobuf would write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.graphs import parse
from onnx import numpy_helper

from nonzero_rewrite import load, rewrite_model, wire
from nonzero_rewrite.load import load_model
from nonzero_rewrite.rewrite import rewrite
from nonzero_rewrite.write import write_model

MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as large, and every tensor of 64 bytes."""
    monkeypatch.setattr(load, "LARGE_FILE_BYTES", 0)
    monkeypatch.setattr(wire, "LARGE_BYTES", 64)


def written(path: Path, output: Path) -> bytes:
    source = load_model(path)
    result = rewrite(source.model)
    write_model(result.model, source, output, changed=result.changed)
    return output.read_bytes()


def in_memory(path: Path) -> bytes:
    """The same without the file: everything parsed, everything serialized."""
    from onnx import ModelProto

    model = ModelProto()
    model.ParseFromString(path.read_bytes())
    result = rewrite_model(model)
    data: bytes = result.model.SerializeToString() if result.changed else path.read_bytes()
    return data


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_the_same_bytes_as_in_memory(path: Path, tmp_path: Path) -> None:
    assert written(path, tmp_path / "out.onnx") == in_memory(path)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_the_python_interface_gives_whole_models(path: Path) -> None:
    result = rewrite_model(path)
    assert not result.changed or result.model.SerializeToString() == in_memory(path)


def test_weights_are_seen_and_left_in_the_file(tmp_path: Path) -> None:
    """Otherwise the test above would compare protobuf with itself."""
    path = tmp_path / "model.onnx"
    model = parse("""g (float[n,8] x) => (float[n,8] y, int64[2,k] i) {
        i = NonZero(x) y = MatMul(x, w) }""")
    weights = np.arange(64, dtype=np.float32).reshape(8, 8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    path.write_bytes(model.SerializeToString())
    source = load_model(path)
    assert list(source.weights) == ["w"]
    assert not source.model.graph.initializer[0].raw_data
    assert written(path, tmp_path / "out.onnx") == in_memory(path)


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = parse(
        "g (float[n,8] x) => (float[n,8] y, int64[2,k] i) { i = NonZero(x) y = MatMul(x, w) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    path.write_bytes(model.SerializeToString())
    source = load_model(path)
    result = rewrite(source.model)
    path.write_bytes(path.read_bytes() + b"\x08\x08")
    with pytest.raises(load.ModelLoadError, match="has changed since it was read"):
        write_model(result.model, source, tmp_path / "out.onnx", changed=True)
    assert not (tmp_path / "out.onnx").exists()


def test_a_weight_that_is_the_mask(tmp_path: Path) -> None:
    """A constant that the rules would fold must not be taken for empty."""
    path = tmp_path / "model.onnx"
    model = parse("g (float[n] x) => (int64[1,k] i, float[n] y) { i = NonZero(m) y = Neg(x) }")
    mask = (np.arange(100) % 3).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(mask, "m"))
    path.write_bytes(model.SerializeToString())
    data = written(path, tmp_path / "out.onnx")
    from helpers.graphs import run
    from onnx import ModelProto

    patched = ModelProto.FromString(data)
    i, _ = run(patched, {"x": np.zeros(1, np.float32)})
    assert i.tolist() == [np.flatnonzero(mask).tolist()]
