"""hoist, inline-if and inline-function: NonZero comes to the main graph where that is safe."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.graphs import (
    assert_equal_by_reference,
    feeds_of,
    ops,
    outcomes,
    parse,
    plugins,
    rewritten,
)
from onnx import numpy_helper

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.rules import SkipReason

X = "float[n,4] x"


def if_node(then: str, other: str, condition: str = "c", name: str = "") -> str:
    label = f"[{name}]" if name else ""
    return f"""{label} z = If ({condition}) <
        then_branch = tb () => (int64[a,b] o1) {{ {then} }},
        else_branch = eb () => (int64[c,d] o2) {{ {other} }}>"""


def reasons(result: object) -> list[SkipReason | None]:
    return [decision.reason for decision in result.plan.decisions]  # type: ignore[attr-defined]


# -- hoist -----------------------------------------------------------------------------------------


def test_hoist_from_an_if() -> None:
    body = if_node("o1 = NonZero(x)", "i = NonZero(x) o2 = Transpose(i)")
    result = rewritten(parse(f"g ({X}, bool c) => (int64[p,q] z) {{ {body} }}"))
    assert set(outcomes(result).values()) == {"plugin"}
    assert len(plugins(result.model)) == 1, "equal masks are shared after hoisting"


def test_hoisted_and_own_nonzero_share_one_node_in_front_of_both() -> None:
    body = if_node("o1 = NonZero(x)", "o2 = NonZero(x)")
    result = rewritten(
        parse(f"g ({X}, bool c) => (int64[p,q] z, int64[2,k] y) {{ {body} y = NonZero(x) }}")
    )
    assert ops(result.model)[0] == "NonZeroPlugin" and len(plugins(result.model)) == 1


def test_hoist_from_a_nested_if() -> None:
    inner = """o1 = If (c) <
        then_branch = t2 () => (int64[e,f] o3) { m = Greater(x, h) o3 = NonZero(m) },
        else_branch = e2 () => (int64[e,f] o4) { o4 = NonZero(x) }>"""
    body = if_node(inner, "o2 = NonZero(x)")
    text = f"g ({X}, bool c) => (int64[p,q] z) <float h = {{0.5}}> {{ {body} }}"
    result = rewritten(parse(text))
    assert list(outcomes(result).values()) == ["plugin"] * 3
    assert len(plugins(result.model)) == 2


LOOP = """
    y = Loop (trips, go, first) <body = b (int64 i, bool go_in, float[n,4] carried)
        => (bool go_out, float[n,4] next) {{
            go_out = Identity(go_in)
            {mask}
            t = Transpose(indices)
            picked = GatherND(carried, t)
            sum = ReduceSum <keepdims = 0> (picked)
            next = Add(carried, sum)
        }}>"""
LOOP_GRAPH = f"g ({X}, float[n,4] first) => (float[n,4] y) <int64 trips = {{3}}, bool go = {{1}}>"


def test_hoist_an_invariant_mask_from_a_loop() -> None:
    result = rewritten(parse(f"{LOOP_GRAPH} {{ {LOOP.format(mask='indices = NonZero(x)')} }}"))
    assert list(outcomes(result).values()) == ["plugin"]
    assert ops(result.model) == ["NonZeroPlugin", "Loop"]


def test_a_loop_of_no_trips_may_compute_it_all_the_same() -> None:
    text = LOOP_GRAPH.replace("trips = {3}", "trips = {0}")
    rewritten(parse(f"{text} {{ {LOOP.format(mask='indices = NonZero(x)')} }}"))


def test_do_not_hoist_a_varying_mask() -> None:
    body = LOOP.format(mask="m = Greater(carried, x) indices = NonZero(m)")
    result = rewritten(parse(f"{LOOP_GRAPH} {{ {body} }}"))
    assert reasons(result) == [SkipReason.IN_SUBGRAPH] and not result.changed


def test_do_not_hoist_what_may_fail_where_it_never_ran() -> None:
    """Gather may run out of bounds when its branch is not taken."""
    body = if_node("r = Gather(x, row) o1 = NonZero(r)", "o2 = NonZero(x)")
    text = f"g ({X}, int64[1] row, bool c) => (int64[p,q] z) {{ {body} }}"
    result = rewritten(parse(text), given={"row": np.array([5], np.int64), "c": np.array(False)})
    assert sorted(outcomes(result).values()) == ["left", "plugin"]


def test_do_not_hoist_operands_that_may_not_broadcast() -> None:
    body = if_node("m = Greater(x, w) o1 = NonZero(m)", "o2 = NonZero(x)")
    text = f"g ({X}, float[m,4] w, bool c) => (int64[p,q] z) {{ {body} }}"
    result = rewritten(parse(text), sizes={"n": 2, "m": 3}, given={"c": np.array(False)})
    assert sorted(outcomes(result).values()) == ["left", "plugin"]


def test_skip_keeps_a_nonzero_inside() -> None:
    body = if_node("[inside] o1 = NonZero(x)", "[inside] o2 = NonZero(x)")
    model = parse(f"g ({X}, bool c) => (int64[p,q] z) {{ {body} }}")
    result = rewritten(model, skip=("inside",))
    assert reasons(result) == [SkipReason.EXCLUDED] * 2 and not result.changed


def bodies(model: object) -> list[list[str]]:
    """Operators of each graph below the main one."""
    return [
        [node.op_type for node in attr.g.node]
        for outer in model.graph.node  # type: ignore[attr-defined]
        for attr in outer.attribute
        if attr.HasField("g")
    ]


def test_a_hoisted_nonzero_leaves_nothing_behind() -> None:
    then = "m = Greater(x, h) i = NonZero(m) o1 = Transpose(i)"
    body = if_node(then, "i = NonZero(x) t = Transpose(i) o2 = Neg(t)")
    result = rewritten(parse(f"g ({X}, bool c) => (int64[p,q] z) <float h = {{0.5}}> {{ {body} }}"))
    assert bodies(result.model) == [["Identity"], ["Neg"]]
    assert ops(result.model) == ["Greater", "NonZeroPlugin", "NonZeroPlugin", "If"]
    (kept,) = (attr.g.node[0] for attr in result.model.graph.node[-1].attribute[:1])
    assert kept.metadata_props[0].value == "hoist"


def test_hoist_a_mask_that_uses_a_value_twice() -> None:
    then = "n = Neg(x) a = Greater(n, h) b = Less(n, h) m = Or(a, b) o1 = NonZero(m)"
    body = if_node(then, "o2 = NonZero(x)")
    text = f"g ({X}, bool c) => (int64[p,q] z) <float h = {{0.5}}> {{ {body} }}"
    assert set(outcomes(rewritten(parse(text))).values()) == {"plugin"}


def branch_with(tensor: onnx.TensorProto, mask: str = "m = Greater(x, h)") -> onnx.ModelProto:
    """An If whose first branch has an initializer ``h``."""
    body = if_node(f"{mask} o1 = NonZero(m)", "o2 = NonZero(x)")
    model = parse(f"g (float[n,3] x, bool c) => (int64[p,q] z) {{ {body} }}")
    tensor.name = "h"
    model.graph.node[0].attribute[0].g.initializer.append(tensor)
    return model


def test_hoist_takes_a_small_constant_of_the_body_along() -> None:
    model = branch_with(numpy_helper.from_array(np.array(0.5, np.float32)))
    result = rewritten(model)
    assert set(outcomes(result).values()) == {"plugin"}
    new = [node for node in result.model.graph.node if node.op_type == "Constant"]
    assert [node.metadata_props[0].value for node in new] == ["hoist"]


@pytest.mark.parametrize(("items", "outcome"), [(1 << 16, "plugin"), ((1 << 16) + 1, "left")])
def test_hoist_takes_no_large_constant_along(items: int, outcome: str) -> None:
    large = numpy_helper.from_array(np.zeros((items, 1), np.float32))
    result = rewrite_model(branch_with(large, "w = Abs(h) m = Greater(w, w)"))
    assert sorted(outcomes(result).values()) == sorted([outcome, "plugin"])


def test_hoist_takes_no_constant_along_that_lies_in_another_file() -> None:
    elsewhere = onnx.TensorProto(data_type=1, dims=[3], data_location=onnx.TensorProto.EXTERNAL)
    elsewhere.external_data.add(key="location", value="weights.bin")
    result = rewrite_model(branch_with(elsewhere, "m = Abs(h)"))
    assert sorted(outcomes(result).values()) == ["left", "plugin"]


@pytest.mark.parametrize(("length", "outcome"), [(17, "plugin"), (18, "left")])
def test_how_long_a_mask_hoist_takes_along(length: int, outcome: str) -> None:
    chain = " ".join(f"v{n + 1} = Neg({f'v{n}' if n else 'x'})" for n in range(length))
    body = if_node(f"{chain} o1 = NonZero(v{length})", "o2 = NonZero(x)")
    result = rewritten(parse(f"g ({X}, bool c) => (int64[p,q] z) {{ {body} }}"))
    assert sorted(outcomes(result).values()) == sorted([outcome, "plugin"])


def test_a_mask_that_nobody_makes_is_not_hoisted() -> None:
    body = if_node("o1 = NonZero(nowhere)", "o2 = NonZero(x)")
    result = rewrite_model(parse(f"g ({X}, bool c) => (int64[p,q] z) {{ {body} }}"))
    assert sorted(outcomes(result).values()) == ["left", "plugin"]


# -- inline-if -------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [0, 1])
def test_inline_an_if_with_a_constant_condition(taken: int) -> None:
    other = "r = Neg(x) i = NonZero(r) o2 = Transpose(i)"
    body = if_node("r = Gather(x, zero) o1 = NonZero(r)", other)
    constants = f"<bool c = {{{taken}}}, int64[1] zero = {{0}}>"
    result = rewritten(parse(f"g ({X}) => (int64[p,q] z) {constants} {{ {body} }}"))
    assert "If" not in ops(result.model)
    assert sorted(outcomes(result).values()) == ["plugin", "removed"]
    (gone,) = (each for each in result.plan.decisions if each.outcome == "removed")
    assert gone.rules == ("inline-if",)


def test_inline_an_if_whose_condition_folds() -> None:
    """What torch.jit.script leaves: the rank of a value compared with a number."""
    condition = "s = Shape(x) r = Shape(s) q = Squeeze(r) two = Constant <value_int = 2> ()"
    body = if_node("o1 = NonZero(x)", "o2 = NonZero(x)", "e")
    text = f"g ({X}) => (int64[p,q] z) {{ {condition} e = Equal(q, two) {body} }}"
    result = rewritten(parse(text))
    assert "If" not in ops(result.model)


def test_do_not_inline_on_a_default_that_a_caller_may_replace() -> None:
    body = if_node("m = Gather(x, zero) o1 = NonZero(m)", "o2 = NonZero(x)")
    text = f"g ({X}, bool c) => (int64[p,q] z) <bool c = {{1}}, int64[1] zero = {{0}}> {{ {body} }}"
    result = rewritten(parse(text))
    assert "If" in ops(result.model)


def test_inline_keeps_what_the_branch_declares() -> None:
    """Initializers of the branch, a value of its own type, names that exist outside too."""
    body = """z = If (c) <
        then_branch = tb () => (int64[a,b] o1) <float h = {0.5}, seq(float[n,4]) q> {
            m = Greater(x, h) q = SequenceConstruct(x, x) last = SequenceAt(q, at)
            [less] k = Greater(last, h) both = And(m, k) o1 = NonZero(both) },
        else_branch = eb () => (int64[c,d] o2) { o2 = NonZero(x) }>"""
    text = f"""g ({X}) => (int64[p,q] z, bool[n,4] w) <bool c = {{1}}, int64 at = {{1}}> {{
        [less] w = Less(x, x) {body} }}"""
    result = rewritten(parse(text))
    assert "If" not in ops(result.model)


def test_an_if_whose_only_nonzero_shall_stay_where_it_is_stays() -> None:
    body = if_node("[keep] o1 = NonZero(x)", "o2 = Identity(d)")
    text = f"g ({X}, int64[r,s] d) => (int64[p,q] z) <bool c = {{1}}> {{ {body} }}"
    result = rewritten(parse(text), skip=("keep",))
    assert not result.changed and reasons(result) == [SkipReason.EXCLUDED]


def test_an_if_without_nonzero_stays() -> None:
    body = if_node("o1 = Neg(y)", "o2 = Abs(y)")
    text = f"g ({X}) => (int64[p,q] z) <bool c = {{1}}> {{ y = NonZero(x) {body} }}"
    assert ops(rewritten(parse(text)).model) == ["NonZeroPlugin", "If"]


def test_values_of_two_inlined_branches_do_not_mix() -> None:
    first = if_node("m = Neg(x) o1 = NonZero(m)", "o2 = NonZero(x)")
    second = if_node("m = Relu(x) o1 = NonZero(m)", "o2 = NonZero(x)").replace("z =", "w =")
    text = f"g ({X}) => (int64[p,q] z, int64[r,s] w) <bool c = {{1}}> {{ {first} {second} }}"
    result = rewritten(parse(text))
    assert "If" not in ops(result.model)
    renamed = [node for node in result.model.graph.node if node.output[0].startswith("m_inlined")]
    assert [node.metadata_props[0].value for node in renamed] == ["inline-if"] * 2


def test_graphs_within_an_inlined_branch_take_its_values() -> None:
    """Where they have a value of the same name themselves, they keep to that."""
    body = """z = If (c) <
        then_branch = tb () => (int64[a,b] o1) {
            m = Neg(x) s = Neg(x) k = NonZero(m)
            w = Loop (trips, c, k) <
                body = l (int64 s, bool go, int64[e,f] i) => (bool g, int64[e,f] o3) {
                    g = Identity(go) n = Cast <to = 7> (m) j = ReduceMax <keepdims = 0> (n)
                    q = Add(s, j) o3 = Add(i, q) }>
            r = ReduceMax <keepdims = 0> (s) v = Cast <to = 7> (r) o1 = Add(w, v) },
        else_branch = eb () => (int64[c,d] o2) { o2 = NonZero(x) }>"""
    text = f"g (int32[n,4] x) => (int64[p,q] z) <bool c = {{1}}, int64 trips = {{2}}> {{ {body} }}"
    result = rewritten(parse(text))
    assert sorted(outcomes(result).values()) == ["plugin", "removed"]


def test_do_not_inline_where_the_other_branch_must_keep_its_nonzero() -> None:
    body = if_node("r = Neg(x) o1 = NonZero(r)", "[keep] o2 = NonZero(x)")
    text = f"g ({X}) => (int64[p,q] z) <bool c = {{1}}> {{ {body} }}"
    result = rewritten(parse(text), skip=("keep",))
    assert "If" in ops(result.model)
    assert sorted(outcomes(result).values()) == ["left", "plugin"]


@pytest.mark.parametrize("field", ["sparse_initializer", "quantization_annotation"])
def test_do_not_inline_a_branch_with_what_only_a_graph_can_hold(field: str) -> None:
    body = if_node("r = Neg(x) o1 = NonZero(r)", "o2 = NonZero(x)")
    model = parse(f"g ({X}) => (int64[p,q] z) <bool c = {{1}}> {{ {body} }}")
    getattr(model.graph.node[0].attribute[0].g, field).add()
    assert "If" in ops(rewrite_model(model).model)


def test_inline_keeps_the_types_that_only_the_branch_knows() -> None:
    body = """z = If (c) <
        then_branch = tb () => (int64[a,b] o1) <float[e,f] m> {
            m = Reshape(x, d) o1 = NonZero(m) },
        else_branch = eb () => (int64[c,d] o2) { o2 = NonZero(x) }>"""
    text = f"g ({X}, int64[r] d) => (int64[p,q] z) <bool c = {{1}}> {{ {body} }}"
    result = rewritten(parse(text), given={"d": np.array([4, -1])}, sizes={"n": 3})
    assert sorted(outcomes(result).values()) == ["plugin", "removed"]


# -- inline-function -------------------------------------------------------------------------------

FUNCTION = """<domain: "local", opset_import: ["": 17]> pick (a) => (picked) {
    i = NonZero(a) t = Transpose(i) picked = GatherND(a, t) }"""


def test_inline_a_function_called_twice() -> None:
    text = f"""g ({X}, float[m] w) => (float[p] y, float[q] z) {{
        y = local.pick(x) z = local.pick(w) }}"""
    result = rewritten(parse(text, tail=FUNCTION))
    assert ops(result.model) == ["NonZeroPlugin", "GatherND"] * 2
    assert [f.domain for f in result.model.functions] == ["nonzero_rewrite"]
    assert len(result.plan.decisions) == 2 and len(result.sites) == 1


def test_inline_nested_functions() -> None:
    outer = """<domain: "local", opset_import: ["": 17, "local": 1]> outer (a) => (b) {
        n = Neg(a) p = local.pick(n) b = Abs(p) }"""
    text = f"g ({X}) => (float[p] y) {{ y = local.outer(x) }}"
    result = rewritten(parse(text, tail=FUNCTION + outer))
    assert ops(result.model) == ["Neg", "NonZeroPlugin", "GatherND", "Abs"]


def test_functions_without_nonzero_stay() -> None:
    other = """<domain: "local", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }"""
    text = f"g ({X}) => (float[p] y) {{ d = local.twice(x) y = local.pick(d) }}"
    result = rewritten(parse(text, tail=FUNCTION + other))
    assert ops(result.model) == ["twice", "NonZeroPlugin", "GatherND"]
    assert [f.name for f in result.model.functions] == ["twice", "NonZeroPlugin"]


def test_nonzero_in_an_if_of_a_function() -> None:
    function = """<domain: "local", opset_import: ["": 17]> f (a, cond) => (b) {
        b = If (cond) <
            then_branch = tb () => (int64[p,q] o1) { o1 = NonZero(a) },
            else_branch = eb () => (int64[p,q] o2) { n = Not(cond) o2 = NonZero(a) }> }"""
    text = f"g ({X}, bool c) => (int64[p,q] y) {{ y = local.f(x, c) }}"
    result = rewritten(parse(text, tail=function))
    assert set(outcomes(result).values()) == {"plugin"}, "inlined, then hoisted"


def test_a_function_nobody_calls() -> None:
    text = f"g ({X}) => (int64[2,k] y) {{ y = NonZero(x) }}"
    result = rewritten(parse(text, tail=FUNCTION))
    assert outcomes(result) == {"y": "plugin", "function 'local::pick': i": "removed"}
    assert result.plan.decisions[1].rules == ("inline-function",)


def test_skip_keeps_a_function() -> None:
    text = f"g ({X}) => (float[p] y) {{ y = local.pick(x) }}"
    result = rewritten(parse(text, tail=FUNCTION), skip=("function*",))
    assert reasons(result) == [SkipReason.EXCLUDED] and not result.changed


def test_without_the_rule_a_function_stays() -> None:
    from nonzero_rewrite.rules import DEFAULT_RULES

    text = f"g ({X}) => (float[p] y) {{ y = local.pick(x) }}"
    result = rewritten(parse(text, tail=FUNCTION), rules=DEFAULT_RULES - {"inline-function"})
    assert reasons(result) == [SkipReason.IN_FUNCTION] and not result.changed


def test_every_nonzero_is_accounted_for_by_its_own_id() -> None:
    """Also in equally named nodes, which onnxruntime refuses and TensorRT takes."""
    body = if_node("o1 = NonZero(x)", "o2 = NonZero(x)", name="same")
    again = body.replace("z =", "w =")
    text = f"g ({X}, bool c) => (int64[p,q] z, int64[r,s] w) {{ {body} {again} }}"
    model = parse(text)
    model.graph.node[1].name = "If#0"
    model.graph.node[0].name = ""
    decisions = rewrite_model(model).plan.decisions
    assert len({decision.site.id for decision in decisions}) == 4
    assert {decision.outcome for decision in decisions} == {"plugin"}


def test_hoisted_and_inlined_nodes_get_names_of_their_own() -> None:
    """onnxruntime refuses two nodes of one name in a graph, and takes them in two."""
    body = if_node("[nz] o1 = NonZero(x)", "[neg] m = Neg(x) [nz] o2 = NonZero(m)")
    rewritten(parse(f"g ({X}, bool c) => (int64[p,q] z) {{ {body} }}"))
    text = f"g ({X}) => (int64[p,q] z, {X.replace('x', 'w')}) <bool c = {{0}}> "
    rewritten(parse(text + f"{{ [neg] w = Abs(x) {body} }}"))
    function = FUNCTION.replace("i =", "[nz] i =")
    text = f"g ({X}) => (float[p] y, float[q] z, int64[2,k] w) {{ [nz] w = NonZero(x) "
    rewritten(parse(text + "y = local.pick(x) m = Neg(x) z = local.pick(m) }", tail=function))


@pytest.mark.parametrize(
    ("inputs", "tensors"), [(", float[1] t__1", ""), ("", "<float[1] t__1 = {3.0}>")]
)
def test_inlined_values_take_no_name_that_is_taken(inputs: str, tensors: str) -> None:
    """The inliner would call the function's ``t`` so; nothing uses the graph's."""
    text = f"g ({X}{inputs}) => (float[p] y) {tensors} {{ y = local.pick(x) }}"
    result = rewritten(parse(text, tail=FUNCTION))
    assert ops(result.model) == ["NonZeroPlugin", "GatherND"]
    assert all("t__1" not in node.output for node in result.model.graph.node)


def test_inlining_imports_what_the_function_imported() -> None:
    inner = """<domain: "inner", opset_import: ["": 17]> turn (a) => (b) { b = Transpose(a) }"""
    outer = """<domain: "local", opset_import: ["": 17, "inner": 1]> pick (a) => (b) {
        i = NonZero(a) t = inner.turn(i) b = GatherND(a, t) }"""
    text = f"g ({X}) => (float[p] y) {{ y = local.pick(x) }}"
    model = parse(text, tail=inner + outer)
    result = rewrite_model(model)
    assert ops(result.model) == ["NonZeroPlugin", "turn", "GatherND"]
    onnx.checker.check_model(result.model, full_check=True)
    # onnxruntime wants the import in the model from the start; ONNX does not.
    assert assert_equal_by_reference(model, result.model, list(feeds_of(model))) == 12


def test_a_function_of_another_opset_stays() -> None:
    """Its operators mean something else there: axes were an attribute."""
    function = """<domain: "local", opset_import: ["": 11]> pick (a) => (b) {
        i = NonZero(a) u = Unsqueeze <axes = [0]> (i) b = Squeeze <axes = [0]> (u) }"""
    text = f"g ({X}) => (int64[p,q] y) {{ y = local.pick(x) }}"
    result = rewrite_model(parse(text, tail=function))
    assert reasons(result) == [SkipReason.IN_FUNCTION] and not result.changed


def test_inlining_keeps_the_types_that_only_the_function_knows() -> None:
    function = """<domain: "local", opset_import: ["": 17]> pick (a, d) => (b) <float[e,f] m> {
        m = Reshape(a, d) b = NonZero(m) }"""
    text = f"g ({X}, int64[r] d) => (int64[p,q] y) {{ y = local.pick(x, d) }}"
    result = rewritten(
        parse(text, tail=function, ir=10), given={"d": np.array([4, -1])}, sizes={"n": 3}
    )
    assert list(outcomes(result).values()) == ["plugin"]
