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
    "int64[2] both_ones = {1, 1}, float two = {2}"
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


OTHER = "ones = Cast <to = 7> (p) k = ReduceSum(ones)"
FEW = {"m": np.array([1, 0, 1], bool), "p": np.array([1, 1, 0, 0], bool)}


@pytest.mark.parametrize(
    ("x", "v", "body"),
    [
        ("float[n] x", "float[2] v", f"{OTHER} e = Expand(v, k) y = ScatterND(x, t, e)"),
        ("float[n] x", "float[2] v", f"{OTHER} d = Neg(x) e = Expand(v, k) y = ScatterND(d, t, e)"),
        (
            "float[n] x",
            "float[2] v",
            "ones = Cast <to = 7> (p) k0 = ReduceSum <keepdims = 0> (ones) k = Unsqueeze(k0, zero) "
            "e = Expand(v, k) y = ScatterND(x, t, e)",
        ),
        *(
            (
                f"float[n,{row}] x",
                f"float[2,{row}] v",
                f"{OTHER} c = Concat <axis = 0> (k, size) e = Expand(v, c) "
                "to = Concat <axis = 0> (minus, size) u = Reshape(e, to) y = ScatterND(x, t, u)",
            )
            for row in (1, 4)
        ),
    ],
    ids=["vector", "computed-data", "unsqueezed", "rows-of-1", "rows-of-4"],
)
def test_a_write_takes_the_sum_of_another_mask(x: str, v: str, body: str) -> None:
    row = "4" if "4" in x else "1"
    size = f"size = Constant <value_ints = [{row}]> ()"
    y = x.replace(" x", " y")
    one = model(f"{NZ} {size} {body}", x=x, y=y, more=f", bool[o] p, {v}")
    alone = Options(rules=frozenset({"size-from-indices", "plugin"}))  # nobody else asks for types
    for options in (None, alone):
        result = rewritten(one, options, given=FEW, sizes={"n": 3}, ran=4)
        assert by_the_rule(result) and "ReduceSum" not in ops(result.model)


FLAT = "c = Concat <axis = 0> (k, size) e = Expand(v, c) u = Reshape(e, to) y = ScatterND(x, t, u)"


@pytest.mark.parametrize(
    ("x", "v", "size", "given"),
    [
        # Twice as many rows of half the size.
        ("float[n,4]", "float[2]", 2, {"p": np.array([1, 1, 1, 1], bool), "to": [-1, 4]}),
        # Rows of no items: any number of them.
        ("float[n,0]", "float[4,0]", 0, {"p": np.array([1, 1, 1, 1], bool), "to": [2, 0]}),
        # The size of a row is not known.
        ("float[n,d]", "float[1]", 3, {"p": FEW["p"], "to": [-1, 3]}),
    ],
    ids=["half-rows", "no-items", "unknown"],
)
def test_what_is_flattened_must_show_its_rows(
    x: str, v: str, size: int, given: dict[str, object]
) -> None:
    body = f"{NZ} size = Constant <value_ints = [{size}]> () {OTHER} {FLAT}"
    one = model(body, x=f"{x} x", y=f"{x} y", more=f", bool[o] p, {v} v, int64[2] to")
    feeds = {**FEW, **{name: np.asarray(value) for name, value in given.items()}}
    result = rewritten(one, given=feeds, sizes={"n": 3, "d": 3}, ran=4)
    assert not by_the_rule(result)


def test_a_flattened_expand_that_others_use_stays() -> None:
    body = f"{NZ} {OTHER} e = Expand(v, k) u = Reshape(e, minus) y = ScatterND(x, t, u)"
    one = model(
        f"{body} z = Identity(u)", y="float[n] y, float[r] z", more=", bool[o] p, float[2] v"
    )
    assert not by_the_rule(rewritten(one, given=FEW, sizes={"n": 3}, ran=4))


def test_a_size_that_is_no_sum_stays() -> None:
    for size in ("k = Identity(n2)", "a = Shape(h) k = Identity(a)"):
        body = f"{NZ} {VALUES} {size} e = Expand(h, k) y = ScatterND(x, t, e)"
        one = model(body, more=", int64[1] n2")
        feeds = {"n2": np.array([2]), "m": FEW["m"]}
        assert not by_the_rule(rewritten(one, given=feeds, sizes={"n": 3}, ran=4))


