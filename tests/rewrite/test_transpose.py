"""plugin and transpose: who uses the indices in which layout, and what stands there afterwards."""

from __future__ import annotations

import onnx
import pytest
from helpers.graphs import misses, ops, outcomes, parse, perm, plugins, rewritten

from nonzero_rewrite.rules.tape import RULE_KEY

ROWS_FIRST, ROWS_LAST = [0, 1], [1, 0]
X = "float[n,4] x"


def test_used_directly() -> None:
    result = rewritten(parse(f"g ({X}) => (int64[2,k] y) {{ y = NonZero(x) }}"))
    assert ops(result.model) == ["NonZeroPlugin"]
    assert perm(plugins(result.model)[0]) == ROWS_FIRST
    assert result.plan.decisions[0].rules == ("plugin",)
    assert result.plan.decisions[0].node == "y", "an unnamed node is known by its first output"
    assert [entry.key for entry in plugins(result.model)[0].metadata_props] == [RULE_KEY]


@pytest.mark.parametrize("attribute", ["<perm = [1, 0]>", ""])
def test_used_behind_transpose(attribute: str) -> None:
    text = f"g ({X}) => (int64[k,2] y) {{ i = NonZero(x) y = Transpose {attribute} (i) }}"
    result = rewritten(parse(text))
    assert ops(result.model) == ["NonZeroPlugin"]
    (node,) = plugins(result.model)
    assert perm(node) == ROWS_LAST and node.output[0] == "y"
    assert result.plan.decisions[0].rules == ("plugin", "transpose")


def test_an_identity_transpose_turns_nothing() -> None:
    text = f"g ({X}) => (int64[2,k] y) {{ i = NonZero(x) y = Transpose <perm = [0, 1]> (i) }}"
    result = rewritten(parse(text))
    assert ops(result.model) == ["NonZeroPlugin"]
    assert perm(plugins(result.model)[0]) == ROWS_FIRST


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        # Both layouts are graph outputs.
        ("int64[2,k] a, int64[k,2] b", "a = NonZero(x) b = Transpose <perm = [1, 0]> (a)"),
        # One is used inside, the other an output.
        (
            "int64[2,k] a, float[k] y",
            "a = NonZero(x) t = Transpose <perm = [1, 0]> (a) y = GatherND(x, t)",
        ),
        (
            "int64[k,2] t, int64[2] s",
            "a = NonZero(x) t = Transpose <perm = [1, 0]> (a) s = Shape(a)",
        ),
        # The output's name belongs to a second Transpose that turns nothing.
        (
            "int64[2,k] a, int64[k,2] b",
            "a = NonZero(x) t = Transpose <perm = [1, 0]> (a) b = Transpose <perm = [0, 1]> (t)",
        ),
        # ... or that turns back and forth.
        (
            "int64[2,k] a, int64[k,2] b",
            """a = NonZero(x) t = Transpose (a) u = Transpose (t) v = Identity(u)
               b = Transpose <perm = [1, 0]> (v)""",
        ),
        # ... or to an Identity.
        (
            "int64[2,k] a, int64[k,2] b",
            "a = NonZero(x) t = Transpose (a) b = Identity(t)",
        ),
    ],
)
def test_both_layouts_leave_one_transpose(outputs: str, body: str) -> None:
    result = rewritten(parse(f"g ({X}) => ({outputs}) {{ {body} }}"))
    assert len(plugins(result.model)) == 1
    assert perm(plugins(result.model)[0]) == ROWS_FIRST
    assert ops(result.model).count("Transpose") == 1


def test_double_transpose_is_none() -> None:
    text = f"g ({X}) => (int64[2,k] y) {{ i = NonZero(x) t = Transpose(i) y = Transpose(t) }}"
    result = rewritten(parse(text))
    assert ops(result.model) == ["NonZeroPlugin"]
    assert perm(plugins(result.model)[0]) == ROWS_FIRST


def test_identity_between() -> None:
    text = f"""g ({X}) => (float[k] y) {{
        i = NonZero(x) j = Identity(i) t = Transpose(j) u = Identity(t) y = GatherND(x, u) }}"""
    result = rewritten(parse(text))
    assert ops(result.model) == ["NonZeroPlugin", "GatherND"]


def test_transpose_with_several_consumers() -> None:
    text = f"""g ({X}) => (float[k] y, float[k] z, int64[2] s) {{
        i = NonZero(x) t = Transpose(i) y = GatherND(x, t) n = Neg(x) z = GatherND(n, t)
        s = Shape(t) }}"""
    result = rewritten(parse(text))
    assert ops(result.model) == ["NonZeroPlugin", "GatherND", "Neg", "GatherND", "Shape"]


def test_several_transposes_become_none() -> None:
    text = f"""g ({X}) => (float[k] y, float[k] z) {{
        i = NonZero(x) t = Transpose(i) u = Transpose <perm = [1, 0]> (i)
        y = GatherND(x, t) z = GatherND(x, u) }}"""
    result = rewritten(parse(text))
    assert ops(result.model) == ["NonZeroPlugin", "GatherND", "GatherND"]


