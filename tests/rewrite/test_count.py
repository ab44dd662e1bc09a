"""count and where-sum: the indices themselves are not needed."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.graphs import (
    assert_equal,
    feeds_of,
    misses,
    ops,
    outcomes,
    parse,
    plugins,
    rewritten,
)

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.rules import DEFAULT_RULES

X = "float[n,4] x"
CONSTANTS = "int64[1] zero = {0}, int64[1] one = {1}, int64 first = {0}, int64 second = {1}"


# -- count -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 21])
@pytest.mark.parametrize(
    ("output", "body"),
    [
        ("int64[2] y", "y = Shape(i)"),
        ("int64[2] y", "t = Transpose(i) y = Shape(t)"),
        ("int64 y", "y = Size(i)"),
        ("int64 y", "s = Shape(i) y = Gather(s, second)"),
        ("int64[1] y", "t = Transpose(i) s = Shape(t) y = Slice(s, zero, one)"),
        ("float[1] y", "s = Shape(i) g = Gather(s, one) y = Cast <to = 1> (g)"),
        ("bool y", "t = Transpose(i) s = Shape(t) g = Gather(s, first) y = Greater(g, first)"),
    ],
)
def test_only_the_count_is_data(opset: int, output: str, body: str) -> None:
    text = f"g ({X}) => ({output}) <{CONSTANTS}> {{ i = NonZero(x) {body} }}"
    result = rewritten(parse(text, opset=opset), ran=12)
    assert not plugins(result.model) and "NonZero" not in ops(result.model), misses(result)
    assert result.plan.decisions[0].rules == ("count",)


@pytest.mark.parametrize(
    "attributes",
    [
        "start = 1",
        "start = -1",
        "end = 1",
        "start = 0, end = 2",
        "start = 1, end = 1",
        "start = -2, end = -1",
        "end = 9",
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_part_of_the_shape(attributes: str, transposed: bool) -> None:
    turn = "j = Transpose(i)" if transposed else "j = Identity(i)"
    text = f"g ({X}) => (int64[p] y) {{ i = NonZero(x) {turn} y = Shape <{attributes}> (j) }}"
    result = rewritten(parse(text), ran=12)
    assert outcomes(result) == {"i": "removed"}


@pytest.mark.parametrize("dtype", ["bool", "float", "float16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("dims", ["n", "n,4", "n,2,3", "n,0"])
def test_every_type_and_rank(dtype: str, dims: str) -> None:
    text = f"g ({dtype}[{dims}] x) => (int64[2] y) {{ i = NonZero(x) y = Shape(i) }}"
    assert outcomes(rewritten(parse(text), ran=12)) == {"i": "removed"}


@pytest.mark.parametrize(
    ("output", "body"),
    [
        ("float[p] y", "y = ConstantOfShape(k)"),
        ("float[p] y", "y = Expand(f, k)"),
        ("float[p] y", "y = Slice(row, zero, k)"),
        ("int64[p] y", "q = Squeeze(k) y = Range(first, q, second)"),
        ("float[p] y", "c = Concat <axis = 0> (k, one) z = ConstantOfShape(c) y = Reshape(z, k)"),
        (
            "float[p,q] y",
            "d = Add(k, one) e = Concat <axis = 0> (d, one) y = Tile(pair, e)",
        ),
    ],
)
def test_a_count_that_sizes_a_tensor_keeps_the_indices(output: str, body: str) -> None:
    constants = CONSTANTS + ", float f = {2}, float[6] row = {1,2,3,4,5,6}, float[1,2] pair = {1,2}"
    text = f"""g ({X}) => ({output}) <{constants}> {{
        i = NonZero(x) s = Shape(i) k = Gather(s, one) {body} }}"""
    result = rewritten(parse(text), ran=4)
    assert outcomes(result) == {"i": "plugin"}
    assert misses(result)["count"] == (
        "the count is a size of another tensor, which needs the indices"
    )


def test_indices_used_beside_the_count() -> None:
    text = f"""g ({X}) => (float[k] y, int64[2] s) {{
        i = NonZero(x) t = Transpose(i) s = Shape(t) y = GatherND(x, t) }}"""
    result = rewritten(parse(text))
    assert outcomes(result) == {"i": "plugin"} and "count" not in misses(result)


def test_indices_that_are_an_output_are_not_only_counted() -> None:
    text = f"g ({X}) => (int64[2,k] i, int64[2] s) {{ i = NonZero(x) s = Shape(i) }}"
    assert outcomes(rewritten(parse(text))) == {"i": "plugin"}


def test_a_mask_of_unknown_rank() -> None:
    text = f"""g ({X}, int64[r] d) => (int64[1] y) <{CONSTANTS}> {{
        m = Reshape(x, d) i = NonZero(m) s = Shape(i) y = Gather(s, one) }}"""
    result = rewritten(parse(text), given={"d": np.array([4, -1], np.int64)}, sizes={"n": 3})
    assert misses(result)["count"] == "the rank or the type of the mask is not known"


@pytest.mark.parametrize("body", ["y = Shape(i)", "t = Transpose(i) y = Shape(t)"])
@pytest.mark.parametrize("mask", ["i = NonZero(x)", "c = Cast <to = 7> (x) i = NonZero(c)"])
def test_a_scalar_mask(mask: str, body: str) -> None:
    """ONNX's text gives [0, K], onnxruntime [1, K]."""
    result = rewritten(parse(f"g (float x) => (int64[2] y) {{ {mask} {body} }}"), ran=12)
    assert misses(result)["count"] == "the mask is a scalar, where ONNX and onnxruntime disagree"


