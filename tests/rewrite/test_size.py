"""size-from-indices: sizes that torch.export sums over the mask come from the indices."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from helpers import graphs
from helpers.graphs import ops, parse

from nonzero_rewrite import Options
from nonzero_rewrite.rules import DEFAULT_RULES

rewritten = functools.partial(graphs.rewritten, zero_signs=False)

NZ = "i = NonZero(m) t = Transpose <perm = [1, 0]> (i)"
SUM = "fl = Reshape(m, minus) ones = Cast <to = 7> (fl) k = ReduceSum(ones)"
CONSTANTS = (
    "int64[1] zero = {0}, int64[1] one = {1}, int64[1] minus = {-1}, int64[1] four = {4}, "
    "int64[2] both = {0, 1}, float two = {2}"
)


def model(
    body: str,
    x: str = "float[n] x",
    m: str = "bool[n] m",
    y: str = "float[n] y",
    more: str = "",
    opset: int = 18,
) -> graphs.ModelProto:
    text = f"g ({x}, {m}{more}) => ({y}) <{CONSTANTS}> {{ {body} }}"
    return parse(text, opset=opset)


# What is written varies, and is not exact item by item: the NonZero stays.
VALUES = "g = GatherND(x, t) h = Tanh(g)"


def by_the_rule(result: object) -> bool:
    decisions = result.plan.decisions  # type: ignore[attr-defined]
    return any("size-from-indices" in decision.rules for decision in decisions)


@pytest.mark.parametrize("opset", [13, 16, 18, 21])
def test_a_write_as_torch_export_spells_it(opset: int) -> None:
    body = f"{NZ} {VALUES} {SUM} e = Expand(h, k) u = Reshape(e, minus) y = ScatterND(x, t, u)"
    result = rewritten(model(body, opset=opset), ran=12)
    assert by_the_rule(result) and "ReduceSum" not in ops(result.model)


@pytest.mark.parametrize(
    "total",
    [
        "k = ReduceSum <keepdims = 1> (ones)",
        "k = ReduceSum <keepdims = 1> (ones, zero)",
        "k = ReduceSum <keepdims = 1> (ones, minus)",
        "k0 = ReduceSum <keepdims = 0> (ones) k = Unsqueeze(k0, zero)",
        "k0 = ReduceSum <keepdims = 0, noop_with_empty_axes = 0> (ones) k = Reshape(k0, minus)",
    ],
)
def test_sums_over_everything(total: str) -> None:
    """Used as the end of a Slice, where no ScatterND shows what the size must be."""
    ones = "fl = Reshape(m, minus) ones = Cast <to = 7> (fl)"
    body = f"{NZ} {VALUES} {ones} {total} s = Slice(x, zero, k, zero) y = Add(s, h)"
    result = rewritten(model(body, y="float[q] y"), ran=12)
    assert by_the_rule(result) and "ReduceSum" not in ops(result.model)


def test_a_mask_of_two_dims_keeps_the_dims_of_its_sum() -> None:
    ones = "ones = Cast <to = 7> (m) k2 = ReduceSum(ones) k = Reshape(k2, minus)"
    body = f"{NZ} {VALUES} {ones} c = Expand(two, k) y = Add(c, h) z = Identity(k2)"
    one = model(body, x="float[n,3] x", m="bool[n,3] m", y="float[q] y, int64[a,b] z")
    result = rewritten(one, ran=12)
    assert by_the_rule(result) and "ReduceSum" not in ops(result.model)


def test_a_mask_that_is_expanded_has_a_sum_of_its_own() -> None:
    """Where both masks have as many items the sum fits; where they have not, it never did."""
    wide = "s = Shape(x) w = Expand(m, s) i = NonZero(w) t = Transpose <perm = [1, 0]> (i)"
    body = f"{wide} {SUM} e = Expand(v, k) u = Reshape(e, minus) y = ScatterND(x, t, u)"
    feeds = {"m": np.array([1, 0, 1], bool), "v": np.array([5, 6], np.float32)}
    one = model(body, m="bool[q] m", more=", float[r] v")
    result = rewritten(one, given=feeds, sizes={"n": 3}, ran=4)
    assert by_the_rule(result) and "ReduceSum" not in ops(result.model)
    # One flag for all: the sum is 1, and v has as many items as are written.
    feeds = {"m": np.array([1], bool), "v": np.array([5, 6, 7], np.float32)}
    rewritten(one, given=feeds, sizes={"n": 3}, ran=4)


def test_rows_with_their_size() -> None:
    wide = (
        "f = Unsqueeze(m, minus) s = Shape(x) w = Expand(f, s) i = NonZero(w) "
        "t = Transpose <perm = [1, 0]> (i)"
    )
    body = f"{wide} {SUM} c = Concat <axis = 0> (k, four) e = Expand(v, c) u = Reshape(e, minus)"
    result = rewritten(
        model(
            f"{body} y = ScatterND(x, t, u)",
            x="float[n,4] x",
            m="bool[q] m",
            y="float[n,4] y",
            more=", float[4] v",
        ),
        ran=8,
    )
    assert by_the_rule(result) and "ReduceSum" not in ops(result.model)


@pytest.mark.parametrize(
    ("body", "y"),
    [
        # No size of anything.
        (f"{NZ} {VALUES} {SUM} kf = Cast <to = 1> (k) y = Add(h, kf)", "float[q] y"),
        # In front of the indices.
        (f"{SUM} c = Expand(two, k) {NZ} {VALUES} y = Add(h, c)", "float[q] y"),
        # Of another mask.
        (
            f"other = Not(m) fl = Reshape(other, minus) ones = Cast <to = 7> (fl) "
            f"k = ReduceSum(ones) {NZ} {VALUES} c = Expand(two, k) y = Concat <axis = 0> (h, c)",
            "float[q] y",
        ),
        # Of numbers that are not all ones.
        (
            f"{NZ} {VALUES} a = Cast <to = 7> (x) k = ReduceSum(a) c = Expand(two, k) "
            "y = Concat <axis = 0> (h, c)",
            "float[q] y",
        ),
    ],
    ids=["no-size", "in-front", "other-mask", "no-flags"],
)
def test_other_sums_stay(body: str, y: str) -> None:
    result = rewritten(model(body, y=y), given={"x": np.array([1, 0, 1], np.float32)}, ran=1)
    assert not by_the_rule(result) and "ReduceSum" in ops(result.model)


def test_an_expand_that_others_use_stays() -> None:
    wide = "s = Shape(x) w = Expand(m, s) i = NonZero(w) t = Transpose <perm = [1, 0]> (i)"
    body = f"{wide} {SUM} e = Expand(v, k) y = ScatterND(x, t, e) z = Identity(e)"
    one = model(body, m="bool[q] m", y="float[n] y, float[r] z", more=", float[r] v")
    feeds = {"m": np.array([1, 0, 1], bool), "v": np.array([5, 6], np.float32)}
    result = rewritten(one, given=feeds, sizes={"n": 3}, ran=4)
    assert "ReduceSum" in ops(result.model)


def test_an_expand_along_another_dim_stays() -> None:
    """[K, 4] expanded to [4]: the sum is the size of a row here, not the number of rows."""
    body = f"{NZ} g = GatherND(x, t) h = Tanh(g) {SUM} e = Expand(h, k) y = ScatterND(x, t, e)"
    feeds = {"m": np.array([1, 1, 1, 1, 0], bool)}
    one = model(body, x="float[n,4] x", y="float[n,4] y")
    result = rewritten(one, given=feeds, sizes={"n": 5}, ran=1)
    assert [op for op in ops(result.model) if op == "Expand"]


def test_switched_off() -> None:
    body = f"{NZ} {VALUES} {SUM} e = Expand(h, k) u = Reshape(e, minus) y = ScatterND(x, t, u)"
    options = Options(rules=DEFAULT_RULES - {"size-from-indices"})
    result = rewritten(model(body), options, ran=12)
    assert "ReduceSum" in ops(result.model)


@pytest.mark.parametrize("opset", [9, 10, 12, 13])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("indices", ["t", "i"])
def test_sizes_in_every_opset(opset: int, keepdims: int, indices: str) -> None:
    """Indices of both layouts tell it, with operators that the opset has."""
    total = f"ones = Cast <to = 7> (m) k0 = ReduceSum <keepdims = {keepdims}> (ones)"
    body = f"{NZ} {total} k = Reshape(k0, minus) y = Expand(two, k) z = Add({indices}, one)"
    one = model(body, x="float[1] x", y="float[q] y, int64[a,b] z", opset=opset)
    result = rewritten(one, ran=12)
    assert by_the_rule(result) and "ReduceSum" not in ops(result.model)