@pytest.mark.parametrize(
    "total",
    [
        # One number for each column.
        "ones = Cast <to = 7> (m) k = ReduceSum <keepdims = 0> (ones, zero)",
        # A copy.
        "ones = Cast <to = 7> (m) a = ReduceSum <noop_with_empty_axes = 1> (ones) "
        "k = Reshape(a, minus)",
        # In floats, which hold no large number exactly.
        "ones = Cast <to = 1> (m) a = ReduceSum <keepdims = 0> (ones) b = Cast <to = 7> (a) "
        "k = Reshape(b, minus)",
        # Of numbers that are only shaped like the flags.
        "fl = Cast <to = 7> (m) sh = Reshape(fl, minus) a = Reshape(five, sh) "
        "ab = Reshape(a, both_ones) b = ReduceSum <keepdims = 0> (ab) k = Reshape(b, minus)",
        # Of an unknown rank.
        "ones = Cast <to = 7> (m) a = Reshape(ones, to) b = ReduceSum(a) k = Reshape(b, minus)",
    ],
    ids=["columns", "copy", "floats", "shape", "rank"],
)
def test_sums_that_are_not_the_number_of_indices(total: str) -> None:
    body = f"{NZ} {total} e = Expand(two, k) y = Reshape(e, minus) z = Add(t, one)"
    one = model(
        body,
        x="float[1] x",
        m="bool[n,2] m",
        y="float[q] y, int64[a,b] z",
        more=", int64[1] five, int64[r] to",
    )
    feeds = {"m": np.ones((1, 2), bool), "five": np.array([5]), "to": np.array([1, 2])}
    assert not by_the_rule(rewritten(one, given=feeds, ran=1))


@pytest.mark.parametrize(
    ("axes", "all_of_them"), [("[0, 1]", True), ("[-1, 0]", True), ("[0]", False)]
)
def test_axes_as_an_attribute(axes: str, all_of_them: bool) -> None:
    total = f"ones = Cast <to = 7> (m) a = ReduceSum <axes = {axes}, keepdims = 0> (ones)"
    body = f"{NZ} {total} k = Reshape(a, minus) y = Expand(two, k) z = Add(t, one)"
    one = model(body, x="float[1] x", m="bool[n,1] m", y="float[a] y, int64[p,q] z", opset=12)
    assert by_the_rule(rewritten(one, ran=4)) is all_of_them


def test_flags_that_a_cast_made() -> None:
    total = "ones = Cast <to = 7> (b) k = ReduceSum(ones)"
    body = f"b = Cast <to = 9> (m) i = NonZero(b) {total} y = Expand(two, k) z = Add(i, one)"
    one = model(body, x="float[1] x", m="int32[n] m", y="float[a] y, int64[p,q] z")
    assert by_the_rule(rewritten(one, ran=8))


@pytest.mark.parametrize("other", [False, True])
def test_a_sum_over_what_another_mask_selects(other: bool) -> None:
    """The sum goes, and with it a user of the indices of the other mask, maybe the only one."""
    total = "i2 = NonZero(p) t2 = Transpose (i2) g = GatherND(ones, t2)"
    total += " t3 = Transpose (i2)" if other else ""
    body = f"{NZ} {total} k = ReduceSum(g) e = Expand(v, k) y = ScatterND(x, t, e)"
    y = "float[n] y"
    if other:  # and a sum over that mask
        body += " b = Cast <to = 7> (p) s = ReduceSum(b) z = Expand(two, s) u = Add(t3, one)"
        y += ", float[q] z, int64[a,b] u"
    one = model(body, y=y, more=", bool[o] p, int64[o] ones, float[2] v")
    feeds = {**FEW, "ones": np.ones(4, np.int64)}
    result = rewritten(one, given=feeds, sizes={"n": 3}, ran=4)
    assert list(graphs.outcomes(result).values()) == ["plugin", "plugin" if other else "removed"]
    assert len(graphs.plugins(result.model)) == 1 + other and "ReduceSum" not in ops(result.model)
