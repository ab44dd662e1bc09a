"""Element types and shapes of values, from what the model says and, where it is silent, inference.

ONNX shape inference runs at most once per question, on the ancestors of the values asked for and
without any weights, so its cost follows the size of that part and never the size of the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from nonzero_rewrite.graph import Scope, attribute, is_onnx, subgraphs

log = logging.getLogger(__name__)

Dim = int | str | None
"""A dimension: its size, its symbol, or None where nothing is known."""

_SMALL_TENSOR_BYTES = 4096
"""Constants up to this size travel into inference: shapes and axes do, weights do not."""


@dataclass(frozen=True)
class TensorType:
    """What is known of a tensor: ONNX element type (0 = unknown) and dims (None = unknown rank)."""

    elem_type: int = 0
    dims: tuple[Dim, ...] | None = None

    @property
    def rank(self) -> int | None:
        """Number of dimensions, or None."""
        return None if self.dims is None else len(self.dims)

    @property
    def dtype_name(self) -> str:
        """The ONNX name of the element type, ``"?"`` where unknown."""
        try:
            return TensorProto.DataType.Name(self.elem_type) if self.elem_type else "?"
        except ValueError:
            return f"type {self.elem_type}"

    def __str__(self) -> str:
        dims = (
            "?" if self.dims is None else ", ".join("?" if d is None else str(d) for d in self.dims)
        )
        return f"{self.dtype_name}[{dims}]"


UNKNOWN = TensorType()


def tensor_type(proto: TypeProto) -> TensorType:
    """The ``TensorType`` of an ONNX type; a sequence, map or sparse tensor counts as unknown."""
    if not proto.HasField("tensor_type"):
        return UNKNOWN
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return TensorType(tensor.elem_type)
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            dims.append(dim.dim_param or None)
    return TensorType(tensor.elem_type, tuple(dims))


def value_info(name: str, of: TensorType) -> ValueInfoProto:
    """The protobuf form of a ``TensorType``."""
    proto = ValueInfoProto(name=name)
    proto.type.tensor_type.elem_type = of.elem_type
    if of.dims is not None:
        shape = proto.type.tensor_type.shape
        shape.SetInParent()
        for dim in of.dims:
            entry = shape.dim.add()
            if isinstance(dim, str):
                entry.dim_param = dim
            elif dim is not None:
                entry.dim_value = dim
    return proto


def tensor_bytes(tensor: TensorProto) -> int:
    """Size of an embedded tensor's data in bytes, from its dims; external data counts as large."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return 2**62
    return int(tensor.ByteSize())


