"""References to external data that are wrong, and every place where one may stand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.external import external, save
from helpers.graphs import parse
from onnx import ModelProto, TensorProto

from nonzero_rewrite.errors import ModelLoadError
from nonzero_rewrite.load import load_model


def test_missing_data(tmp_path: Path) -> None:
    path = save(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelLoadError, match=r"'weights\.bin' is missing; put it beside the model"):
        load_model(path)


@pytest.mark.parametrize("location", ["../weights.bin", "/weights.bin", "a/../../weights.bin"])
def test_data_outside_of_the_folder(tmp_path: Path, location: str) -> None:
    path = save(tmp_path)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelLoadError, match="lies outside the model's folder"):
        load_model(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("location", "", "external data without a file name"),
        ("offset", "-4", "with offset '-4', which is no size"),
        ("length", "1e3", "with length '1e3', which is no size"),
    ],
)
def test_broken_references(tmp_path: Path, key: str, value: str, message: str) -> None:
    path = save(tmp_path)
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelLoadError, match=f"tensor 'h' has {message}|{message}"):
        load_model(path)


def as_constant(model: ModelProto, tensor: TensorProto) -> None:
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c0"], value=tensor))


def in_function(model: ModelProto, tensor: TensorProto) -> None:
    node = onnx.helper.make_node("Constant", [], ["c0"], value=tensor)
    opsets = [onnx.helper.make_opsetid("", 17)]
    function = onnx.helper.make_function("local", "F", [], ["c0"], [node], opsets)
    model.functions.append(function)


def in_a_list(model: ModelProto, tensor: TensorProto) -> None:
    node = onnx.helper.make_node("Custom", [], ["c0"], domain="other")
    node.attribute.add(name="many", type=onnx.AttributeProto.TENSORS).tensors.append(tensor)
    model.graph.node.insert(0, node)


def in_a_branch(model: ModelProto, tensor: TensorProto) -> None:
    branch = onnx.helper.make_graph([], "b", [], [], initializer=[tensor])
    model.graph.node.append(
        onnx.helper.make_node("If", ["c"], ["q"], then_branch=branch, else_branch=branch)
    )


@pytest.mark.parametrize("place", [as_constant, in_function, in_a_list, in_a_branch])
def test_every_place_of_external_data_is_found(tmp_path: Path, place: object) -> None:
    model = parse("g (float[n] x) => (int64[1,k] y) { y = NonZero(x) }")
    place(model, external("deep", np.ones(4, np.float32), "deep.bin", 0))  # type: ignore[operator]
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelLoadError, match=r"'deep\.bin' is missing"):
        load_model(path)
    (tmp_path / "deep.bin").write_bytes(bytes(16))
    assert load_model(path).data_files == ("deep.bin",)
