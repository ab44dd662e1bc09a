"""The rule that moves a NonZero out of a body, to the main graph.

*hoist*: a NonZero in a body, whose mask follows from values outside by operators that cannot fail,
moves in front of the If or Loop. It may then run where it did not before; it has no effect but its
result.
"""

from __future__ import annotations

from onnx import NodeProto, TensorProto, helper

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import is_onnx
from nonzero_rewrite.rules.context import Context
from nonzero_rewrite.rules.lift import MayGo
from nonzero_rewrite.rules.tape import RULE_KEY, set_metadata
from nonzero_rewrite.tensor_type import MAX_FOLDED_ITEMS, tensor_items

_CANNOT_FAIL = frozenset(
    {
        *("Abs", "Cast", "Constant", "Identity", "IsNaN", "Neg", "Not", "Relu", "Sign"),
        *("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Xor"),
    }
)


def hoist(main: Scope, context: Context, may_go: MayGo) -> None:
    """Move NonZero nodes that ``may_go`` out of bodies where that is safe."""
    for scope in list(main.walk()):
        if scope.parent is None:
            continue
        for handle, node in list(scope.live()):
            if is_onnx(node, "NonZero") and may_go(node):
                order: list[tuple[Scope, int]] = []
                if _liftable(scope, node.input[0], main, context, order, 0):
                    _move(scope, handle, main, context, order)


def _liftable(
    scope: Scope,
    name: str,
    main: Scope,
    context: Context,
    order: list[tuple[Scope, int]],
    depth: int,
) -> bool:
    """True when ``name`` follows from ``main``'s values; ``order`` gets the nodes to move."""
    owner = scope.owner(name)
    if owner is main:
        return True
    if owner is None or depth > 16:
        return False
    handle = owner.producer.get(name)
    if handle is None:
        tensor = owner.initializers.get(name)
        return (
            tensor is not None
            and not owner.is_input(name)
            and tensor.data_location != TensorProto.EXTERNAL
            and tensor_items(tensor) <= MAX_FOLDED_ITEMS
        )
    if (owner, handle) in order:
        return True
    node = owner.nodes[handle]
    if node.op_type not in _CANNOT_FAIL or not is_onnx(node, node.op_type):
        return False
    inputs = [each for each in node.input if each]
    varying = [each for each in inputs if context.facts.scalar(owner, each) is None]
    # Two operands that are both more than one number may fail to broadcast.
    if len(varying) > 1 and not context.facts.same_shape(owner, varying[0], varying[1]):
        return False
    if not all(_liftable(owner, each, main, context, order, depth + 1) for each in inputs):
        return False
    order.append((owner, handle))
    return True


def _move(
    scope: Scope, handle: int, main: Scope, context: Context, order: list[tuple[Scope, int]]
) -> None:
    top = scope
    while top.parent is not main:
        assert top.parent is not None
        top = top.parent
    node = scope.nodes[handle]
    users = scope.users(node.output[0])
    turns = [user for user in users if is_onnx(scope.nodes[user], "Transpose")]
    rename: dict[str, str] = {}
    for owner, each in [*order, (scope, handle), *((scope, turn) for turn in turns)]:
        copy = NodeProto()
        copy.CopyFrom(owner.nodes[each])
        copy.name = context.names.node(copy.name, main)
        for slot, name in enumerate(copy.input):
            if name in rename:
                copy.input[slot] = rename[name]
            elif name and owner.owner(name) is not main:
                defined = owner.owner(name)
                assert defined is not None
                rename[name] = context.names.new(f"{name}_hoisted")
                constant = helper.make_node(
                    "Constant", [], [rename[name]], value=defined.initializers[name]
                )
                set_metadata(constant, RULE_KEY, "hoist")
                main.insert(constant, top.holder)
                copy.input[slot] = rename[name]
        for slot, name in enumerate(copy.output):
            new = context.names.new(f"{name}_hoisted")
            context.facts.types.set(main, new, context.facts.types.of(owner, name))
            copy.output[slot] = rename[name] = new
        set_metadata(copy, RULE_KEY, "hoist")
        main.insert(copy, top.holder)
    for each in [*turns, handle]:
        name = scope.nodes[each].output[0]
        if scope.name_is_fixed(name):
            label = context.names.node(f"{name}_hoisted_node")
            keep = helper.make_node("Identity", [rename[name]], [name], name=label)
            set_metadata(keep, RULE_KEY, "hoist")
            scope.replace(each, [keep])
        else:
            scope.rename_uses(name, rename[name])
            scope.remove(each)
    for owner, each in reversed(order):
        owner.sweep([each])
