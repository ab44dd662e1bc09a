"""The rule for a mask that repeats one flag along the last dims of the data.

``x[mask] = v`` and ``masked_scatter`` with a mask of fewer dims than ``x`` are exported with the
mask expanded to the shape of ``x``, so NonZero lists every item of every selected row. *rows* lists
the rows instead. In row-major order the items of a row follow each other, so with ``D`` items a row

* ``ScatterND(x, items, u)`` is ``ScatterND(x, rows, Reshape(u, [-1, D]))``,
* ``GatherND(x, items)`` is ``Reshape(GatherND(x, rows), [-1])``,
* and there are ``D`` times as many items as rows.

Where ``D`` may be 0, ``-1`` would have no meaning; the number of rows is written then, which takes
the Reshape of opset 14. The indices, for which TensorRT plans as if everything were selected,
become ``D`` times fewer, and often the rows are listed already, to read them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx import NodeProto

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import attribute, int_attribute, is_onnx
from nonzero_rewrite.rules.context import (
    APPLIED,
    NO_MATCH,
    Context,
    Verdict,
    axes_of,
    near_miss,
)
from nonzero_rewrite.rules.count import write_reader
from nonzero_rewrite.rules.group import RANK_LAST, Group, Use
from nonzero_rewrite.rules.tape import RULE_KEY, Tape, set_metadata
from nonzero_rewrite.tensor_type import TensorType
from nonzero_rewrite.values import Facts

_ALLOWZERO_OPSET = 14


@dataclass(frozen=True)
class _Wide:
    """A mask that was expanded.

    Attributes:
        flags: what was expanded.
        shape: the shape it was expanded to.
        like: the value that shape is taken from, where it is.
        rank: of the mask.
        row: the last dims, along which one flag is repeated; sizes or symbols.
    """

    flags: str
    shape: str
    like: str | None
    rank: int
    row: tuple[int | str, ...]

    @property
    def lead(self) -> int:
        """The number of dims before ``row``."""
        return self.rank - len(self.row)

    @property
    def sizes(self) -> tuple[int, ...]:
        """``row`` where all of it is known and nothing 0, else empty."""
        sizes = tuple(dim for dim in self.row if isinstance(dim, int) and dim > 0)
        return sizes if len(sizes) == len(self.row) else ()


def rows(group: Group, context: Context) -> Verdict:
    """Rows are listed instead of their items; see the module's text."""
    scope = group.scope
    wide = _wide(context.facts, scope, group.mask)
    if wide is None or not context.facts.types.of(scope, wide.flags).elem_type:
        return NO_MATCH
    if group.fixed:
        return near_miss("the indices of single items are used as they are")
    context.facts.types.need((scope, scope.nodes[use.handle].input[0]) for use in group.uses)
    readers = [scope.nodes[use.handle] for use in group.uses]
    for use, node in zip(group.uses, readers, strict=True):
        if not is_onnx(node, "Shape", "Size") and not _moves_rows(use, node, wide, group, context):
            return near_miss(f"{node.op_type} uses the indices of single items")
    if not any(is_onnx(node, "ScatterND", "GatherND") for node in readers):
        return NO_MATCH  # only counted
    if not wide.sizes and (wide.like is None or context.opset < _ALLOWZERO_OPSET):
        return near_miss("the size of a row is not known")
    tape = context.tape("rows", group.mask)
    mask = _row_mask(tape, wide, context.facts, scope)
    for node in tape.nodes:
        scope.insert(node, group.members[0])
    for handle in list(group.members):
        one = Group(scope, group.mask, [handle])
        one.refresh()
        _list_rows(one, mask, wide, context)
    return APPLIED


def _wide(facts: Facts, scope: Scope, mask: str) -> _Wide | None:
    """``mask`` as it was expanded, or None where it was not, or not along the last dims."""
    node = scope.made_by(mask)
    if node is None or not is_onnx(node, "Expand"):
        return None
    shape = scope.made_by(node.input[1])
    whole = shape is not None and is_onnx(shape, "Shape") and not int_attribute(shape, "start", 0)
    like = shape.input[0] if whole and shape and attribute(shape, "end") is None else None
    facts.types.need((scope, name) for name in (*node.input, like or mask))
    flags, dims = (
        facts.types.of(scope, node.input[0]).dims,
        facts.types.of(scope, like or mask).dims,
    )
    if flags is None or dims is None or len(flags) > len(dims):
        return None
    if like is None and facts.types.of(scope, node.input[1]).dims != (len(dims),):
        return None  # of the last dims only: it does not hold the sizes before a row
    row: list[int | str] = []
    for flag, dim in zip(reversed(flags), reversed(dims), strict=False):
        if flag != 1 or dim is None or len(row) + 1 == len(dims):
            break
        row.insert(0, dim)
    return _Wide(node.input[0], node.input[1], like, len(dims), tuple(row)) if row else None


def _moves_rows(use: Use, node: NodeProto, wide: _Wide, group: Group, context: Context) -> bool:
    """True for a read or a write of single items of data whose rows are as long as the mask's."""
    if use.slot != 1 or use.layout is not RANK_LAST or not is_onnx(node, "ScatterND", "GatherND"):
        return False
    dims = context.facts.types.of(group.scope, node.input[0]).dims
    return (
        dims is not None
        and len(dims) == wide.rank
        and dims[wide.lead :] == wide.row
        and not int_attribute(node, "batch_dims", 0)
    )


