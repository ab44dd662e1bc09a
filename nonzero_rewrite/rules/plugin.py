"""The rule that puts NonZeroPlugin where NonZero was, one node for equal ones, Transpose included.

One layout comes out of the plugin. Where the indices are used only behind Transpose, it is
``[num_nonzero, rank]`` and the Transposes go; where only NonZero's own layout is used, it is
``[rank, num_nonzero]``; where both are, the plugin gives ``[rank, num_nonzero]`` and one Transpose
stays. Names of graph outputs and of values that nested graphs take are kept by an Identity where
one node cannot give them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nonzero_plugin.contract import (
    ATTR_BACKEND,
    ATTR_INDEX_TYPE,
    ATTR_MAX_NONZERO,
    ATTR_PERM,
    ATTR_PLUGIN_NAMESPACE,
    ATTR_PLUGIN_VERSION,
    DOMAIN,
    INDEX_INT64,
    MAX_RANK,
    MIN_RANK,
    OP_TYPE,
    PERM_RANK_FIRST,
    PERM_RANK_LAST,
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
    NonZeroConfig,
)
from onnx import NodeProto, TensorProto, helper

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.rules import SkipReason
from nonzero_rewrite.rules.context import Context
from nonzero_rewrite.rules.group import RANK_FIRST, RANK_LAST, Group
from nonzero_rewrite.rules.tape import REPLACES_KEY, RULE_KEY, SITE_KEY, Tape, set_metadata
from nonzero_rewrite.tensor_type import TensorType

PLUGIN_TYPES = frozenset(
    {
        *(TensorProto.BOOL, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT),
    }
)
"""Input types that TensorRT hands to the plugin."""

CAST_TYPES = frozenset(
    {
        *(TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.UINT32),
        *(TensorProto.UINT64, TensorProto.DOUBLE),
    }
)
"""Types that a Cast to BOOL brings to the plugin without changing what is zero."""


@dataclass(frozen=True)
class Placed:
    """What stands in the graph now."""

    node: str
    rank_last: bool
    rules: tuple[str, ...]


def refusal(of: TensorType, any_rank: bool) -> SkipReason | None:
    """Why an input of this type cannot go to the plugin, or None.

    ``any_rank`` lets an unknown rank pass: onnxruntime runs the function's own NonZero whatever the
    rank is, and the plugin refuses a scalar when the engine is built.
    """
    if not of.elem_type:
        return SkipReason.DTYPE_UNKNOWN
    if of.elem_type not in PLUGIN_TYPES | CAST_TYPES:
        return SkipReason.DTYPE_UNSUPPORTED
    if of.rank is None:
        return None if any_rank else SkipReason.RANK_UNKNOWN
    if of.rank < MIN_RANK:
        return SkipReason.RANK_ZERO
    if of.rank > MAX_RANK:
        return SkipReason.RANK_TOO_HIGH
    return None


def plugin_node(
    mask: str, indices: str, count: str, config: NonZeroConfig, name: str = ""
) -> NodeProto:
    """A NonZeroPlugin node as TensorRT's parser and onnxruntime both take it."""
    attrs: dict[str, Any] = {
        ATTR_BACKEND: config.backend,
        ATTR_PERM: list(config.perm),
        ATTR_INDEX_TYPE: config.index_type,
        ATTR_PLUGIN_NAMESPACE: PLUGIN_NAMESPACE,
        ATTR_PLUGIN_VERSION: PLUGIN_VERSION,
    }
    if config.max_nonzero is not None:
        attrs[ATTR_MAX_NONZERO] = config.max_nonzero
    return helper.make_node(OP_TYPE, [mask], [indices, count], name=name, domain=DOMAIN, **attrs)


