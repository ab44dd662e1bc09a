"""Rules for when the indices are not needed themselves: only their number, or a sum over them.

*count*: every user of the indices is a Shape or a Size. ``num_nonzero`` is then
``ReduceSum(Cast(mask != 0, INT64))``, an exact integer sum.

*where-sum*: ``ReduceSum(GatherND(x, indices))`` over everything equals
``ReduceSum(Where(mask, x, 0))`` up to the order of summation, so it runs only when asked for.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

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
from nonzero_rewrite.rules.group import RANK_LAST, Group, Use
from nonzero_rewrite.rules.tape import Tape


def count(group: Group, context: Context) -> Verdict:
    """Only the count is used; see the module's text."""
    scope = group.scope
    readers = [scope.nodes[use.handle] for use in group.uses]
    if group.fixed or not readers or not all(is_onnx(n, "Shape", "Size") for n in readers):
        return NO_MATCH
    of_mask = context.facts.types.of(scope, group.mask)
    if of_mask.rank is None or not of_mask.elem_type:
        return near_miss("the rank or the type of the mask is not known")
    if of_mask.rank == 0:
        return near_miss("the mask is a scalar, where ONNX and onnxruntime disagree")
    for use in group.uses:
        if used_as_shape(scope, scope.nodes[use.handle].output[0]):
            return near_miss("the count is a size of another tensor, which needs the indices")
    for use in group.uses:
        node = scope.nodes[use.handle]
        tape = context.tape("count", node.output[0])
        mask = group.mask
        if of_mask.elem_type != TensorProto.BOOL:
            mask = context.flags(tape, scope, mask)
        number = _count(tape, mask)
        write_reader(tape, node, use.layout, number, of_mask.rank)
        context.finish(scope, use.handle, tape)
    return APPLIED


_SHAPE_TAKERS = {
    **dict.fromkeys(("ConstantOfShape", "Range"), None),
    **dict.fromkeys(("Expand", "Reshape", "Slice", "Tile", "Pad", "Resize", "TopK", "Split"), 1),
    **dict.fromkeys(("Loop", "OneHot"), None),
}
_SHAPE_ARITHMETIC = (
    *("Add", "Cast", "Concat", "Div", "Gather", "Identity", "Max", "Min", "Mul", "Reshape"),
    *("Slice", "Squeeze", "Sub", "Unsqueeze", "Where", "Equal", "ReduceProd"),
)


def used_as_shape(scope: Scope, name: str) -> bool:
    """True when ``name`` reaches an input that decides a shape.

    TensorRT needs such a value on the host before the tensor exists; a sum made on the device does
    not get there, the size of the plugin's output does.
    """
    queue, seen = [name], set()
    while queue:
        value = queue.pop()
        if value in seen:
            continue
        seen.add(value)
        if scope.captures.get(value):
            return True
        for handle in scope.users(value):
            node = scope.nodes[handle]
            if not is_onnx(node, node.op_type):
                return True
            if node.op_type in _SHAPE_TAKERS:
                first = _SHAPE_TAKERS[node.op_type]
                if first is None or value in list(node.input)[first:]:
                    return True
            if node.op_type in _SHAPE_ARITHMETIC:
                queue += [output for output in node.output if output]
    return False


def _count(tape: Tape, mask: str) -> str:
    """The number of true items, INT64[1]."""
    ones = tape.op("Cast", [tape.reshape(mask, -1)], to=TensorProto.INT64)
    return tape.reduce_sum(ones, [0], 1)


def write_reader(tape: Tape, node: NodeProto, layout: bool, number: str, rank: int) -> None:
    """What Shape or Size of the indices would have given, under the same name."""
    output = node.output[0]
    if is_onnx(node, "Size"):
        product = tape.op("Mul", [number, tape.ints(rank)])
        tape.squeeze(product, [0], output)
        return
    dims: list[str | int] = [number, rank] if layout is RANK_LAST else [rank, number]
    end = attribute(node, "end")
    dims = dims[int_attribute(node, "start", 0) : None if end is None else int(end.i)]
    if not dims:
        tape.constant(np.zeros(0, dtype=np.int64), output)
        return
    parts = [dim if isinstance(dim, str) else tape.ints(dim) for dim in dims]
    if len(parts) == 1:
        tape.op("Identity", parts, output)
    else:
        tape.op("Concat", parts, output, axis=0)


def where_sum(group: Group, use: Use, context: Context) -> Verdict:
    """A full sum over the selected items; see the module's text."""
    scope = group.scope
    gather = scope.nodes[use.handle]
    if not is_onnx(gather, "GatherND") or use.slot != 1 or use.layout is not RANK_LAST:
        return NO_MATCH
    selected, data = gather.output[0], gather.input[0]
    readers = scope.users(selected)
    if not readers or not all(is_onnx(scope.nodes[h], "ReduceSum") for h in readers):
        return NO_MATCH
    if scope.name_is_fixed(selected):
        return near_miss("the selected items are used elsewhere too")
    facts = context.facts
    facts.types.need([(scope, data)])
    of_data = facts.types.of(scope, data)
    of_mask = facts.types.of(scope, group.mask)
    if of_data.rank is None or of_data.rank != of_mask.rank:
        return near_miss("the mask does not select single items")
    if not facts.same_shape(scope, group.mask, data):
        return near_miss("the mask is not surely shaped like the data")
    for handle in readers:
        node = scope.nodes[handle]
        given = len(node.input) > 1 or attribute(node, "axes") is not None
        if given and axes_of(facts, scope, node) not in ([0], [-1]):
            return near_miss("ReduceSum does not sum over everything")
        if int_attribute(node, "noop_with_empty_axes", 0) and len(node.input) < 2:
            return near_miss("ReduceSum without axes is a copy here")
    for handle in readers:
        node = scope.nodes[handle]
        keepdims = int_attribute(node, "keepdims", 1)
        tape = context.tape("where-sum", node.output[0])
        mask = group.mask
        if of_mask.elem_type != TensorProto.BOOL:
            mask = context.flags(tape, scope, mask)
        zero = tape.constant(np.zeros((), dtype=helper.tensor_dtype_to_np_dtype(of_data.elem_type)))
        masked = tape.reshape(tape.op("Where", [mask, data, zero]), -1)
        tape.reduce_sum(masked, [0], keepdims, node.output[0])
        context.finish(scope, handle, tape)
    return APPLIED
