"""Rules that bring a NonZero to the main graph, the only place where TensorRT allows it.

*inline-function*: functions that hold a NonZero, directly or through what they call, are inlined by
ONNX's own inliner. It works on a model without weights, so nothing else is touched.
*inline-if*: an If whose condition is a constant becomes the branch it takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, helper

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import is_onnx, subgraphs
from nonzero_rewrite.rules.context import Context
from nonzero_rewrite.rules.tape import RULE_KEY, set_metadata

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
    """Functions that hold a NonZero that ``may_go``, or call one that does."""
    names: list[FunctionId] = []
    callers: dict[FunctionId, list[FunctionId]] = defaultdict(list)
    marked: set[FunctionId] = set()
    for function in model.functions:
        name = (function.domain, function.name)
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
    del graph.node[:]
    graph.node.extend(inlined.graph.node)
    known = {value.name for value in graph.value_info}
    graph.value_info.extend(v for v in inlined.graph.value_info if v.name not in known)
    imports = {entry.domain: entry for entry in model.opset_import}
    for number in reversed(range(len(model.functions))):
        function = model.functions[number]
        if (function.domain, function.name) not in left:
            for entry in function.opset_import:
                if entry.domain not in imports:
                    imports[entry.domain] = model.opset_import.add(
                        domain=entry.domain, version=entry.version
                    )
            del model.functions[number]
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
    spliced = False
    for scope, child in found:
        value = context.facts.constant(scope, scope.nodes[child.holder].input[0])
        if value is None or value.size != 1:
            continue
        wanted = "then_branch" if bool(value.item()) else "else_branch"
        branches = scope.held_by(child.holder)  # none where the other branch was looked at before
        taken = next((each for each in branches if each.path.endswith(wanted)), None)
        if taken is None or len(taken.outputs) != len(scope.nodes[child.holder].output):
            continue  # no If that a runtime would take
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
        spliced = True
        _splice(scope, taken, context)
    if spliced:
        main.flush()
    return spliced


def _splice(scope: Scope, branch: Scope, context: Context) -> None:
    """Put the nodes of ``branch`` where its If stands."""
    holder = branch.holder
    node = scope.nodes[holder]
    graph = branch.proto
    assert isinstance(graph, GraphProto)
    own = {name for each in graph.node for name in each.output if name}
    own |= {tensor.name for tensor in graph.initializer}
    rename = {name: context.names.new(name + "_inlined") for name in sorted(own)}
    nodes = []
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
    for each in (*infos, *graph.initializer):
        each.name = rename[each.name]
    scope.replace(holder, nodes)
    scope.proto.value_info.extend(infos)
    # As initializers, since a node's attribute may not lie in another file.
    scope.proto.initializer.extend(graph.initializer)


def _rename(node: NodeProto, rename: dict[str, str]) -> None:
    """Rename values in a node and in the graphs it carries, where those do not define the name."""
    for names in (node.input, node.output):
        for slot, name in enumerate(names):
            if name in rename:
                names[slot] = rename[name]
    for _, graph in subgraphs(node):
        own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        inner = {old: new for old, new in rename.items() if old not in own}
        for each in graph.node:
            _rename(each, inner)
        for value in graph.output:
            if value.name in inner:
                value.name = inner[value.name]
