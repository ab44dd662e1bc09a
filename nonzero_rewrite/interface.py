"""Compares what a caller of two models sees before running them."""

from __future__ import annotations

from typing import Any

import onnx

from nonzero_rewrite.compare import DifferenceKind
from nonzero_rewrite.input_specs import dims_of
from nonzero_rewrite.verification import Difference


def interface_differences(original: onnx.ModelProto, patched: onnx.ModelProto) -> list[Difference]:
    """Names, order, types and declared dims of graph inputs and outputs that do not agree."""
    found = []
    for what in ("input", "output"):
        left = _interface(original, what)
        right = _interface(patched, what)
        if list(left) != list(right):
            text = f"graph {what}s are {list(left)} in the original, {list(right)} in the patched"
            found.append(Difference(DifferenceKind.INTERFACE, "", "", text))
            continue
        for name, value in left.items():
            text = _type_difference(value, right[name])
            if text:
                text = f"graph {what} {name!r} {text}"
                found.append(Difference(DifferenceKind.INTERFACE, name, "", text))
    return found


def _interface(model: onnx.ModelProto, what: str) -> dict[str, onnx.ValueInfoProto]:
    defaults = {tensor.name for tensor in model.graph.initializer} if what == "input" else set()
    values = model.graph.input if what == "input" else model.graph.output
    return {value.name: value for value in values if value.name not in defaults}


def _type_difference(left: onnx.ValueInfoProto, right: onnx.ValueInfoProto) -> str:
    kinds = left.type.WhichOneof("value"), right.type.WhichOneof("value")
    if kinds[0] != kinds[1]:
        return f"is {kinds[0]} in the original, {kinds[1]} in the patched"
    if kinds[0] == "tensor_type":
        types = [
            onnx.TensorProto.DataType.Name(v.type.tensor_type.elem_type) for v in (left, right)
        ]
        if types[0] != types[1]:
            return f"has type {types[0]} in the original, {types[1]} in the patched"
    dims = dims_of(left), dims_of(right)
    if dims[0] != dims[1]:
        return f"is declared {_dims(dims[0])} in the original, {_dims(dims[1])} in the patched"
    return ""


def _dims(dims: Any) -> str:
    return "without a shape" if dims is None else f"[{', '.join(map(str, dims))}]"
