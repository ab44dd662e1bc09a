"""What the tool writes is named, marked as its own, and takes no name that the model has."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from helpers import graphs
from helpers.graphs import parse
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.node import subgraphs
from nonzero_rewrite.rules import DEFAULT_RULES
from nonzero_rewrite.rules.tape import RULE_KEY

rewritten = functools.partial(graphs.rewritten, zero_signs=False)

TEXTS = {
    "plugin": """g (uint8[n,4] x) => (int64[2,k] a, int64[k,2] b) {
        a = NonZero(x) b = Transpose(a) }""",
    "ramp": """g (float[n,4] x) => (int64[2,k] i) <float one = {1}> {
        s = Shape(x) m = Expand(one, s) i = NonZero(m) }""",
    "where-scatter": """g (float[n,4] x, float[n] m) => (float[n,4] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] four = {4}, float v = {9.5}> {
        c = Cast <to = 7> (m) i = NonZero(c) t = Transpose(i) s = Shape(t) k = Slice(s, zero, one)
        d = Concat <axis = 0> (k, four) u = Expand(v, d) y = ScatterND(x, t, u) }""",
    "masked-scatter": """g (float[n,4] x, bool[n,4] m, float[64] u) => (float[n,4] y)
        <int64[1] zero = {0}, int64[1] one = {1}> {
        i = NonZero(m) t = Transpose(i) s = Shape(t) k = Slice(s, zero, one)
        w = Slice(u, zero, k, zero) y = ScatterND(x, t, w) }""",
    "count": """g (float[n,4] x) => (int64[2] y, int64 z) {
        i = NonZero(x) y = Shape(i) z = Size(i) }""",
    "hoist": """g (float[n,4] x, bool c) => (int64[p,q] z) <float h = {0.5}> {
        [cond] z = If (c) <
            then_branch = tb () => (int64[a,b] o1) <float h2 = {0.25}> {
                [gt] m = Greater(x, h2) [nz] o1 = NonZero(m) },
            else_branch = eb () => (int64[c,d] o2) { [nz] o2 = NonZero(x) }> }""",
    "inline-if": """g (float[n,4] x) => (int64[p,q] z) <bool c = {1}> {
        [cond] z = If (c) <
            then_branch = tb () => (int64[a,b] o1) <float h2 = {0.25}> {
                [gt] m = Greater(x, h2) [nz] o1 = NonZero(m) },
            else_branch = eb () => (int64[c,d] o2) { [nz] o2 = NonZero(x) }> }""",
}
RULES = DEFAULT_RULES | {"masked-scatter"}


def nodes_below(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for _, body in subgraphs(node):
            yield from nodes_below(body)


def written(model: ModelProto) -> list[NodeProto]:
    return [
        node
        for node in nodes_below(model.graph)
        if any(entry.key == RULE_KEY for entry in node.metadata_props)
    ]


@pytest.mark.parametrize("rule", TEXTS)
def test_what_makes_a_value_now_and_did_not_before_is_marked_and_named(rule: str) -> None:
    model = parse(TEXTS[rule])
    before = {(node.op_type, *node.output) for node in nodes_below(model.graph)}
    result = rewritten(model, rules=RULES)
    assert any(rule in decision.rules for decision in result.plan.decisions)
    new = [n for n in nodes_below(result.model.graph) if (n.op_type, *n.output) not in before]
    assert new and new == [node for node in written(result.model) if node in new]
    ours = [node for node in new if node.op_type not in ("NonZeroPlugin", "Constant")]
    assert all(node.name for node in ours)


@pytest.mark.parametrize("kind", ["node", "input", "initializer"])
@pytest.mark.parametrize("rule", TEXTS)
def test_names_that_the_model_has_are_not_taken(rule: str, kind: str) -> None:
    """The names that the tool would give are all there already, used by something else."""
    model = parse(TEXTS[rule])
    had = {name for node in nodes_below(model.graph) for name in node.output}
    new = written(rewrite_model(model, rules=RULES).model)
    values = dict.fromkeys(name for node in new for name in node.output if name not in had)
    graph = model.graph
    for number, name in enumerate(values):
        label = new[number % len(new)].name if number < len(new) else ""
        if kind == "node":
            graph.node.append(helper.make_node("Identity", [graph.input[0].name], [name], label))
        elif kind == "input":
            graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]))
        else:
            tensor = numpy_helper.from_array(graphs.array(TensorProto.FLOAT, [2], "all"), name)
            graph.initializer.append(tensor)
            graph.node.append(helper.make_node("Identity", [name], [f"{name}_copy"], label))
            graph.output.append(helper.make_tensor_value_info(f"{name}_copy", 1, [2]))
    result = rewritten(model, rules=RULES)
    names = [node.name for node in result.model.graph.node if node.name]
    assert len(names) == len(set(names))