def _row_mask(tape: Tape, wide: _Wide, facts: Facts, scope: Scope) -> str:
    """The mask without the dims of ``row``."""
    mask, left = wide.flags, len(wide.row)
    rank = facts.types.of(scope, mask).rank
    assert rank is not None
    node = scope.made_by(mask)
    while node is not None and is_onnx(node, "Unsqueeze"):
        axes = {axis % rank for axis in axes_of(facts, scope, node) or ()}
        if not axes or min(axes) < rank - left:
            break
        mask, rank, left = node.input[0], rank - len(axes), left - len(axes)
        node = scope.made_by(mask)
    if left:
        mask = tape.squeeze(mask, range(rank - left, rank))
    elif wide.like is not None:
        facts.types.need([(scope, mask)])
        if facts.same_shape(scope, mask, wide.like, wide.lead):
            return mask
    lead = tape.op("Slice", [wide.shape, tape.ints(0), tape.ints(wide.lead)])
    mask = tape.op("Expand", [mask, lead])
    elem_type = facts.types.of(scope, wide.flags).elem_type
    facts.types.set(scope, mask, TensorType(elem_type, (None,) * wide.lead))
    return mask


def _list_rows(group: Group, mask: str, wide: _Wide, context: Context) -> None:
    """Let one NonZero list rows, and its users take them."""
    scope, (handle,) = group.scope, group.members
    tape = context.tape("rows", group.nodes[0].output[0])
    listing = NodeProto()
    listing.CopyFrom(group.nodes[0])
    listing.input[0] = mask
    listing.output[0] = context.names.new(f"{listing.output[0]}_rows")
    before = [entry.value for entry in listing.metadata_props if entry.key == RULE_KEY]
    set_metadata(listing, RULE_KEY, ",".join([*before, "rows"]))
    tape.nodes.append(listing)
    indices = tape.op("Transpose", listing.output, perm=[1, 0])
    for node in tape.nodes:  # first of all, so that what they take stays
        scope.insert(node, handle)
    for use in group.uses:
        _let_take(use, indices, wide, group, context)
    scope.sweep([*group.links, handle])


def _let_take(use: Use, indices: str, wide: _Wide, group: Group, context: Context) -> None:
    """Let one user of the items' indices take those of the rows."""
    scope, node = group.scope, group.scope.nodes[use.handle]
    tape = context.tape("rows", node.output[0])
    if is_onnx(node, "Shape", "Size"):
        items = _number(tape, indices)
        for size in [tape.ints(math.prod(wide.sizes))] if wide.sizes else _row_sizes(tape, wide):
            items = tape.op("Mul", [items, size])
        write_reader(tape, node, use.layout, items, wide.rank)
        context.finish(scope, use.handle, tape)
        return
    moved = NodeProto()
    moved.CopyFrom(node)
    moved.input[1] = indices
    set_metadata(moved, RULE_KEY, "rows")
    if is_onnx(node, "ScatterND"):
        moved.input[2] = _as_rows(tape, node.input[2], indices, wide, group, context)
        tape.nodes.append(moved)
    else:
        moved.output[0] = context.names.new(f"{node.output[0]}_rows")
        of_data = context.facts.types.of(scope, node.input[0])
        context.facts.types.set(
            scope, moved.output[0], TensorType(of_data.elem_type, (None, *wide.row))
        )
        tape.nodes.append(moved)
        tape.op("Reshape", [moved.output[0], tape.ints(-1)], node.output[0])
    context.finish(scope, use.handle, tape)


def _as_rows(
    tape: Tape, updates: str, indices: str, wide: _Wide, group: Group, context: Context
) -> str:
    """``updates`` with a dim for each of ``row``: what was flattened, or a Reshape."""
    scope, types = group.scope, context.facts.types
    node = scope.made_by(updates)
    # Rows of no items do not show how many they are, so their size must be known.
    if node is not None and is_onnx(node, "Reshape") and wide.sizes:
        types.need([(scope, node.input[0])])
        dims = types.of(scope, node.input[0]).dims
        if dims is not None and len(dims) == len(wide.row) + 1 and dims[1:] == wide.row:
            return str(node.input[0])
    if wide.sizes:
        return tape.reshape(updates, -1, *wide.sizes)
    shape = tape.op("Concat", [_number(tape, indices), *_row_sizes(tape, wide)], axis=0)
    return tape.op("Reshape", [updates, shape], allowzero=1)


def _number(tape: Tape, indices: str) -> str:
    """How many rows are listed, INT64[1]."""
    return tape.op("Slice", [tape.op("Shape", [indices]), tape.ints(0), tape.ints(1)])


def _row_sizes(tape: Tape, wide: _Wide) -> Sequence[str]:
    """The size of each dim of a row, INT64[1], as the model computes it."""
    return [
        tape.op("Slice", [wide.shape, tape.ints(axis), tape.ints(axis + 1)])
        for axis in range(wide.lead, wide.rank)
    ]
