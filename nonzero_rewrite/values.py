"""What can be proved about values without running the model.

Every function here answers from the graph alone and says "no" when in doubt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.infer import Types
from nonzero_rewrite.node import attribute, int_attribute, is_onnx
from nonzero_rewrite.tensor_type import MAX_FOLDED_ITEMS, array_of

_MAX_DEPTH = 24

_FLOATS = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
"""The narrow ones first."""
_INTS: dict[int, int] = {
    TensorProto.INT8: 8,
    TensorProto.UINT8: 8,
    TensorProto.INT16: 16,
    TensorProto.UINT16: 16,
    TensorProto.INT32: 32,
    TensorProto.UINT32: 32,
    TensorProto.INT64: 64,
    TensorProto.UINT64: 64,
}
# Moving items around, or repeating them, makes no zero out of a non-zero; the data is input 0.
_MOVES = (
    "Expand",
    "Flatten",
    "Identity",
    "Reshape",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
)
_FOLDABLE = frozenset(
    {
        *_MOVES,
        *("Abs", "Add", "And", "Cast", "Concat", "ConstantOfShape", "CumSum", "Div", "Equal"),
        *("EyeLike", "Gather", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"),
        *("Mod", "Mul", "Neg", "NonZero", "Not", "OneHot", "Or", "Range", "ReduceSum", "ScatterND"),
        *("Shape", "Slice", "Split", "Sub", "Trilu", "Where", "Xor"),
    }
)


_BROADCASTING = frozenset(
    {
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max"),
        *("Min", "Mod", "Mul", "Or", "Sub", "Where", "Xor"),
    }
)


def keeps_nonzero(source: int, target: int) -> bool:
    """True when ``Cast(source -> target)`` maps zero to zero and every non-zero to a non-zero.

    Both are ONNX element types. Narrowing casts do not: 2**32 as INT32 is 0, 1e-40 as FLOAT16 is 0.
    NaN stays a NaN between float types and is true as BOOL.
    """
    if source in (target, TensorProto.BOOL):
        return True
    if source in _INTS:
        if target in _INTS:
            return _INTS[target] >= _INTS[source]
        return target in _FLOATS or target in (TensorProto.BOOL, TensorProto.BFLOAT16)
    if source in _FLOATS:
        return target in (TensorProto.BOOL, *_FLOATS[_FLOATS.index(source) :])
    if source == TensorProto.BFLOAT16:
        return target in (TensorProto.BOOL, TensorProto.FLOAT, TensorProto.DOUBLE)
    return False


@dataclass
class Facts:
    """Constant values and proofs over one model; ``types`` must know what is asked for.

    Args:
        types: declared and inferred types.
        opset: the version of the ONNX domain that the model imports.
        ir_version: of the model; below 4 every initializer is an input too, and none a default.
    """

    types: Types
    opset: int
    ir_version: int
    _folded: dict[tuple[Scope, str], NDArray[np.generic]] = field(default_factory=dict)

    def constant(self, scope: Scope, name: str) -> NDArray[np.generic] | None:
        """The value of ``name`` when it follows from constants alone; at most 65536 items."""
        return self._constant(scope, name, 0, {})

    def _constant(
        self,
        scope: Scope,
        name: str,
        depth: int,
        known: dict[tuple[Scope, str], NDArray[np.generic] | None],
    ) -> NDArray[np.generic] | None:
        """As ``constant``; a value that many ways lead to is computed once, kept in ``known``."""
        owner = scope.owner(name)
        if owner is None or depth > _MAX_DEPTH:
            return None
        key = (owner, name)
        if key in self._folded:
            return self._folded[key]
        if key not in known:
            known[key] = value = self._computed(owner, name, depth, known)
            if value is not None:  # edits keep what a name means; a type may still become known
                self._folded[key] = value
        return known[key]

    def _computed(
        self,
        owner: Scope,
        name: str,
        depth: int,
        known: dict[tuple[Scope, str], NDArray[np.generic] | None],
    ) -> NDArray[np.generic] | None:
        tensor = owner.initializers.get(name)
        if tensor is not None:
            # From IR 4 on, an input with an initializer is a default that the caller may replace.
            default = owner.is_input(name) and self.ir_version >= 4
            return None if default else array_of(tensor)
        node = owner.made_by(name)
        if node is None:
            return None
        if is_onnx(node, "Constant"):
            return _constant_node(node)
        if node.op_type not in _FOLDABLE or not is_onnx(node, node.op_type):
            return None
        if is_onnx(node, "Shape"):
            return self._static_shape(owner, node)
        inputs = []
        for each in node.input:
            value = self._constant(owner, each, depth + 1, known) if each else None
            if each and value is None:
                return None
            inputs.append(value)
        if not _affordable(node, inputs) or not _same_everywhere(node, inputs):
            return None
        return _evaluate(node, inputs, self.opset, name)

    def need_shapes(self, wanted: Iterable[tuple[Scope, str]]) -> None:
        """Let ``constant`` know the shapes that these values are computed from."""
        shapes: dict[tuple[int, str], tuple[Scope, str]] = {}
        seen: set[tuple[int, str]] = set()
        queue = list(wanted)
        while queue:
            scope, name = queue.pop()
            owner = scope.owner(name)
            node = None if owner is None else owner.made_by(name)
            if owner is None or node is None or (id(owner), name) in seen:
                continue
            seen.add((id(owner), name))
            if is_onnx(node, "Shape", "Size"):
                shapes[id(owner), node.input[0]] = (owner, node.input[0])
            elif node.op_type in _FOLDABLE and is_onnx(node, node.op_type):
                queue += [(owner, each) for each in node.input if each]
        self.types.need(shapes.values())

    def _static_shape(self, scope: Scope, node: NodeProto) -> NDArray[np.generic] | None:
        dims = self.types.of(scope, node.input[0]).dims
        if dims is None:
            return None
        chosen = dims[int_attribute(node, "start", 0) : int_attribute(node, "end", len(dims))]
        if not all(isinstance(dim, int) for dim in chosen):
            return None
        return np.array(chosen, dtype=np.int64)

    def fill(self, scope: Scope, name: str, depth: int = 0) -> bool | None:
        """True when every item of ``name`` is certainly non-zero, False when every item is zero.

        None when neither is certain. Says nothing about how many items there are.
        """
        value = self.constant(scope, name)
        if value is not None:
            return _fill_of(value)
        owner = scope.owner(name)
        node = None if owner is None else owner.made_by(name)
        if owner is None or node is None or depth > _MAX_DEPTH:
            return None
        if is_onnx(node, "ConstantOfShape"):
            attr = attribute(node, "value")
            value = np.zeros(1) if attr is None else array_of(attr.t)
            return None if value is None else _fill_of(value)
        if is_onnx(node, *_MOVES):
            return self.fill(owner, node.input[0], depth + 1)
        if is_onnx(node, "Cast"):
            below = self.fill(owner, node.input[0], depth + 1)
            source = self.types.of(owner, node.input[0]).elem_type
            if below is False or keeps_nonzero(source, int_attribute(node, "to", 0)):
                return below
        return None

    def scalar(self, scope: Scope, name: str, depth: int = 0) -> str | None:
        """The one-item value that ``name`` repeats, or None; the name is visible in ``scope``.

        Walks Expand, Reshape, Squeeze, Unsqueeze, Identity and Tile up to a tensor of exactly one
        item and of rank 0 or 1.
        """
        owner = scope.owner(name)
        if owner is None or depth > _MAX_DEPTH:
            return None
        node = owner.made_by(name)
        if node is not None and not is_onnx(node, *_MOVES):
            self.types.need([(owner, name)])
        dims = self.types.of(owner, name).dims
        if dims is not None and len(dims) <= 1 and all(dim == 1 for dim in dims):
            return name
        value = self.constant(owner, name)
        if value is not None and value.size == 1 and value.ndim <= 1:
            return name
        if node is None or not is_onnx(node, *_MOVES):
            return None
        return self.scalar(owner, node.input[0], depth + 1)

    def same_shape(self, scope: Scope, one: str, other: str, axes: int | None = None) -> bool:
        """True when both surely have equal shapes (or equal first ``axes`` dims).

        Equal static sizes or equal symbols prove a dimension; so does being computed item by item
        from the other value.
        """
        if one == other:
            return True
        a, b = self.types.of(scope, one).dims, self.types.of(scope, other).dims
        if a is not None and b is not None:
            count = len(b) if axes is None else axes
            if len(a) != count or len(b) < count:
                return False
            if all(x is not None and x == y for x, y in zip(a, b[:count], strict=True)):
                return True
        return axes in (None, len(b or ())) and self._shaped_like(scope, one, other, 0, {})

    def _shaped_like(
        self, scope: Scope, name: str, model: str, depth: int, known: dict[str, bool]
    ) -> bool:
        """True when ``name`` is computed item by item from ``model`` and one-item operands."""
        if name == model:
            return True
        if name not in known:
            node = scope.made_by(name)
            varying: list[str] = []
            if node is not None and depth <= _MAX_DEPTH and is_onnx(node, *ELEMENTWISE):
                varying = [e for e in node.input if e and self.scalar(scope, e) is None]
            known[name] = bool(varying) and all(
                self._shaped_like(scope, each, model, depth + 1, known) for each in varying
            )
        return known[name]


ELEMENTWISE = (
    *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Erf", "Exp", "Floor"),
    *("Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual"),
    *("LeakyRelu", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Relu", "Round"),
    *("Sigmoid", "Sign", "Sqrt", "Sub", "Tanh", "Where", "Xor"),
)
"""Operators whose output item depends on the input items at the same place only."""


def _fill_of(value: NDArray[np.generic]) -> bool | None:
    if value.size == 0:
        return None
    flags = value != np.zeros((), dtype=value.dtype)
    return True if bool(np.all(flags)) else (None if bool(np.any(flags)) else False)


def _constant_node(node: NodeProto) -> NDArray[np.generic] | None:
    for attr in node.attribute:
        if attr.ref_attr_name:
            return None
        if attr.name == "value":
            return array_of(attr.t)
        if attr.name == "value_int":
            return np.array(attr.i, dtype=np.int64)
        if attr.name == "value_ints":
            return np.array(attr.ints, dtype=np.int64)
        if attr.name == "value_float":
            return np.array(attr.f, dtype=np.float32)
        if attr.name == "value_floats":
            return np.array(attr.floats, dtype=np.float32)
    return None


def _same_everywhere(node: NodeProto, inputs: list[NDArray[np.generic] | None]) -> bool:
    """False for a float sum: its last bits depend on the order of summation."""
    sums = is_onnx(node, "ReduceSum", "CumSum")
    return not sums or inputs[0] is None or inputs[0].dtype.kind in "iub"


def _affordable(node: NodeProto, inputs: list[NDArray[np.generic] | None]) -> bool:
    """False when evaluating could make a tensor beyond the limit, or cannot work at all."""
    given = [value for value in inputs if value is not None]
    if sum(value.size for value in given) > MAX_FOLDED_ITEMS:
        return False
    try:
        items = _items_made(node, given)
    except (IndexError, OverflowError, TypeError, ValueError):  # values of the wrong kind
        items = math.inf
    return items <= MAX_FOLDED_ITEMS


def _items_made(node: NodeProto, given: list[NDArray[np.generic]]) -> float:
    """No fewer items than ``node`` makes; for some operators their inputs' values decide."""
    if node.op_type in _BROADCASTING:
        return float(math.prod(np.broadcast_shapes(*(value.shape for value in given))))
    if node.op_type == "Range":
        start, limit, delta = (float(value) for value in given)
        return max((limit - start) / delta, 0.0) if delta else math.inf
    if node.op_type == "ConstantOfShape":
        return _product(given[0])
    if node.op_type in ("Expand", "Tile"):
        return given[0].size * _product(given[1])
    if node.op_type == "OneHot":
        return given[0].size * _product(given[1])
    if node.op_type == "Gather":
        along = given[0].shape[int_attribute(node, "axis", 0)]
        return float(given[1].size * given[0].size // max(along, 1))
    return sum(value.size for value in given)


def _product(sizes: NDArray[np.generic]) -> int:
    return math.prod(max(int(size), 1) for size in sizes.ravel())


def _evaluate(
    node: NodeProto, inputs: list[NDArray[np.generic] | None], opset: int, name: str
) -> NDArray[np.generic] | None:
    """One node by the ONNX reference evaluator, which is the operator's definition."""
    from onnx.reference import ReferenceEvaluator

    feeds = {
        each: value for each, value in zip(node.input, inputs, strict=True) if value is not None
    }
    graph = onnx.helper.make_graph(
        [node],
        "folded",
        [
            onnx.helper.make_tensor_value_info(
                each, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for each, value in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name)],
    )
    try:
        model = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8
        )
        with np.errstate(all="ignore"):
            (result,) = ReferenceEvaluator(model).run([name], feeds)
    except Exception:  # the evaluator raises anything; a fold that fails is no fold
        return None
    value = np.asarray(result)
    return value if value.size <= MAX_FOLDED_ITEMS else None
