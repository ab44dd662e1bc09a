"""What a model's inputs must look like: types, dims by symbol, index ranges, telling values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

Dim = int | str
"""A fixed size, or the symbol of a dynamic one (dims without a name get ``input.axis``)."""

# Operators that hand the values of an input on, so that what an index feeds can be found.
_PASS_ON = frozenset(
    (
        *("Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape"),
        *("ScatterND", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"),
    )
)
_COMPARE = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
_SMALL = 64


@dataclass(frozen=True)
class InputSpec:
    """One graph input that has no default.

    ``kind`` is ``tensor``, ``sequence`` or ``optional`` (of tensors) or what is not supported.
    ``dims`` is None when the rank is unknown. ``limit`` is the size of the smallest table the
    values index: a number, or the symbol of a dynamic dim; None when they index nothing.
    """

    name: str
    kind: str
    elem_type: int
    dims: tuple[Dim, ...] | None
    limit: Dim | None = None

    @property
    def supported(self) -> bool:
        """False for kinds for which no values can be made: give them with ``inputs``."""
        return self.kind in ("tensor", "sequence", "optional")


@dataclass(frozen=True)
class ModelSpec:
    """The inputs in graph order, and the constants the model compares values with."""

    inputs: tuple[InputSpec, ...]
    floats: tuple[float, ...] = ()
    ints: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """Dynamic dims in order of appearance."""
        dims = (dim for spec in self.inputs for dim in spec.dims or ())
        return tuple(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))


@dataclass
class _Graph:
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    dims: dict[str, tuple[Dim, ...]] = field(default_factory=dict)
    consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = field(default_factory=dict)


def read_spec(model: onnx.ModelProto) -> ModelSpec:
    """The inputs of the main graph; weights may be missing from ``model``."""
    graph = _index(model.graph)
    defaults = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(
        _input_spec(value, graph) for value in model.graph.input if value.name not in defaults
    )
    floats: dict[float, None] = {}
    ints: dict[int, None] = {}
    strings: dict[str, None] = {}
    for array in _telling(model, graph):
        for item in array.reshape(-1)[:_SMALL].tolist():
            if isinstance(item, str | bytes):
                strings[item.decode(errors="replace") if isinstance(item, bytes) else item] = None
            elif isinstance(item, float) and np.isfinite(item):
                floats[item] = None
            elif isinstance(item, int):
                ints[int(item)] = None
    return ModelSpec(inputs, tuple(floats)[:_SMALL], tuple(ints)[:_SMALL], tuple(strings)[:_SMALL])


def dims_of(value: onnx.ValueInfoProto) -> tuple[Dim, ...] | None:
    """Declared dims with a symbol for each dynamic one, None when the rank is unknown."""
    tensor = _tensor_type(value.type)[1]
    if tensor is None or not tensor.HasField("shape"):
        return None
    return tuple(
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else dim.dim_param or f"{value.name}.{axis}"
        for axis, dim in enumerate(tensor.shape.dim)
    )


def _tensor_type(proto: onnx.TypeProto) -> tuple[str, onnx.TypeProto.Tensor | None]:
    kind = proto.WhichOneof("value") or "untyped value"
    if kind == "tensor_type":
        return "tensor", proto.tensor_type
    if kind == "sequence_type" and proto.sequence_type.elem_type.HasField("tensor_type"):
        return "sequence", proto.sequence_type.elem_type.tensor_type
    if kind == "optional_type" and proto.optional_type.elem_type.HasField("tensor_type"):
        return "optional", proto.optional_type.elem_type.tensor_type
    return kind.removesuffix("_type"), None


def _input_spec(value: onnx.ValueInfoProto, graph: _Graph) -> InputSpec:
    kind, tensor = _tensor_type(value.type)
    elem_type = tensor.elem_type if tensor is not None else onnx.TensorProto.UNDEFINED
    integer = elem_type in (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    return InputSpec(
        name=value.name,
        kind=kind,
        elem_type=elem_type,
        dims=dims_of(value),
        limit=_limit(value.name, graph) if integer else None,
    )


def _index(graph: onnx.GraphProto) -> _Graph:
    found = _Graph()
    for tensor in graph.initializer:
        found.dims[tensor.name] = tuple(tensor.dims)
        _remember(found.constants, tensor.name, tensor)
    for value in (*graph.input, *graph.value_info):
        if (dims := dims_of(value)) is not None:
            found.dims.setdefault(value.name, dims)
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    _remember(found.constants, node.output[0], attribute.t)
                    found.dims[node.output[0]] = tuple(attribute.t.dims)
                elif attribute.name in ("value_float", "value_int"):
                    value = onnx.helper.get_attribute_value(attribute)
                    found.constants[node.output[0]] = np.asarray(value)
        for position, name in enumerate(node.input):
            found.consumers.setdefault(name, []).append((node, position))
    return found


def _remember(constants: dict[str, np.ndarray], name: str, tensor: onnx.TensorProto) -> None:
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if not external and int(np.prod(tensor.dims, dtype=np.int64)) <= _SMALL:
        try:
            constants[name] = numpy_helper.to_array(tensor)
        except (ValueError, TypeError):  # data and dims of a broken file do not fit
            return


def _limit(name: str, graph: _Graph) -> Dim | None:
    """Size of the smallest table reached through operators that hand values on."""
    limits: list[Dim] = []
    seen, stack = {name}, [name]
    while stack:
        for node, position in graph.consumers.get(stack.pop(), ()):
            table = _table_size(node, position, graph)
            if table is not None:
                limits.append(table)
            elif node.op_type in _PASS_ON and position != _INDEX_POSITION.get(node.op_type):
                fresh = [out for out in node.output if out and out not in seen]
                seen.update(fresh)
                stack.extend(fresh)
    numbers = [limit for limit in limits if isinstance(limit, int)]
    return min(numbers) if numbers else next(iter(limits), None)


_INDEX_POSITION = {"Gather": 1, "Reshape": 1, "Expand": 1, "Tile": 1, "ScatterND": 1, "Where": 0}


def _table_size(node: onnx.NodeProto, position: int, graph: _Graph) -> Dim | None:
    if node.op_type not in ("Gather", "GatherElements", "ScatterElements") or position != 1:
        return None
    dims = graph.dims.get(node.input[0])
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    if dims is None or not -len(dims) <= axis < len(dims):
        return 1
    return dims[axis]


def _telling(model: onnx.ModelProto, graph: _Graph) -> Iterator[np.ndarray]:
    """Constants on one side of a comparison, and the keys of label encoders."""
    for node in _all_nodes(model.graph.node, model.functions):
        if node.op_type in _COMPARE:
            for name in node.input:
                if name in graph.constants:
                    yield graph.constants[name]
        elif node.op_type == "LabelEncoder":
            for attribute in node.attribute:
                if attribute.name.startswith("keys_"):
                    value = onnx.helper.get_attribute_value(attribute)
                    yield np.asarray(value if isinstance(value, Sequence) else [value])
    for array in graph.constants.values():
        if array.dtype.kind in "OUS":
            yield array


def _all_nodes(
    nodes: Iterable[onnx.NodeProto], functions: Iterable[onnx.FunctionProto]
) -> Iterator[onnx.NodeProto]:
    stack = [*nodes, *(node for function in functions for node in function.node)]
    while stack:
        node = stack.pop()
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                stack.extend(attribute.g.node)


def resolve(dim: Dim, sizes: Mapping[str, int]) -> int:
    """The size of ``dim`` under ``sizes``."""
    return sizes[dim] if isinstance(dim, str) else dim
