"""Rules for a NonZero whose result follows from constants or from a shape.

*unused*: nobody uses the result.
*constant*: the input is known, so the indices are.
*ramp*: every item of the input is non-zero (old exports write ``arange`` so). The indices are then
all coordinates in row-major order: ``Range(0, n)`` for rank 1, a grid of Ranges above. If every
item is zero, the indices are empty.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import is_onnx
from nonzero_rewrite.rules.context import APPLIED, NO_MATCH, Context, Verdict, near_miss
from nonzero_rewrite.rules.tape import Tape
from nonzero_rewrite.tensor_type import MAX_FOLDED_ITEMS

_RANGE_OPSET = 11


def unused(scope: Scope, handle: int, context: Context) -> Verdict:
    """Remove a NonZero, and the Transposes behind it, when nobody uses the result."""
    reached, queue = [handle], [scope.nodes[handle].output[0]]
    while queue:
        value = queue.pop()
        if scope.name_is_fixed(value) or scope.captures.get(value):
            return NO_MATCH
        for user in scope.users(value):
            if not is_onnx(scope.nodes[user], "Transpose", "Identity"):
                return NO_MATCH
            reached.append(user)
            queue.append(scope.nodes[user].output[0])
    for each in reversed(reached):
        scope.sweep([each])
    return APPLIED


def constant(scope: Scope, handle: int, context: Context) -> Verdict:
    """NonZero of a known value; see the module's text."""
    node = scope.nodes[handle]
    value = context.facts.constant(scope, node.input[0])
    if value is None or value.ndim == 0:
        return NO_MATCH
    indices = np.array(np.nonzero(value), dtype=np.int64)
    if indices.size > MAX_FOLDED_ITEMS:
        return near_miss(f"the indices would be {indices.size} numbers in the file")
    tape = context.tape("constant", node.output[0])
    tape.constant(indices, node.output[0])
    context.finish(scope, handle, tape)
    return APPLIED


def ramp(scope: Scope, handle: int, context: Context) -> Verdict:
    """NonZero of all ones or all zeros; see the module's text."""
    node = scope.nodes[handle]
    source, output = node.input[0], node.output[0]
    filled = context.facts.fill(scope, source)
    if filled is None:
        return NO_MATCH
    rank = context.facts.types.of(scope, source).rank
    if rank is None:
        return near_miss("the rank of the uniform input is not known")
    if rank == 0:
        return NO_MATCH
    tape = context.tape("ramp", output)
    if not filled:
        tape.constant(np.zeros((rank, 0), dtype=np.int64), output)
    elif context.opset >= _RANGE_OPSET:
        _grid(tape, _shape_of(scope, tape, source), rank, output)
    elif rank == 1:
        # No Range before opset 11; a Loop that collects its own counter gives the same.
        counter = _counter(tape, _dim(tape, _shape_of(scope, tape, source), 0))
        tape.unsqueeze(counter, [0], output)
    else:
        return near_miss("a grid of coordinates needs opset 11 or newer")
    context.finish(scope, handle, tape)
    return APPLIED


def _shape_of(scope: Scope, tape: Tape, source: str) -> str:
    """The shape of ``source``, straight from what made it where possible."""
    node: NodeProto | None = scope.made_by(source)
    while node is not None and is_onnx(node, "Cast", "Identity"):
        source = node.input[0]
        node = scope.made_by(source)
    if node is not None and is_onnx(node, "ConstantOfShape"):
        return str(node.input[0])
    return tape.op("Shape", [source])


def _dim(tape: Tape, shape: str, axis: int) -> str:
    """One dimension as an INT64 scalar."""
    return tape.op("Gather", [shape, tape.scalar(axis)], axis=0)


def _grid(tape: Tape, shape: str, rank: int, output: str) -> None:
    """All coordinates of a tensor of ``shape``, INT64[rank, items], in row-major order."""
    zero, one = tape.scalar(0), tape.scalar(1)
    rows = []
    for axis in range(rank):
        along = tape.op("Range", [zero, _dim(tape, shape, axis), one])
        if rank > 1:
            others = [other for other in range(rank) if other != axis]
            along = tape.op("Expand", [tape.unsqueeze(along, others), shape])
            along = tape.reshape(along, -1)
        rows.append(along)
    if rank == 1:
        tape.unsqueeze(rows[0], [0], output)
        return
    tape.op("Concat", [tape.unsqueeze(row, [0]) for row in rows], output, axis=0)


def _counter(tape: Tape, count: str) -> str:
    """INT64 0, 1, ... count-1, collected by a Loop; ``count`` is a scalar."""
    prefix = tape.names.new(f"{tape.prefix}_loop")
    # Loop-1 wants at least one carried value; the condition itself serves.
    keys = ("i", "go", "carried", "go_on", "carry", "row", "last")
    names = {key: tape.names.new(f"{prefix}_{key}") for key in keys}
    boolean = ("go", "carried", "go_on", "carry")
    value = {
        key: helper.make_tensor_value_info(
            names[key], TensorProto.BOOL if key in boolean else TensorProto.INT64, []
        )
        for key in keys
    }
    copies = (("go", "go_on"), ("carried", "carry"), ("i", "row"))
    body = helper.make_graph(
        [helper.make_node("Identity", [names[a]], [names[b]]) for a, b in copies],
        prefix,
        [value["i"], value["go"], value["carried"]],
        [value["go_on"], value["carry"], value["row"]],
    )
    go = tape.constant(np.array(True))
    rows = tape.op("Loop", [count, go, go], body=body)
    tape.nodes[-1].output.insert(0, names["last"])
    return rows
