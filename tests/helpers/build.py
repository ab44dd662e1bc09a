"""Short ways to write small ONNX models in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

Value = tuple[int, Sequence[int | str | None] | None]


def value(name: str, elem_type: int, dims: Sequence[int | str | None] | None) -> Any:
    return helper.make_tensor_value_info(name, elem_type, dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Value],
    outputs: Mapping[str, Value],
    *,
    initializers: Sequence[TensorProto] = (),
    opset: int = 17,
    **imports: int,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "test",
        [value(name, *spec) for name, spec in inputs.items()],
        [value(name, *spec) for name, spec in outputs.items()],
        list(initializers),
    )
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def nonzero(
    elem_type: int = TensorProto.FLOAT, dims: Sequence[int | str | None] = ("n", 4)
) -> onnx.ModelProto:
    """One NonZero of the graph input ``x``; its output ``indices`` is the graph output."""
    return model(
        [helper.make_node("NonZero", ["x"], ["indices"], name="nz")],
        {"x": (elem_type, dims)},
        {"indices": (TensorProto.INT64, [len(dims), None])},
    )
