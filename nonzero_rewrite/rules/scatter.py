"""Rules that turn masked writes into Where, so that no data-dependent shape is left.

``ScatterND(data, indices, updates)`` with ``indices = Transpose(NonZero(mask))`` writes, at the
k-th non-zero place of ``mask`` (its first ``rank(mask)`` coordinates), the k-th slice of
``updates``. No place occurs twice, so order does not matter.

*where-scatter*: if every item of ``updates`` is the same scalar ``v``, the result is
``Where(mask, v, data)``, with ``mask`` unsqueezed at the end to the rank of ``data``.

*elementwise*: if ``updates = f(GatherND(x1, indices), GatherND(x2, indices), ...)``, every ``xi``
shaped like ``data`` and ``f`` made of operators that work item by item and round correctly (so
that an item's result does not depend on its neighbours or on vector width), the result is
``Where(mask, f(x1, x2, ...), data)``. Where the mask has the rank of ``data``, the update is a
vector of ``num_nonzero`` items, and exporters often pass it through Reshape to one dimension, Slice
from the start or Expand before they write it. ScatterND takes exactly ``num_nonzero`` items, so
wherever the original runs those changed nothing.

Where ``mask`` and the leading dims of ``data`` are not surely equal, the mask is sliced to them:
the original fails when a non-zero lies outside, so wherever the original runs the sliced mask
selects the same places. A mask smaller than the data cannot be sliced up, so there equality must be
known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import attribute, int_attribute, is_onnx
from nonzero_rewrite.rules.chain import Chain
from nonzero_rewrite.rules.context import APPLIED, NO_MATCH, Context, Verdict, near_miss
from nonzero_rewrite.rules.group import RANK_LAST, Group, Use
from nonzero_rewrite.rules.tape import Tape
from nonzero_rewrite.tensor_type import array_of
from nonzero_rewrite.values import Facts

_WHERE_TYPES = frozenset(
    {
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16),
        *(TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.STRING),
    }
)
"""Element types for which onnxruntime has a Where; the patched model must still run there."""


class Written(Protocol):
    """What a masked write puts at the selected places."""

    def write(self, tape: Tape, mask: str) -> str:
        """A value that broadcasts to the data; ``mask`` is BOOL, of the data's first dims."""
        ...


@dataclass(frozen=True)
class _Scalar:
    """The one value that a tensor repeats: a value or a constant, and casts after it."""

    source: str | NDArray[np.generic]
    casts: tuple[int, ...] = ()

    def write(self, tape: Tape, mask: str) -> str:
        """The scalar as a value of the model."""
        name = self.source if isinstance(self.source, str) else tape.constant(self.source)
        for to in self.casts:
            name = tape.op("Cast", [name], to=to)
        return name


def where_scatter(group: Group, use: Use, context: Context) -> Verdict:
    """``x[mask] = v``; see the module's text."""
    scope, node = group.scope, group.scope.nodes[use.handle]
    if not is_onnx(node, "ScatterND") or use.slot != 1 or use.layout is not RANK_LAST:
        return NO_MATCH
    value = _uniform(context.facts, scope, node.input[2], 0)
    if value is None:
        return NO_MATCH  # the elementwise rule looks at the rest
    return write_where(group, node, use.handle, context, "where-scatter", value)


def elementwise(group: Group, use: Use, context: Context) -> Verdict:
    """``x[mask] = f(x[mask])``; see the module's text."""
    node = group.scope.nodes[use.handle]
    if not is_onnx(node, "ScatterND") or use.slot != 1 or use.layout is not RANK_LAST:
        return NO_MATCH
    data = node.input[0]
    chain = Chain(group, context, data, node.input[2])
    if not chain.collect(chain.root, 0):
        return near_miss(chain.reason) if chain.gathers else NO_MATCH
    if not chain.gathers:
        return NO_MATCH
    return write_where(group, node, use.handle, context, "elementwise", chain)


