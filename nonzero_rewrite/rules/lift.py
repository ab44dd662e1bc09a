"""Rules that bring a NonZero to the main graph, the only place where TensorRT allows it.

*inline-function*: functions that hold a NonZero, directly or through what they call, are inlined by
ONNX's own inliner. It works on a model without weights, so nothing else is touched.
*inline-if*: an If whose condition is a constant becomes the branch it takes.
*hoist*: a NonZero in a body, whose mask follows from values outside by operators that cannot fail,
moves in front of the If or Loop. It may then run where it did not before; it has no effect but its
result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from nonzero_plugin.contract import DOMAIN
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from nonzero_rewrite.graph import Scope, is_onnx, subgraphs
from nonzero_rewrite.rules.context import Context
from nonzero_rewrite.rules.tape import RULE_KEY, set_metadata
from nonzero_rewrite.tensor_type import tensor_items
from nonzero_rewrite.values import MAX_FOLDED_ITEMS

FunctionId = tuple[str, str]
MayGo = Callable[[NodeProto], bool]
"""Says of a NonZero whether it may leave the place where it is."""


def _nodes_below(proto: GraphProto | FunctionProto) -> list[NodeProto]:
    nodes = []
    for node in proto.node:
        nodes.append(node)
        for _, graph in subgraphs(node):
            nodes += _nodes_below(graph)
    return nodes


def functions_to_inline(model: ModelProto, may_go: MayGo) -> list[FunctionId]:
    """Functions that hold a NonZero that ``may_go``, or call one that does, ours not counted."""
    names: list[FunctionId] = []
    callers: dict[FunctionId, list[FunctionId]] = defaultdict(list)
    marked: set[FunctionId] = set()
    for function in model.functions:
        name = (function.domain, function.name)
        if function.domain == DOMAIN:
            continue
        nodes = _nodes_below(function)
        names.append(name)
        for called in {(node.domain, node.op_type) for node in nodes}:
            callers[called].append(name)
        if any(is_onnx(node, "NonZero") and may_go(node) for node in nodes):
            marked.add(name)
    queue = list(marked)
    while queue:
        above = [name for name in callers[queue.pop()] if name not in marked]
        marked.update(above)
        queue += above
    return [name for name in names if name in marked]


def inline_functions(model: ModelProto, functions: list[FunctionId]) -> bool:
    """Inline ``functions`` everywhere in ``model``; False where ONNX's inliner refuses."""
    graph = model.graph
    skeleton = ModelProto(ir_version=model.ir_version)
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    skeleton.graph.name = graph.name
    skeleton.graph.node.extend(graph.node)
    skeleton.graph.input.extend(graph.input)
    skeleton.graph.output.extend(graph.output)
    inputs = {value.name for value in graph.input}
    for tensor in graph.initializer:  # their names are taken, their data is not needed
        if tensor.name not in inputs:
            skeleton.graph.input.append(helper.make_empty_tensor_value_info(tensor.name))
    import onnx.inliner  # not imported by onnx itself

    try:
        inlined = onnx.inliner.inline_selected_functions(skeleton, functions)
    except (RuntimeError, ValueError, onnx.checker.ValidationError):  # recursion, broken functions
        return False
    left = {(function.domain, function.name) for function in inlined.functions}
    if left & set(functions):
        return False
    del graph.node[:]
    graph.node.extend(inlined.graph.node)
    known = {value.name for value in graph.value_info}
    graph.value_info.extend(v for v in inlined.graph.value_info if v.name not in known)
    kept = [f for f in model.functions if (f.domain, f.name) in left]
    del model.functions[:]
    model.functions.extend(kept)
    domains = {entry.domain for entry in model.opset_import}
    model.opset_import.extend(e for e in inlined.opset_import if e.domain not in domains)
    return True