NEEDED = "the count is a size of another tensor, which needs the indices"


def test_a_count_that_a_body_takes_may_be_a_size() -> None:
    text = f"""g ({X}, bool c) => (float[k] y) <{CONSTANTS}, float f = {{2}}> {{
        i = NonZero(x) s = Shape(i) k = Gather(s, one)
        y = If (c) <then_branch = a () => (float[p] o1) {{ o1 = Expand(f, k) }},
                    else_branch = b () => (float[q] o2) {{ o2 = ConstantOfShape(k) }}> }}"""
    assert misses(rewritten(parse(text)))["count"] == NEEDED


def test_a_count_that_another_library_takes_may_be_a_size() -> None:
    function = """<domain: "local", opset_import: ["": 17]> fill (a) => (b) {
        b = ConstantOfShape(a) }"""
    text = f"""g ({X}) => (float[k] y) <{CONSTANTS}> {{
        i = NonZero(x) s = Shape(i) k = Gather(s, one) y = local.fill(k) }}"""
    assert misses(rewritten(parse(text, tail=function)))["count"] == NEEDED


def test_the_ways_of_a_count_are_walked_once_each() -> None:
    doubled = " ".join(f"v{n + 1} = Add(v{n}, w{n}) w{n + 1} = Sub(v{n}, w{n})" for n in range(64))
    text = f"""g ({X}) => (int64[2] y) {{
        i = NonZero(x) v0 = Shape(i) w0 = Shape(i) {doubled} y = Add(v64, w64) }}"""
    assert outcomes(rewritten(parse(text))) == {"i": "removed"}


def test_without_count() -> None:
    text = f"g ({X}) => (int64[2] y) {{ i = NonZero(x) y = Shape(i) }}"
    result = rewritten(parse(text), rules=DEFAULT_RULES - {"count"})
    assert outcomes(result) == {"i": "plugin"}


# -- where-sum -------------------------------------------------------------------------------------

SUM = "i = NonZero(m) t = Transpose(i) p = GatherND(x, t)"
ASKED = DEFAULT_RULES | {"where-sum"}


def check_sum(text: str, opset: int = 17) -> object:
    """Sums of small integers are exact in any order."""
    model = parse(text, opset=opset)
    result = rewrite_model(model, rules=ASKED)
    feeds = [
        {**each, "x": np.round(np.nan_to_num(each["x"], posinf=3, neginf=-3))}
        for each in feeds_of(model)
    ]
    assert assert_equal(model, result.model, feeds, zero_signs=False) >= 8
    return result