def write_where(
    group: Group, node: NodeProto, handle: int, context: Context, rule: str, value: Written
) -> Verdict:
    """Replace the ScatterND ``node`` by Where; ``value`` is what is written."""
    scope, facts = group.scope, context.facts
    data, output = node.input[0], node.output[0]
    reduction = attribute(node, "reduction")
    if reduction is not None and reduction.s not in (b"", b"none"):
        return near_miss(f"ScatterND reduces with {reduction.s.decode(errors='replace')}")
    facts.types.need([(scope, data), (scope, group.mask)])
    of_data, of_mask = facts.types.of(scope, data), facts.types.of(scope, group.mask)
    if of_data.rank is None or of_mask.rank is None:
        return near_miss("the ranks of the mask and of the data are not both known")
    if of_mask.rank == 0:
        return near_miss("the mask is a scalar, where ONNX and onnxruntime disagree")
    if of_data.elem_type not in _WHERE_TYPES:
        return near_miss(f"onnxruntime has no Where for {of_data.dtype_name}")
    fits = facts.same_shape(scope, group.mask, data, of_mask.rank)
    if not fits and not _at_least(facts, scope, group.mask, data, of_mask.rank):
        return near_miss("the mask is not surely as large as the data")

    tape = context.tape(rule, output)
    mask = group.mask
    if of_mask.elem_type != TensorProto.BOOL:
        mask = context.flags(tape, scope, mask)
    if not fits:
        mask = _slice_like(tape, mask, data, of_mask.rank, of_data.rank)
    written = value.write(tape, mask)
    if of_data.rank > of_mask.rank:
        mask = tape.unsqueeze(mask, range(of_mask.rank, of_data.rank))
    tape.op("Where", [mask, written, data], output)
    context.finish(scope, handle, tape)
    return APPLIED


def _slice_like(tape: Tape, mask: str, data: str, rank: int, data_rank: int) -> str:
    """The first part of ``mask``, as large as the leading ``rank`` dims of ``data``."""
    ends = tape.op("Shape", [data])
    axes = tape.ints(*range(rank))
    if data_rank > rank:
        ends = tape.op("Slice", [ends, tape.ints(0), tape.ints(rank)])
    return tape.op("Slice", [mask, tape.ints(*[0] * rank), ends, axes])


def _at_least(facts: Facts, scope: Scope, mask: str, data: str, rank: int) -> bool:
    """True when ``mask`` is Expand(..., Shape(data)): no dim is smaller than that of ``data``."""
    node = scope.made_by(mask)
    if node is None or not is_onnx(node, "Expand"):
        return False
    shape = scope.made_by(node.input[1])
    if shape is None or not is_onnx(shape, "Shape"):
        return False
    if attribute(shape, "end") is not None or int_attribute(shape, "start", 0):
        return False
    return facts.same_shape(scope, shape.input[0], data, rank)


def _uniform(facts: Facts, scope: Scope, name: str, depth: int) -> _Scalar | None:
    """The scalar that every item of ``name`` equals, or None."""
    owner = scope.owner(name)
    if owner is None or depth > 16:
        return None
    scalar = facts.scalar(owner, name)
    # A tensor of one item is no proof that the update is uniform: it says there is one update.
    # It still equals its only item wherever the original runs.
    if scalar is not None:
        return _Scalar(scalar)
    constant = facts.constant(owner, name)
    if constant is not None and constant.size and _all_same_bits(constant):
        return _Scalar(_first(constant))
    node = owner.made_by(name)
    if node is None:
        return None
    if is_onnx(node, "ConstantOfShape"):
        attr = attribute(node, "value")
        value = np.zeros(1, np.float32) if attr is None else array_of(attr.t)
        return None if value is None or value.size != 1 else _Scalar(_first(value))
    if is_onnx(
        node, "Expand", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Tile", "Flatten", "Slice"
    ):
        return _uniform(facts, owner, node.input[0], depth + 1)
    if is_onnx(node, "Cast"):
        below = _uniform(facts, owner, node.input[0], depth + 1)
        if below is not None:
            return _Scalar(below.source, (*below.casts, int_attribute(node, "to", 0)))
    return None


def _first(value: NDArray[np.generic]) -> NDArray[np.generic]:
    """The first item as an array without dims: an item that is text would look like a name."""
    return value.ravel()[:1].reshape(())


def _all_same_bits(value: NDArray[np.generic]) -> bool:
    """Equal to the last bit: 0.0 equals -0.0, and a NaN equals nothing, yet both are written."""
    if value.dtype.hasobject:
        return bool(np.all(value == _first(value)))
    items = np.ascontiguousarray(value).reshape(value.size, 1).view(np.uint8)
    return bool(np.all(items == items[0]))
