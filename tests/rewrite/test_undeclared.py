"""Values whose types nobody declares: each rule asks for the types that it needs, and no others."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from helpers import graphs
from helpers.graphs import misses, ops, outcomes, parse

from nonzero_rewrite.rules import DEFAULT_RULES

rewritten = functools.partial(graphs.rewritten, zero_signs=False)

# Concat is none of the operators whose types follow without ONNX's inference.
X, W = "x = Concat <axis = 0> (a, a)", "w = Concat <axis = 0> (b, a)"
CONSTANTS = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] neg = {-1}, float v = {9.5}"


def model(body: str, declared: str = "") -> str:
    return f"""g (float[3,4] a, float[3,4] b, bool[6,4] m) => (float[6,4] y)
        <{CONSTANTS}{declared}> {{ {X} i = NonZero(m) t = Transpose(i) {body} }}"""


@pytest.mark.parametrize(
    "body",
    [
        "p = GatherND(x, t) u = Neg(p) y = ScatterND(x, t, u)",
        f"{W} p = GatherND(w, t) u = Neg(p) y = ScatterND(x, t, u)",
        f"{W} p = GatherND(w, t) u = Reshape(p, neg) y = ScatterND(x, t, u)",
        f"{W} p = GatherND(w, t) c = Cast <to = 11> (p) u = Cast <to = 1> (c) "
        "y = ScatterND(x, t, u)",
    ],
)
def test_data(body: str) -> None:
    result = rewritten(parse(model(body)), ran=10)
    assert result.plan.decisions[0].rules[0] == "elementwise", misses(result)


@pytest.mark.parametrize("rules", ["where-scatter", "masked-scatter"])
def test_data_that_is_written_to(rules: str) -> None:
    update = "u = Expand(v, k)" if rules == "where-scatter" else "u = Identity(given)"
    text = model(f"s = Shape(t) k = Slice(s, zero, one) {update} y = ScatterND(x, t, u)")
    text = text.replace("bool[6,4] m", "bool[6,4] m, float[q] given")
    result = rewritten(
        parse(text),
        rules=DEFAULT_RULES | {rules},
        given={"given": np.arange(24, dtype=np.float32), "m": np.ones((6, 4), bool)},
    )
    assert result.plan.decisions[0].rules[0] == rules, misses(result)


def test_flags_of_rows_that_are_scattered() -> None:
    text = """g (float[n,4] x, bool[n,1] a, float[k,4] w) => (float[n,4] y)
        <bool[n,4] m, float[q] u, int64[1] neg = {-1}> {
        size = Shape(x) flags = Concat <axis = 0> (a) m = Expand(flags, size)
        i = NonZero(m) t = Transpose(i) u = Reshape(w, neg) y = ScatterND(x, t, u) }"""
    result = rewritten(
        parse(text),
        rules=DEFAULT_RULES | {"masked-scatter"},
        given={"a": np.ones((3, 1), bool), "w": np.arange(12, dtype=np.float32).reshape(3, 4)},
        sizes={"n": 3},
    )
    assert result.plan.decisions[0].rules[0] == "masked-scatter", misses(result)
    assert "Squeeze" in ops(result.model), "rows move, by their flags"


@pytest.mark.parametrize("data", ["x", "w"])
@pytest.mark.parametrize("update", ["u = Div(d, v)", "u = Cast <to = 1> (d)", "u = Neg(d)"])
def test_what_an_operator_takes_where_only_its_result_is_declared(update: str, data: str) -> None:
    body = f"{W} p = GatherND({data}, t) d = Neg(p) {update} "
    text = model(body + "y = ScatterND(x, t, u)", declared=", float[k] u")
    assert outcomes(rewritten(parse(text), ran=10)) == {"i": "removed"}


def test_flags_of_a_mask_that_is_declared() -> None:
    """An Expand to the size that the flags have is looked through."""
    text = """g (bool[3,4] a) => (int64[2,k] y) <bool[6,4] m, int64[2] size = {6, 4}> {
        flags = Concat <axis = 0> (a, a) m = Expand(flags, size) y = NonZero(m) }"""
    result = rewritten(parse(text), ran=10)
    assert ops(result.model) == ["Concat", "NonZeroPlugin"]


def test_data_of_a_sum() -> None:
    text = model("p = GatherND(x, t) q = ReduceSum <keepdims = 0> (p) y = Add(b, q)")
    text = text.replace("(float[6,4] y)", "(float[3,4] y)")
    result = graphs.rewrite_model(parse(text), rules=DEFAULT_RULES | {"where-sum"})
    assert outcomes(result) == {"i": "removed"}, misses(result)