def test_two_outputs_of_one_layout_keep_their_names() -> None:
    text = f"""g ({X}) => (int64[k,2] a, int64[k,2] b) {{
        i = NonZero(x) a = Transpose(i) b = Transpose <perm = [1, 0]> (i) }}"""
    result = rewritten(parse(text))
    assert ops(result.model) == ["NonZeroPlugin", "Identity"]


CAPTURED = """
    y = If (c) <
        then_branch = tb () => (float[p] p1) {{ p1 = GatherND(x, {name}) }},
        else_branch = eb () => (float[q] q1) {{ n = Neg(x) q1 = GatherND(n, {name}) }}
    >"""


def test_transpose_captured_by_a_body() -> None:
    body = "i = NonZero(x) t = Transpose(i)" + CAPTURED.format(name="t")
    result = rewritten(parse(f"g ({X}, bool c) => (float[k] y) {{ {body} }}"))
    assert ops(result.model) == ["NonZeroPlugin", "If"]
    assert plugins(result.model)[0].output[0] == "t", "bodies keep the names they take"


def test_the_name_that_a_body_takes_is_the_one_that_stays() -> None:
    body = "i = NonZero(x) t = Transpose(i) u = Identity(t)" + CAPTURED.format(name="u")
    result = rewritten(parse(f"g ({X}, bool c) => (float[k] y) {{ {body} }}"))
    assert ops(result.model) == ["NonZeroPlugin", "If"]


def test_both_layouts_captured() -> None:
    body = "i = NonZero(x) t = Transpose(i)" + CAPTURED.format(name="t")
    body += "s = If (c) <then_branch = a () => (int64[2] s1) { s1 = Shape(i) },"
    body += "else_branch = b () => (int64[2] s2) { s2 = Shape(t) }>"
    result = rewritten(parse(f"g ({X}, bool c) => (float[k] y, int64[2] s) {{ {body} }}"))
    assert ops(result.model) == ["NonZeroPlugin", "Transpose", "If", "If"]


def test_a_body_returns_the_captured_indices() -> None:
    text = f"""g ({X}, bool c) => (int64[a,b] y) {{
        i = NonZero(x) t = Transpose(i)
        y = If (c) <then_branch = tb () => (int64[a1,b1] t) {{ }},
                    else_branch = eb () => (int64[a2,b2] j) {{ j = Identity(i) }}> }}"""
    model = parse(text)
    # onnxruntime wants a branch to have a node, so the captured name goes through Identity.
    branch = model.graph.node[2].attribute[0].g
    branch.node.append(onnx.helper.make_node("Identity", ["t"], ["t_out"]))
    branch.output[0].name = "t_out"
    result = rewritten(model)
    assert len(plugins(result.model)) == 1


def test_keep_transpose() -> None:
    text = f"g ({X}) => (float[k] y) {{ i = NonZero(x) t = Transpose(i) y = GatherND(x, t) }}"
    result = rewritten(parse(text), rules=_without("transpose"))
    assert ops(result.model) == ["NonZeroPlugin", "Transpose", "GatherND"]
    assert perm(plugins(result.model)[0]) == ROWS_FIRST
    assert result.plan.decisions[0].rules == ("plugin",)


@pytest.mark.parametrize(
    ("outputs", "body", "kept"),
    [
        ("int64[2,k] a, int64[k,2] b", "a = NonZero(x) b = Transpose(a)", ["Transpose"]),
        ("int64[k,2] b", "a = NonZero(x) b = Transpose(a)", ["Transpose"]),
        ("int64[2,k] a, int64[2,k] b", "a = NonZero(x) b = NonZero(x)", ["Identity"]),
        ("int64[2,j] b", "a = NonZero(x) b = Concat <axis = 1> (a, a)", ["Concat"]),
    ],
)
def test_keep_transpose_where_indices_are_outputs(outputs: str, body: str, kept: list[str]) -> None:
    result = rewritten(parse(f"g ({X}) => ({outputs}) {{ {body} }}"), rules=_without("transpose"))
    assert ops(result.model) == ["NonZeroPlugin", *kept]


def test_without_plugin_rule_nothing_is_placed() -> None:
    model = parse(f"g ({X}) => (int64[2,k] y) {{ y = NonZero(x) }}")
    result = rewritten(model, rules=_without("plugin"))
    assert not result.changed and outcomes(result) == {"y": "left"}
    assert misses(result) == {}


def _without(name: str) -> frozenset[str]:
    from nonzero_rewrite.rules import DEFAULT_RULES

    return DEFAULT_RULES - {name}


def test_swap_shows_only_in_the_values() -> None:
    """Two hits in a matrix of two columns: both layouts are 2 x 2."""
    import numpy as np

    text = "g (float[2,3] x) => (int64[2,k] a, int64[k,2] b) { a = NonZero(x) b = Transpose(a) }"
    x = np.zeros((2, 3), np.float32)
    x[0, 2] = x[1, 0] = 1
    rewritten(parse(text), given={"x": x})


def test_every_rank_and_layout() -> None:
    for rank in range(1, 7):
        dims = ",".join(["n", "3", "2", "2", "1", "2"][:rank])
        text = f"""g (float[{dims}] x) => (int64[{rank},k] a, float[k] y) {{
            a = NonZero(x) t = Transpose(a) y = GatherND(x, t) }}"""
        assert len(plugins(rewritten(parse(text)).model)) == 1
