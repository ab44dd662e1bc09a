"""What a rewrite does around its rules: in how many rounds, and what it says of a change."""

from __future__ import annotations

import functools
import gc

import pytest
from helpers import graphs
from helpers.graphs import misses, ops, outcomes, parse
from nonzero_plugin.contract import DOMAIN

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.rewrite import rewrite
from nonzero_rewrite.rules import DEFAULT_RULES

rewritten = functools.partial(graphs.rewritten, zero_signs=False)


def test_what_a_write_becomes_can_prove_the_next_one() -> None:
    """The last write comes first, by the first Transpose; that its data is as large as the mask
    shows when the other one is a Where, as no dimension has a name or a size."""
    text = """g (float[?,?] x) => (float[?,?] y)
        <int64[1] zero = {0}, int64[1] one = {1}, float v = {9.5}, float h = {0.5}> {
        m = Greater(x, h) i = NonZero(m) t = Transpose(i) t2 = Transpose(i)
        s = Shape(t) k = Slice(s, zero, one) u = Expand(v, k) z = ScatterND(x, t2, u)
        p = GatherND(z, t) w = Neg(p) y = ScatterND(x, t, w) }"""
    result = rewritten(parse(text), given={"x": graphs.array(1, [3, 4], "some")})
    assert outcomes(result) == {"i": "removed"} and misses(result) == {}
    assert ops(result.model).count("Where") == 2


def test_an_if_that_became_its_branch_is_a_change_even_where_nothing_else_is() -> None:
    text = """g (float[n,4] x) => (int64[p,q] z) <bool c = {1}> {
        z = If (c) <then_branch = a () => (int64[r,s] o1) { o1 = NonZero(x) },
                    else_branch = b () => (int64[r,s] o2) { n = Neg(x) o2 = NonZero(n) }> }"""
    result = rewritten(parse(text), rules={"inline-if"})
    assert result.changed and ops(result.model) == ["NonZero", "Identity"]


def test_a_model_that_needs_no_plugin_does_not_carry_it() -> None:
    model = parse("g (float[n,4] x) => (int64[2] y) { i = NonZero(x) y = Shape(i) }")
    patched = rewritten(model).model
    assert not patched.functions and all(e.domain != DOMAIN for e in patched.opset_import)
    assert patched.ir_version == model.ir_version


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_afterwards_as_it_was_before(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        rewrite_model(parse("g (float[n] x) => (int64[p,q] y) { y = NonZero(x) }"))
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_no_garbage_is_looked_for_meanwhile() -> None:
    chain = " ".join(f"v{n + 1} = Neg(v{n})" for n in range(500))
    text = f"g (float[n,4] v0) => (int64[2,k] y, float[n,4] v500) {{ y = NonZero(v0) {chain} }}"
    model, runs, before = parse(text), [], gc.get_threshold()
    note = lambda phase, info: runs.append(info["generation"])  # noqa: E731
    gc.collect()
    gc.callbacks.append(note)
    gc.set_threshold(100)
    try:
        rewrite(model)
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
    assert len(runs) < 5, "one where it begins or ends, and none for each hundred objects"


def test_rules_that_are_off_do_not_run() -> None:
    text = "g (float[n,4] x) => (float[n,4] y) { i = NonZero(x) y = Neg(x) }"
    result = rewritten(parse(text), rules=DEFAULT_RULES - {"unused"})
    assert outcomes(result) == {"i": "plugin"}
