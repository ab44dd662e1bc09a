"""The rule for ``x[mask] = source`` in order (``masked_scatter``, image tokens of vision models).

The k-th non-zero place of ``mask`` gets the k-th item of ``source``, flattened. At a place that is
selected, k is the number of non-zeros up to there, less one: ``CumSum(mask) - 1``. So the result is
``Where(mask, Gather(source, CumSum(mask) - 1), x)``, with no shape that depends on data.

Where the mask was expanded along the last dims of ``x`` (one flag for each token), whole rows of
``source`` move, and the sum runs over the flags only.

Places that are not selected read row 0; one row of zeros is added behind ``source``, so that there
is one to read even when it is empty. The original fails when ``source`` is too short.

Runs only when asked for: TensorRT for RTX 1.7.1 builds the CumSum, older parsers were not tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import is_onnx
from nonzero_rewrite.rules.chain import Chain
from nonzero_rewrite.rules.context import NO_MATCH, Context, Verdict, near_miss
from nonzero_rewrite.rules.group import RANK_LAST, Group, Use
from nonzero_rewrite.rules.scatter import write_where
from nonzero_rewrite.rules.tape import Tape
from nonzero_rewrite.values import Facts

_CUMSUM_OPSET = 11


@dataclass(frozen=True)
class _Spread:
    """Items of ``source`` in the places they go to.

    With ``rows``, which are the flags and the size of the last dim along which the mask repeats
    each, so many items move together; else single items do.
    """

    source: str
    elem_type: int
    rank: int
    rows: tuple[str, int] | None

    def write(self, tape: Tape, mask: str) -> str:
        """The value for every place of the data; ``mask`` is BOOL and has ``rank`` dims."""
        flags, rank = mask, self.rank
        shape: tuple[int, ...] = (-1,)
        if self.rows is not None:
            flags, row = self.rows
            flags = tape.op("Cast", [tape.squeeze(flags, [rank - 1])], to=TensorProto.BOOL)
            rank, shape = rank - 1, (-1, row)
        before = tape.op("Sub", [_count_up_to(tape, flags, rank), tape.scalar(1)])
        place = tape.op("Where", [flags, before, tape.scalar(0)])
        dtype = helper.tensor_dtype_to_np_dtype(self.elem_type)
        spare = tape.constant(np.zeros((1, *shape[1:]), dtype=dtype))
        items = tape.op("Concat", [tape.reshape(self.source, *shape), spare], axis=0)
        return tape.op("Gather", [items, place], axis=0)


def _count_up_to(tape: Tape, flags: str, rank: int) -> str:
    """How many flags are set up to each place, itself included, in row-major order; INT64.

    Axis by axis, so that no Reshape is needed, to which a dim of size 0 would mean another.
    """
    sums = tape.op("Where", [flags, tape.scalar(1), tape.scalar(0)])
    count = tape.op("CumSum", [sums, tape.scalar(rank - 1)])
    for axis in range(rank - 1, 0, -1):
        sums = tape.reduce_sum(sums, [axis], 1)
        earlier = tape.op("CumSum", [sums, tape.scalar(axis - 1)], exclusive=1)
        count = tape.op("Add", [count, earlier])
    return count


def masked_scatter(group: Group, use: Use, context: Context) -> Verdict:
    """``x[mask] = source``; see the module's text."""
    scope, facts = group.scope, context.facts
    node = scope.nodes[use.handle]
    if not is_onnx(node, "ScatterND") or use.slot != 1 or use.layout is not RANK_LAST:
        return NO_MATCH
    data = node.input[0]
    # Not through Expand: it may spread a shorter source over all places.
    source = Chain(group, context, data, node.input[2], through=("Reshape", "Slice")).root
    facts.types.need([(scope, source)])  # of the data and the mask, Chain did
    of_data = facts.types.of(scope, data)
    if of_data.rank is None or of_data.rank != facts.types.of(scope, group.mask).rank:
        return near_miss("the mask does not select single items")
    if _depends_on(scope, source, group.aliases):
        return near_miss("what is written is computed from the indices")
    if context.opset < _CUMSUM_OPSET:
        return near_miss("CumSum needs opset 11 or newer")
    rows = _rows(facts, scope, group.mask, data, facts.types.of(scope, source).dims)
    spread = _Spread(source, of_data.elem_type, of_data.rank, rows)
    return write_where(group, node, use.handle, context, "masked-scatter", spread)


def _depends_on(scope: Scope, name: str, values: Mapping[str, bool]) -> bool:
    """True when ``name`` is computed from one of ``values``."""
    above = scope.ancestors([name], lambda value: value in values)
    return any(each in values for handle in above for each in scope.inputs_of(handle))


def _rows(
    facts: Facts, scope: Scope, mask: str, data: str, source: tuple[object, ...] | None
) -> tuple[str, int] | None:
    """The flags that the mask repeats along the last dim, and the size of that; None if not."""
    node = scope.made_by(mask)
    dims = facts.types.of(scope, data).dims
    if node is None or not is_onnx(node, "Expand") or not dims or not source:
        return None
    flags = facts.types.of(scope, node.input[0]).dims
    repeats = (
        flags is not None
        and len(dims) > 1
        and flags == (*dims[:-1], 1)
        and None not in flags
        and facts.same_shape(scope, mask, data)
    )
    # The source must fall into whole rows, which its own last dim shows.
    row, length = dims[-1], source[-1]
    if not repeats or not isinstance(row, int) or not row or not isinstance(length, int):
        return None
    return (node.input[0], row) if length % row == 0 else None