def inline_constant_ifs(main: Scope, context: Context, may_go: MayGo) -> bool:
    """Replace the Ifs whose condition is constant and that hold a NonZero that ``may_go``.

    True when one was; the index is stale then, and a branch that was taken may hold more.
    """
    found = [
        (scope, child)
        for scope in main.walk()
        for child in scope.children
        if is_onnx(scope.nodes[child.holder], "If")
        and any(
            is_onnx(each, "NonZero") and may_go(each)
            for _, graph in subgraphs(scope.nodes[child.holder])
            for each in _nodes_below(graph)
        )
    ]
    context.facts.need_shapes((scope, scope.nodes[child.holder].input[0]) for scope, child in found)
    spliced: set[int] = set()
    for scope, child in found:
        if scope.is_removed(child.holder) or _is_below(scope, spliced):
            continue
        value = context.facts.constant(scope, scope.nodes[child.holder].input[0])
        if value is None or value.size != 1:
            continue
        wanted = "then_branch" if bool(value.reshape(-1)[0]) else "else_branch"
        branches = scope.held_by(child.holder)
        taken = next(each for each in branches if each.path.endswith(wanted))
        if not all(
            may_go(each)
            for other in branches
            if other is not taken
            for each in _nodes_below(other.proto)
            if is_onnx(each, "NonZero")
        ):
            continue
        if taken.proto.sparse_initializer or taken.proto.quantization_annotation:
            continue  # the graph around it may hold things of that name
        spliced.update(map(id, branches))
        _splice(scope, taken, context)
    if spliced:
        main.flush()
    return bool(spliced)


def _is_below(scope: Scope | None, spliced: set[int]) -> bool:
    while scope is not None and id(scope) not in spliced:
        scope = scope.parent
    return scope is not None


def _splice(scope: Scope, branch: Scope, context: Context) -> None:
    """Put the nodes of ``branch`` where its If stands."""
    holder = branch.holder
    node = scope.nodes[holder]
    graph = branch.proto
    assert isinstance(graph, GraphProto)
    own = {name for each in graph.node for name in each.output if name}
    own |= {tensor.name for tensor in graph.initializer}
    rename = {name: context.names.new(name + "_inlined") for name in sorted(own)}
    nodes, tensors = [], []
    for tensor in graph.initializer:
        if context.facts.ir_version >= 4:
            tensors.append(tensor)  # as it is: a node's attribute may not lie in another file
        else:  # where every initializer has to be an input of the graph
            nodes.append(helper.make_node("Constant", [], [rename[tensor.name]], value=tensor))
    for each in graph.node:
        copy = NodeProto()
        copy.CopyFrom(each)
        copy.name = context.names.node(copy.name, scope)
        _rename(copy, rename)
        nodes.append(copy)
    for outer, inner in zip(node.output, graph.output, strict=True):
        if outer:
            name = rename.get(inner.name, inner.name)
            nodes.append(
                helper.make_node(
                    "Identity", [name], [outer], name=context.names.node(f"{outer}_inlined_node")
                )
            )
    for each in nodes:
        set_metadata(each, RULE_KEY, "inline-if")
    infos = [value for value in graph.value_info if value.name in rename]
    for each in (*infos, *tensors):
        each.name = rename[each.name]
    scope.replace(holder, nodes)
    scope.proto.value_info.extend(infos)
    scope.proto.initializer.extend(tensors)


def _rename(node: NodeProto, rename: dict[str, str]) -> None:
    """Rename values in a node and in the graphs it carries, where those do not define the name."""
    for names in (node.input, node.output):
        for slot, name in enumerate(names):
            if name in rename:
                names[slot] = rename[name]
    for _, graph in subgraphs(node):
        own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        own |= {name for each in graph.node for name in each.output}
        inner = {old: new for old, new in rename.items() if old not in own}
        for each in graph.node:
            _rename(each, inner)
        for value in graph.output:
            if value.name in inner:
                value.name = inner[value.name]


_CANNOT_FAIL = frozenset(
    {
        *("Abs", "Cast", "Constant", "Identity", "IsNaN", "Neg", "Not", "Relu", "Sign"),
        *("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Xor"),
    }
)


def hoist(main: Scope, context: Context, may_go: MayGo) -> int:
    """Move NonZero nodes that ``may_go`` out of bodies where that is safe; returns how many did."""
    moved = 0
    for scope in list(main.walk()):
        if scope.parent is None:
            continue
        for handle, node in list(scope.live()):
            if is_onnx(node, "NonZero") and may_go(node):
                order: list[tuple[Scope, int]] = []
                if _liftable(scope, node.input[0], main, context, order, 0):
                    _move(scope, handle, main, context, order)
                    moved += 1
    return moved


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
    turns = [
        user
        for user in scope.users(node.output[0])
        if is_onnx(scope.nodes[user], "Transpose") and not scope.is_removed(user)
    ]
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
