"""The rule that takes the size of a tensor from the indices instead of from a sum over a mask.

``torch.export`` writes ``x[mask] = v`` with ``v`` expanded to ``ReduceSum(mask)`` items. TensorRT
plans such a size from the Shape of the indices, which the plugin's size tensor is; a sum that the
device computes does not get there in time, and the build fails. Two numbers are the same:

* a sum over all of the NonZero's own mask is the number of its indices;
* what ScatterND writes must have as many rows as there are indices. Where an Expand makes it, any
  first size may be replaced by their number: where the original runs, either the size or what is
  expanded has that many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import NodeProto, TensorProto

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import attribute, int_attribute, is_onnx
from nonzero_rewrite.rules.context import APPLIED, Context, Verdict, axes_of
from nonzero_rewrite.rules.count import used_as_shape
from nonzero_rewrite.rules.group import RANK_LAST, Group, Use
from nonzero_rewrite.rules.tape import Tape
from nonzero_rewrite.tensor_type import Dim, TensorType
from nonzero_rewrite.values import Facts

_KEEPS_ITEMS = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def sizes_from_indices(
    groups: list[Group], context: Context, places: Sequence[int]
) -> Iterator[tuple[Group, Verdict]]:
    """Let sizes that follow from a sum over a mask follow from the indices; see the module's text.

    ``places`` are those of the nodes by handle: what stands in front of the indices cannot wait.
    """
    # A sum over one mask may be the size of what another mask writes, so all writes go first.
    for rule in (_size_writes, _replace_sums):
        for group in groups:
            group.refresh()  # an edit for one group may remove users of another's indices
            of = context.facts.types.of(group.scope, group.mask)
            if group.uses and of.rank and of.elem_type and rule(group, context, places):
                yield group, APPLIED
    for group in groups:
        group.refresh()


def _size_writes(group: Group, context: Context, places: Sequence[int]) -> bool:
    """True where an Expand in front of ScatterND takes the number of its rows from the indices."""
    found = [_expand_of(group, context, use) for use in group.uses]
    handles = [
        handle for handle in found if handle is not None and _may_wait(handle, group, places)
    ]
    for handle in handles:
        _size_write(handle, group, context)
    return bool(handles)


def _replace_sums(group: Group, context: Context, places: Sequence[int]) -> bool:
    """True where a sum over the mask became the Shape of the indices."""
    scope = group.scope
    masks = {group.mask, *(node.input[0] for node in group.nodes)}
    handles = [
        handle
        for handle in dict.fromkeys(_sums(context.facts, scope, sorted(masks)))
        if _may_wait(handle, group, places) and used_as_shape(scope, scope.nodes[handle].output[0])
    ]
    for handle in handles:
        _replace_sum(handle, group, context)
    return bool(handles)


def _may_wait(handle: int, group: Group, places: Sequence[int]) -> bool:
    return places[handle] > places[group.scope.producer[group.uses[0].value]]


def _number(tape: Tape, like: Use, output: str | None = None) -> str:
    """The number of indices, INT64[1]."""
    axis = 0 if like.layout is RANK_LAST else 1
    shape = tape.op("Shape", [like.value])
    return tape.op("Gather", [shape, tape.ints(axis)], output)


def _replace_sum(handle: int, group: Group, context: Context) -> None:
    """The number of indices under the name and with the dims of a ReduceSum over everything."""
    node = group.scope.nodes[handle]
    rank = context.facts.types.of(group.scope, node.input[0]).rank
    assert rank is not None
    tape = context.tape("size-from-indices", node.output[0])
    like, output = group.uses[0], node.output[0]
    if not int_attribute(node, "keepdims", 1):
        tape.squeeze(_number(tape, like), [0], output)
    elif rank == 1:
        _number(tape, like, output)
    else:
        tape.op("Reshape", [_number(tape, like), tape.ints(*[1] * rank)], output)
    context.finish(group.scope, handle, tape)


def _expand_of(group: Group, context: Context, use: Use) -> int | None:
    """The Expand to a computed number of rows that makes what a ScatterND writes, and no more."""
    scope, types = group.scope, context.facts.types
    node = scope.nodes[use.handle]
    if not is_onnx(node, "ScatterND") or use.slot != 1 or use.layout is not RANK_LAST:
        return None
    name = node.input[2]
    maker = scope.made_by(name)
    flat = maker is not None and is_onnx(maker, "Reshape")
    if flat and maker is not None and not scope.name_is_fixed(name):
        name = maker.input[0]
        maker = scope.made_by(name)
    if maker is None or not is_onnx(maker, "Expand") or scope.name_is_fixed(name):
        return None
    if len(scope.users(name)) > 1 or (flat and len(scope.users(node.input[2])) > 1):
        return None
    first = _first_size(scope, maker)
    types.need((scope, each) for each in (first, maker.input[1], node.input[0], group.mask, name))
    data, rank = types.of(scope, node.input[0]).dims, types.of(scope, group.mask).rank
    if data is None or rank is None or not _is_sum(scope, first):
        return None
    row = data[rank:]
    if types.of(scope, first).dims != (1,):
        return None
    if types.of(scope, maker.input[1]).dims != (len(row) + 1,):
        return None
    if flat and not _has_rows(types.of(scope, name), row):
        return None
    return scope.producer[name]


def _has_rows(of: TensorType, row: tuple[Dim, ...]) -> bool:
    """True for rows of known, positive sizes; what is flattened shows no number of rows itself."""
    known = all(isinstance(dim, int) and dim > 0 for dim in row)
    return known and of.dims is not None and len(of.dims) == len(row) + 1 and of.dims[1:] == row


def _first_size(scope: Scope, expand: NodeProto) -> str:
    """The value that holds the first size, or all sizes, that an Expand expands to."""
    shape = scope.made_by(expand.input[1])
    return str(
        shape.input[0] if shape is not None and is_onnx(shape, "Concat") else expand.input[1]
    )


def _is_sum(scope: Scope, name: str) -> bool:
    node = scope.made_by(name)
    while node is not None and is_onnx(node, *_KEEPS_ITEMS):
        node = scope.made_by(node.input[0])
    return node is not None and is_onnx(node, "ReduceSum")


def _size_write(handle: int, group: Group, context: Context) -> None:
    """Let an Expand make as many rows as there are indices."""
    scope = group.scope
    node = scope.nodes[handle]
    tape = context.tape("size-from-indices", node.output[0])
    shape, number = scope.made_by(node.input[1]), _number(tape, group.uses[0])
    if shape is not None and is_onnx(shape, "Concat"):
        number = tape.op("Concat", [number, *shape.input[1:]], axis=0)
    tape.op("Expand", [node.input[0], number], node.output[0])
    context.finish(scope, handle, tape)


def _sums(facts: Facts, scope: Scope, masks: list[str]) -> Iterator[int]:
    """The INT64 sums over all items of one of the BOOL ``masks``."""
    facts.types.need((scope, mask) for mask in masks)
    queue = [
        (mask, False) for mask in masks if facts.types.of(scope, mask).elem_type == TensorProto.BOOL
    ]
    while queue:
        value, counts = queue.pop()
        for handle in scope.users(value):
            node = scope.nodes[handle]
            if node.input[0] != value:
                continue
            if is_onnx(node, *_KEEPS_ITEMS):
                queue.append((node.output[0], counts))
            elif is_onnx(node, "Cast") and int_attribute(node, "to", 0) == TensorProto.INT64:
                queue.append((node.output[0], True))
            elif counts and is_onnx(node, "ReduceSum") and _over_everything(facts, scope, node):
                yield handle


def _over_everything(facts: Facts, scope: Scope, node: NodeProto) -> bool:
    """True for a ReduceSum over all axes of a value of known rank, one or more."""
    facts.types.need([(scope, node.input[0])])
    rank = facts.types.of(scope, node.input[0]).rank
    if not rank:
        return False
    if attribute(node, "axes") is not None or (len(node.input) > 1 and node.input[1]):
        return {axis % rank for axis in axes_of(facts, scope, node) or ()} == set(range(rank))
    return not int_attribute(node, "noop_with_empty_axes", 0)