def place(
    group: Group, context: Context, backend: str, max_nonzero: int | None, fold_transpose: bool
) -> Placed:
    """Replace a group by one NonZeroPlugin node; its input type was checked by ``refusal``."""
    scope, first = group.scope, group.nodes[0]
    if not fold_transpose:
        group.unlink()
    wanted = {use.layout for use in group.uses} | {group.aliases[name] for name in group.fixed}
    rank_last = wanted == {RANK_LAST}
    rules = ["plugin", "transpose"] if rank_last else ["plugin"]
    # Each layout has one name: that of a graph output where there is one, else the first.
    canon: dict[bool, str] = {}
    for layout in (RANK_FIRST, RANK_LAST):
        names = [name for name, of in group.aliases.items() if of is layout]
        outputs = [name for name in names if scope.is_output(name)]
        if layout in wanted or layout is rank_last:
            canon[layout] = (outputs or [n for n in names if n in group.fixed] or names)[0]
    main, count = canon[rank_last], context.names.new(f"{canon[rank_last]}_count")
    tape = context.tape("plugin", main)
    mask = _mask_input(group, context, tape, rules)
    config = NonZeroConfig(
        backend, PERM_RANK_LAST if rank_last else PERM_RANK_FIRST, INDEX_INT64, max_nonzero
    )
    node = plugin_node(mask, main, count, config, first.name)
    _inherit(node, group, rules)
    tape.nodes.append(node)
    _remember(scope, group, context, main, count, rank_last)

    anchor = group.members[0]
    extra = Tape(context.names, context.opset, "plugin", main)
    if not rank_last and RANK_LAST in canon:
        # Directly behind the plugin, in front of every user; a copy, so that its metadata lives on.
        turn = NodeProto()
        turn.CopyFrom(scope.nodes[scope.producer[canon[RANK_LAST]]])
        if turn.op_type == "Transpose" and group.aliases[turn.input[0]] is RANK_FIRST:
            turn.input[0] = main
            extra.nodes.append(turn)
        else:
            extra.op("Transpose", [main], canon[RANK_LAST], perm=[1, 0])
    for name in group.fixed:
        if name not in canon.values():
            extra.op("Identity", [canon[group.aliases[name]]], name)
    for name, layout in group.aliases.items():
        if name not in group.fixed and layout in canon and name != canon[layout]:
            scope.rename_uses(name, canon[layout])
    gone = [*group.members[1:], *group.links]
    for handle in gone:
        if not scope.is_removed(handle):
            scope.remove(handle)
    above = [scope.producer.get(scope.nodes[handle].input[0]) for handle in group.members]
    scope.replace(anchor, [*tape.nodes, *extra.nodes])
    scope.sweep([handle for handle in above if handle is not None])
    return Placed(_label(node), rank_last, tuple(rules))


def _mask_input(group: Group, context: Context, tape: Tape, rules: list[str]) -> str:
    """The plugin's input, behind a Cast to BOOL where TensorRT would not hand the type over."""
    of = context.facts.types.of(group.scope, group.mask)
    if len(group.members) > 1:
        rules.append("share")
    if group.mask != group.nodes[0].input[0]:
        rules.append("mask-cast")
    if of.elem_type in PLUGIN_TYPES:
        return group.mask
    return context.flags(tape, group.scope, group.mask)


def _inherit(node: NodeProto, group: Group, rules: list[str]) -> None:
    """Docs and metadata of the replaced nodes live on, with what the tool did beside them."""
    first = group.nodes[0]
    node.doc_string = first.doc_string
    node.metadata_props.extend(e for e in first.metadata_props if e.key != SITE_KEY)
    set_metadata(node, RULE_KEY, ",".join(rules))
    names = [group.scope.label(handle) for handle in [*group.members, *group.links]]
    if len(names) > 1:
        set_metadata(node, REPLACES_KEY, ",".join(names))


def _remember(
    scope: Scope, group: Group, context: Context, indices: str, count: str, rank_last: bool
) -> None:
    """Types of the new outputs."""
    types = context.facts.types
    rank = types.of(scope, group.mask).rank
    dims = (None, rank) if rank_last else (rank, None)
    types.set(scope, indices, TensorType(TensorProto.INT64, dims))
    types.set(scope, count, TensorType(TensorProto.INT64, ()))


def _label(node: NodeProto) -> str:
    return node.name or node.output[0]
