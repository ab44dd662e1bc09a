"""ONNX's own shape inference, on just the part of a model that is in question.

It runs on the ancestors of the values asked for and without any weights, so its cost follows the
size of that part and never the size of the file.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    ValueInfoProto,
)

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import attribute, is_onnx, subgraphs
from nonzero_rewrite.tensor_type import (
    OWN_SYMBOL,
    UNKNOWN,
    TensorType,
    array_of,
    is_small,
    tensor_items,
    tensor_type,
    value_info,
)

log = logging.getLogger(__name__)

_RUNS = itertools.count()

Inferred = Iterator[tuple[Scope, dict[str, ValueInfoProto]]]


def infer_ancestors(
    model: ModelProto,
    main: Scope,
    wanted: list[tuple[Scope, str]],
    known: Callable[[str], TensorType],
) -> Inferred:
    """Types of everything that ``wanted`` is computed from, by graph; empty for a broken model.

    Args:
        model: the model, for its opset imports and functions.
        main: the scope of its main graph.
        wanted: values of ``main`` and of graphs below it.
        known: types of ``main``'s values that need no inference.
    """
    skeleton, handles = _skeleton(model, main, wanted, known)
    try:
        inferred = _infer_with_ranks(skeleton)
    except Exception as err:  # inference of a broken model may raise anything
        log.debug("shape inference stopped: %s", err)
        return iter(())
    given = {dim.dim_param for dim in _dims_below(skeleton.graph)}
    prefix = f"{OWN_SYMBOL}{next(_RUNS)}."
    for dim in _dims_below(inferred.graph):
        if dim.dim_param and dim.dim_param not in given:
            dim.dim_param = prefix + dim.dim_param
    return _collect(inferred.graph, main, handles)


def _dims_below(graph: GraphProto) -> Iterator[TensorShapeProto.Dimension]:
    """Every dimension that a type in ``graph``, or in a graph below it, has."""
    for info in _infos_below(graph):
        yield from info.type.tensor_type.shape.dim


def _infos_below(graph: GraphProto) -> Iterator[ValueInfoProto]:
    """The types of all values in ``graph`` and in graphs below it."""
    yield from (*graph.value_info, *graph.input, *graph.output)
    for node in graph.node:
        for _, body in subgraphs(node):
            yield from _infos_below(body)


def _skeleton(
    model: ModelProto,
    main: Scope,
    wanted: list[tuple[Scope, str]],
    known: Callable[[str], TensorType],
) -> tuple[ModelProto, list[int]]:
    """A model of the ancestors of ``wanted`` without weights, and the handles of its nodes."""
    roots = [name for scope, name in wanted if scope is main]
    for scope, _ in wanted:
        top = scope
        while top.parent is not None and top.parent is not main:
            top = top.parent
        if top is not main:
            roots += [name for name in main.nodes[top.holder].output if name]
    handles, nodes, boundary = [], [], set(roots)
    skeleton = ModelProto(ir_version=max(model.ir_version, 8))
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = "skeleton"
    for handle in main.ancestors(roots, lambda name: _says_all(known(name))):
        node = main.nodes[handle]
        constant = _constant_tensor(node)
        if constant is not None and not is_small(constant):
            of = TensorType(constant.data_type, tuple(constant.dims))
            graph.input.append(value_info(node.output[0], of))
            continue
        handles.append(handle)
        nodes.append(node)
        boundary.update(node.input)
        if main.children:
            boundary.update(main.inputs_of(handle))
    graph.node.extend(nodes)
    made = {name for node in nodes for name in node.output}
    made.update(value.name for value in graph.input)
    for name in sorted(boundary - made - {""}):
        tensor = main.initializers.get(name)
        if tensor is not None and is_small(tensor):
            graph.initializer.append(tensor)
        elif known(name) != UNKNOWN:
            graph.input.append(value_info(name, known(name)))
    for name in roots:
        if name in made:
            graph.output.add().name = name
    return skeleton, handles


def _says_all(of: TensorType) -> bool:
    """False for what may be axes or a shape, whose values decide more than their type says."""
    vector = of.dims is not None and len(of.dims) <= 1 and of.elem_type == TensorProto.INT64
    short = vector and all(isinstance(dim, int) and dim <= _MAX_SHAPE for dim in of.dims or ())
    return of.is_complete and not short


def _constant_tensor(node: NodeProto) -> TensorProto | None:
    if not is_onnx(node, "Constant"):
        return None
    attr = attribute(node, "value")
    return None if attr is None else attr.t


def _collect(graph: GraphProto, scope: Scope, handles: list[int]) -> Inferred:
    """What inference wrote into ``graph`` and the graphs below, each with its scope."""
    yield scope, {info.name: info for info in (*graph.value_info, *graph.output)}
    if not scope.children:
        return
    for handle, node in zip(handles, graph.node, strict=True):
        for name, body in subgraphs(node):
            for child in scope.held_by(handle):
                if child.path.endswith("/" + name):
                    yield from _collect(body, child, list(range(len(body.node))))


_SHAPED_BY = {"Reshape": 1, "ConstantOfShape": 0, "Expand": 1}
"""The input whose length is the rank of the output, or for Expand bounds it from below."""

_MAX_ROUNDS = 8
_MAX_SHAPE = 1 << 16
"""Items of a shape tensor: shapes have a handful."""
_TAKES_SHAPE = {
    "ConstantOfShape": 0,
    **dict.fromkeys(("Expand", "Pad", "Reshape", "Resize", "Tile", "Unsqueeze"), 1),
}
"""Operators whose output has dimensions after the length of an input, from that input on."""
_KEEPS_LENGTH = (
    *("Abs", "Add", "Cast", "Div", "Identity", "Max", "Min", "Mul", "Neg", "Reshape", "Squeeze"),
    *("Sub", "Unsqueeze", "Where"),
)


def _infer_with_ranks(model: ModelProto) -> ModelProto:
    """ONNX shape inference, helped where it gives up: at a Reshape to a computed shape.

    The sizes are unknown there, but the length of the shape tensor is the rank. Each round tells
    inference the ranks found so and runs it again, until it learns nothing new.
    """
    if not _is_bounded(model.graph, {}):
        return model
    data_prop = not _has_large_vectors(model)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    for _ in range(_MAX_ROUNDS):
        hints = _rank_hints(inferred.graph)
        if not hints:
            break
        for number in reversed(range(len(inferred.graph.value_info))):
            if inferred.graph.value_info[number].name in hints:
                del inferred.graph.value_info[number]
        inferred.graph.value_info.extend(hints.values())
        for info in inferred.graph.output:
            if info.name in hints:
                info.CopyFrom(hints[info.name])
        inferred = onnx.shape_inference.infer_shapes(inferred, data_prop=data_prop)
    return inferred


def _is_bounded(graph: GraphProto, outer: Mapping[str, int]) -> bool:
    """False where inference would fill the memory: a shape tensor of absurd length.

    Inference gives a value as many dimensions as its shape tensor has items, and propagates the
    data of what a Concat joins, without asking how many that are: a lying declaration, or forty
    Concat that each take the one before twice, would fill any memory.

    ``length`` has the items of values that may be shapes: what is declared, and what is computed
    from it without changing its length. Everything else counts as one.
    """
    length = dict(outer)
    length |= {info.name: _items(tensor_type(info.type)) for info in graph.input}
    length |= {tensor.name: tensor_items(tensor) for tensor in graph.initializer}
    joined: dict[str, int] = {}
    for node in graph.node:
        if is_onnx(node, *_TAKES_SHAPE):
            shapes = node.input[_TAKES_SHAPE[node.op_type] :]
            if any(length.get(name, 1) > _MAX_SHAPE for name in shapes):
                return False
        constant = _constant_tensor(node)
        if constant is not None:
            length[node.output[0]] = tensor_items(constant)
        elif is_onnx(node, *_KEEPS_LENGTH):
            length[node.output[0]] = max(length.get(name, 1) for name in node.input)
            joined[node.output[0]] = max(joined.get(name, 1) for name in node.input)
        elif is_onnx(node, "Concat"):
            joined[node.output[0]] = sum(joined.get(name, 1) for name in node.input)
            if joined[node.output[0]] > _MAX_SHAPE:
                return False
        if any(not _is_bounded(body, length) for _, body in subgraphs(node)):
            return False
    return True


def _has_large_vectors(model: ModelProto) -> bool:
    """True where data propagation would take gigabytes.

    It holds a record for each item of a one-dimensional tensor, be it data or unknown, that one of
    its operators touches: a flattened image of 4096 x 4096 takes seven gigabytes a node.
    """
    graph = model.graph
    tensors = [*graph.initializer, *filter(None, map(_constant_tensor, graph.node))]
    sizes = [_items(tensor_type(info.type)) for info in graph.input]
    values = [value for value in map(array_of, tensors) if value is not None]
    sizes += [int(np.max(value, initial=0)) for value in values if value.dtype.kind == "i"]
    if max(sizes, default=0) <= _MAX_SHAPE:
        return False
    inferred = onnx.shape_inference.infer_shapes(model)
    return any(
        len(dims) == 1 and isinstance(dims[0], int) and dims[0] > _MAX_SHAPE
        for info in _infos_below(inferred.graph)
        for dims in [tensor_type(info.type).dims or ()]
    )


def _items(of: TensorType) -> int:
    """Number of items by the known dims, 1 for each unknown one."""
    return math.prod(dim if isinstance(dim, int) else 1 for dim in of.dims or ())


def _rank_hints(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """Types with ranks for values whose rank inference left open."""
    shaped = [
        node
        for node in graph.node
        if node.op_type in _SHAPED_BY
        and is_onnx(node, node.op_type)
        and len(node.input) > _SHAPED_BY[node.op_type]
    ]
    if not shaped:
        return {}
    infos = {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    tensors = {tensor.name: tensor for tensor in graph.initializer}

    def known(name: str) -> TensorType:
        if name in tensors:
            return TensorType(tensors[name].data_type, tuple(tensors[name].dims))
        return tensor_type(infos[name].type) if name in infos else UNKNOWN

    hints = {}
    for node in shaped:
        output = known(node.output[0])
        length = known(node.input[_SHAPED_BY[node.op_type]]).dims
        if output.dims is not None or length is None or len(length) != 1:
            continue
        data = known(node.input[0])
        rank = length[0]
        if not isinstance(rank, int) or (node.op_type == "Expand" and data.rank is None):
            continue
        if node.op_type == "Expand":
            rank = max(rank, data.rank or 0)
        elem_type = output.elem_type or data.elem_type
        if elem_type:
            hints[node.output[0]] = value_info(
                node.output[0], TensorType(elem_type, (None,) * rank)
            )
    return hints