class Types:
    """Answers ``of(scope, name)``; knows what the model declares and infers the rest on demand."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._known: dict[int, dict[str, TensorType]] = {}

    def of(self, scope: Scope, name: str) -> TensorType:
        """The type of ``name`` as seen from ``scope``; ``UNKNOWN`` where nothing is known."""
        owner = scope.owner(name)
        return UNKNOWN if owner is None else self._table(owner).get(name, UNKNOWN)

    def set(self, scope: Scope, name: str, to: TensorType) -> None:
        """Record the type of a value that a rule made."""
        self._table(scope)[name] = to

    def need(self, wanted: Iterable[tuple[Scope, str]]) -> None:
        """Make sure that everything that can be known of these values is."""
        missing = [
            (scope, name)
            for scope, name in wanted
            if not scope.root.is_function and not _complete(self.of(scope, name))
        ]
        if not missing:
            return
        self._infer(missing)

    # -- the declared part ---------------------------------------------------------------------

    def _table(self, scope: Scope) -> dict[str, TensorType]:
        table = self._known.get(id(scope))
        if table is None:
            table = self._known[id(scope)] = {}
            proto = scope.proto
            infos = list(proto.value_info)
            if isinstance(proto, GraphProto):
                infos += [*proto.output, *proto.input]
            for info in infos:
                found = tensor_type(info.type)
                if found != UNKNOWN:
                    table[info.name] = found
            for name, tensor in scope.initializers.items():
                table[name] = TensorType(tensor.data_type, tuple(tensor.dims))
        return table

    # -- the inferred part ---------------------------------------------------------------------

    def _infer(self, wanted: list[tuple[Scope, str]]) -> None:
        main = wanted[0][0].root
        skeleton = self._skeleton(main, wanted)
        try:
            inferred = _infer_with_ranks(skeleton)
        except Exception as err:  # inference of a broken model may raise anything
            log.debug("shape inference stopped: %s", err)
            return
        places = [int(node.doc_string or -1) for node in skeleton.graph.node]
        self._collect(inferred.graph, main, places)

    def _skeleton(self, main: Scope, wanted: list[tuple[Scope, str]]) -> ModelProto:
        """A model of the ancestors of ``wanted`` without weights.

        A node's ``doc_string`` holds its handle, so that what is learned inside a nested graph
        finds its scope again.
        """
        table = self._table(main)
        roots = [name for scope, name in wanted if scope is main]
        for scope, _ in wanted:
            top = scope
            while top.parent is not None and top.parent is not main:
                top = top.parent
            if top is not main:
                roots += [name for name in main.nodes[top.holder].output if name]
        handles = main.ancestors(roots, lambda name: _complete(table.get(name, UNKNOWN)))

        model = ModelProto(ir_version=max(self._model.ir_version, 8))
        model.opset_import.extend(self._model.opset_import)
        model.functions.extend(self._model.functions)
        graph = model.graph
        graph.name = "skeleton"
        made: set[str] = set()
        needed = set(roots)
        for handle in handles:
            node = main.nodes[handle]
            if is_onnx(node, "Constant") and node.ByteSize() > _SMALL_TENSOR_BYTES:
                constant = _constant_tensor(node)
                if constant is not None:
                    graph.input.append(
                        value_info(
                            node.output[0], TensorType(constant.data_type, tuple(constant.dims))
                        )
                    )
                continue
            graph.node.append(node)
            graph.node[-1].doc_string = str(handle)
            made.update(node.output)
            needed.update(main.inputs_of(handle))
        for name in sorted(needed - made):
            tensor = main.initializers.get(name)
            if tensor is not None and tensor_bytes(tensor) <= _SMALL_TENSOR_BYTES:
                graph.initializer.append(tensor)
            elif name in table:
                graph.input.append(value_info(name, table[name]))
        for scope, name in wanted:
            if scope is main and name in made:
                graph.output.add().name = name
        return model

    def _collect(self, graph: GraphProto, scope: Scope, places: list[int]) -> None:
        table = self._table(scope)
        for info in (*graph.value_info, *graph.output):
            found = tensor_type(info.type)
            if found != UNKNOWN and scope.defines(info.name):
                table[info.name] = merge(table.get(info.name, UNKNOWN), found)
        for number, node in enumerate(graph.node):
            handle = places[number] if places else number
            for name, body in subgraphs(node):
                for child in scope.children:
                    if child.holder == handle and child.path.endswith("/" + name):
                        self._collect(body, child, [])


def merge(one: TensorType, other: TensorType) -> TensorType:
    """What both say together; where they disagree, ``one``."""
    if one.dims is None or other.dims is None or len(one.dims) != len(other.dims):
        return TensorType(
            one.elem_type or other.elem_type, one.dims if one.dims is not None else other.dims
        )
    dims = tuple(
        b if a is None or (isinstance(a, str) and isinstance(b, int)) else a
        for a, b in zip(one.dims, other.dims, strict=True)
    )
    return TensorType(one.elem_type or other.elem_type, dims)


def _complete(of: TensorType) -> bool:
    return bool(of.elem_type) and of.dims is not None


def _constant_tensor(node: NodeProto) -> TensorProto | None:
    attr = attribute(node, "value")
    return None if attr is None else attr.t


_SHAPED_BY = {"Reshape": 1, "ConstantOfShape": 0, "Expand": 1}
"""The input whose length is the rank of the output, or for Expand bounds it from below."""

_MAX_ROUNDS = 8


def _infer_with_ranks(model: ModelProto) -> ModelProto:
    """ONNX shape inference, helped where it gives up: at a Reshape to a computed shape.

    The sizes are unknown there, but the length of the shape tensor is the rank. Each round tells
    inference the ranks found so and runs it again, until it learns nothing new.
    """
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for _ in range(_MAX_ROUNDS):
        known = {
            info.name: tensor_type(info.type)
            for info in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
        }
        for tensor in inferred.graph.initializer:
            known[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
        hints = []
        for node in inferred.graph.node:
            slot = _SHAPED_BY.get(node.op_type)
            if slot is None or not is_onnx(node, node.op_type) or len(node.input) <= slot:
                continue
            output = known.get(node.output[0], UNKNOWN)
            length = known.get(node.input[slot], UNKNOWN).dims
            if output.dims is not None or length is None:
                continue
            if len(length) != 1 or not isinstance(length[0], int):
                continue
            rank = length[0]
            if node.op_type == "Expand":
                data = known.get(node.input[0], UNKNOWN).rank
                if data is None:
                    continue
                rank = max(rank, data)
            elem_type = output.elem_type or known.get(node.input[0], UNKNOWN).elem_type
            if elem_type:
                hints.append(value_info(node.output[0], TensorType(elem_type, (None,) * rank)))
        if not hints:
            break
        told = {hint.name for hint in hints}
        for number in reversed(range(len(inferred.graph.value_info))):
            if inferred.graph.value_info[number].name in told:
                del inferred.graph.value_info[number]
        inferred.graph.value_info.extend(hints)
        inferred = onnx.shape_inference.infer_shapes(inferred, data_prop=True)
    return inferred
