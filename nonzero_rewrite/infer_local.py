"""Types of values behind item-by-item operators, where one rule covers them all.

Masks are mostly comparisons and logic on something known, and a walk over those costs far less than
handing the model to ONNX's inference. Anything else is left to that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnx import NodeProto, TensorProto

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import int_attribute, is_onnx
from nonzero_rewrite.tensor_type import Dim, TensorType

_SAME = (
    *("Abs", "Ceil", "Clip", "Erf", "Exp", "Floor", "Identity", "LeakyRelu", "Log", "Neg"),
    *("Not", "Relu", "Round", "Sigmoid", "Sign", "Softmax", "Sqrt", "Tanh"),
)
_BROADCAST = ("Add", "And", "Div", "Max", "Min", "Mul", "Or", "Pow", "Sub", "Where", "Xor")
_COMPARE = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_KIND = {
    "Cast": "cast",
    **dict.fromkeys(_SAME, "same"),
    **dict.fromkeys(_BROADCAST, "broadcast"),
    **dict.fromkeys(_COMPARE, "compare"),
}
_ONE_ITEM: tuple[tuple[Dim, ...], ...] = ((), (1,))
_ELEM_TYPES = frozenset(TensorProto.DataType.values())
_ALL_INPUTS = ("broadcast", "compare")


def resolve(
    scope: Scope, name: str, known: Callable[[str], TensorType]
) -> Mapping[str, TensorType]:
    """Types of ``name`` and of what it is computed from, or nothing where a rule is missing.

    ``known`` gives the types that need no walk. The rules are those of ONNX's shape inference.
    """
    found: dict[str, TensorType] = {}
    walked: dict[int, tuple[str, NodeProto, str, Sequence[str]]] = {}
    producer, nodes, stack = scope.producer, scope.nodes, [name]
    while stack:
        value = stack.pop()
        if value in found:
            continue
        of = known(value)
        if of.elem_type and of.dims is not None:
            found[value] = of
            continue
        handle = producer.get(value)
        if handle is None:
            return {}
        if handle in walked:
            continue
        node = nodes[handle]
        kind = _KIND.get(node.op_type)
        if kind is None or not is_onnx(node, node.op_type):
            return {}
        inputs = node.input[:] if kind in _ALL_INPUTS else node.input[:1]
        walked[handle] = (kind, node, value, inputs)
        stack += inputs
    for handle in sorted(walked):
        kind, node, value, inputs = walked[handle]
        try:
            types = [found[each] for each in inputs]
        except KeyError:  # a node list out of order
            return {}
        result = types[0] if kind == "same" else _apply(kind, node, types)
        if result is None:
            return {}
        found[value] = result
    return found


def _apply(kind: str, node: NodeProto, types: list[TensorType]) -> TensorType | None:
    if kind == "cast":
        to = int_attribute(node, "to", 0)
        return TensorType(to if to in _ELEM_TYPES else 0, types[0].dims)
    dims = broadcast(types)
    if dims is None:
        return None
    if kind == "compare":
        return TensorType(TensorProto.BOOL, dims)
    last = types[-1]
    return last if dims is last.dims else TensorType(last.elem_type, dims)


def broadcast(types: list[TensorType]) -> tuple[Dim, ...] | None:
    """The shape that all broadcast to, None where they cannot."""
    widest = types[0].dims or ()
    for of in types[1:]:
        if of.dims is not None and len(of.dims) > len(widest):
            widest = of.dims
    if all(of.dims == widest or of.dims in _ONE_ITEM for of in types):
        return widest
    rank = len(widest)
    result: list[Dim] = [1] * rank
    for of in types:
        for place, dim in enumerate(of.dims or (), rank - (of.rank or 0)):
            have = result[place]
            if dim in (1, have):
                continue
            if have == 1:
                result[place] = dim
            elif isinstance(dim, int) and isinstance(have, int):
                return None
            elif isinstance(dim, int):
                result[place] = dim  # the other one must be that size, or one
            elif not isinstance(have, int):
                result[place] = None
    return tuple(result)