@pytest.mark.parametrize("opset", [12, 13, 18])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_sum_over_the_selection(opset: int, keepdims: int) -> None:
    out = "float y" if keepdims == 0 else "float[1] y"
    text = f"""g ({X}, bool[n,4] m) => ({out}) {{
        {SUM} y = ReduceSum <keepdims = {keepdims}> (p) }}"""
    result = check_sum(text, opset)
    assert not plugins(result.model) and result.plan.decisions[0].rules == ("where-sum",)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("opset", "reduce"),
    [
        (12, "ReduceSum <axes = [0]> (p)"),
        (12, "ReduceSum <axes = [-1]> (p)"),
        (17, "ReduceSum(p)"),
        (17, "ReduceSum(p, zero)"),
        (17, "ReduceSum(p, last)"),
        (17, "ReduceSum <noop_with_empty_axes = 1> (p, zero)"),
    ],
)
@pytest.mark.parametrize("mask", ["bool[n,4] m", "float[n,4] m"])
def test_every_form_of_a_full_sum(opset: int, reduce: str, mask: str) -> None:
    text = f"""g ({X}, {mask}) => (float[1] y) <int64[1] zero = {{0}}, int64[1] last = {{-1}}> {{
        {SUM} y = {reduce} }}"""
    result = check_sum(text, opset)
    assert result.plan.decisions[0].rules == ("where-sum",), misses(result)  # type: ignore


@pytest.mark.parametrize(
    "picked",
    [
        "p = GatherND(x, i)",  # the other layout
        "p = GatherND(t, w)",  # the indices are what is picked from
        "p = Gather(x, t)",
    ],
)
def test_a_sum_over_other_items(picked: str) -> None:
    result_type = "int64" if "(t, w)" in picked else "float"
    text = f"""g (float[2,2] x, bool[2,2] m, int64[2,2] w) => ({result_type} y) {{
        i = NonZero(m) t = Transpose(i) {picked} y = ReduceSum <keepdims = 0> (p) }}"""
    given = {"m": np.array([[1, 0], [1, 0]], bool), "w": np.array([[0, 1], [1, 0]])}
    result = rewritten(parse(text), rules=ASKED, given=given, ran=12)
    assert outcomes(result) == {"i": "plugin"} and "where-sum" not in misses(result)


def test_a_sum_only_when_asked_for() -> None:
    text = f"g ({X}, bool[n,4] m) => (float[1] y) {{ {SUM} y = ReduceSum(p) }}"
    result = rewrite_model(parse(text))
    assert outcomes(result) == {"i": "plugin"} and "where-sum" not in misses(result)


@pytest.mark.parametrize(
    ("inputs", "outputs", "body", "condition"),
    [
        ("float[n,4] x, bool[n,4] m", "float y, float[k] p", "y = ReduceSum <keepdims = 0> (p)",
         "the selected items are used elsewhere too"),
        ("float[n,4] x, bool[n] m", "float y", "y = ReduceSum <keepdims = 0> (p)",
         "the mask does not select single items"),
        ("float[n,4] x, bool[q,4] m", "float y", "y = ReduceSum <keepdims = 0> (p)",
         "the mask is not surely shaped like the data"),
        ("float[n,4] x, bool[n,4] m, int64[1] a", "float[1] y", "y = ReduceSum(p, a)",
         "ReduceSum does not sum over everything"),
        ("float[n,4] x, bool[n,4] m", "float[k] y",
         "y = ReduceSum <noop_with_empty_axes = 1> (p)", "ReduceSum without axes is a copy here"),
    ],
)  # fmt: skip
def test_sums_that_are_left(inputs: str, outputs: str, body: str, condition: str) -> None:
    text = f"g ({inputs}) => ({outputs}) {{ {SUM} {body} }}"
    result = rewritten(
        parse(text), rules=ASKED, given={"a": np.array([0])} if " a" in inputs else None
    )
    assert outcomes(result) == {"i": "plugin"} and misses(result)["where-sum"] == condition


def test_a_reader_that_is_no_sum() -> None:
    text = f"g ({X}, bool[n,4] m) => (float[1] y) {{ {SUM} y = ReduceMean(p) }}"
    assert outcomes(rewritten(parse(text), rules=ASKED)) == {"i": "plugin"}
