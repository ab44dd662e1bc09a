"""unused, constant and ramp: NonZero whose result follows without looking at data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.graphs import misses, ops, outcomes, parse, plugins, rewritten
from onnx import TensorProto, helper, numpy_helper

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.rules import DEFAULT_RULES, SkipReason

OPSETS = (9, 10, 11, 13, 17, 18, 21)


# -- unused ----------------------------------------------------------------------------------------


def test_unused_with_its_transposes_and_its_mask() -> None:
    text = """g (float[n,4] x) => (float[n,4] y) <float h = {0.5}> {
        m = Greater(x, h) i = NonZero(m) t = Transpose(i) u = Identity(t) y = Neg(x) }"""
    result = rewritten(parse(text))
    assert ops(result.model) == ["Neg"] and not result.model.graph.initializer
    assert result.plan.decisions[0].rules == ("unused",)


def test_unused_takes_along_what_only_it_used() -> None:
    text = """g (float[n,4] x) => (float[n,4] y) {
        i = NonZero(x) c = Cast <to = 1> (i) j = NonZero(c) y = Neg(x) }"""
    result = rewritten(parse(text))
    assert ops(result.model) == ["Neg"]
    assert [decision.rules for decision in result.plan.decisions] == [("unused",)] * 2


def test_used_by_a_dead_node_is_used() -> None:
    """The user may want that node as an output later: only what NonZero leads to is judged."""
    text = """g (float[n,4] x) => (float[n,4] y) {
        i = NonZero(x) s = Shape(i) y = Neg(x) }"""
    result = rewritten(parse(text), rules=DEFAULT_RULES - {"count"})
    assert outcomes(result) == {"i": "plugin"}


def test_unused_is_not_a_captured_one() -> None:
    text = """g (float[n,4] x, bool c) => (int64[p,q] y) { i = NonZero(x)
        y = If (c) <then_branch = a () => (int64[p1,q1] o1) { o1 = Identity(i) },
                    else_branch = b () => (int64[p2,q2] o2) { o2 = Neg(i) }> }"""
    assert outcomes(rewritten(parse(text))) == {"i": "plugin"}


# -- constant --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(4,), (2, 3), (2, 1, 2), (0, 3)])
def test_constant_initializer(dims: tuple[int, ...]) -> None:
    model = parse(
        f"g (float[n] x) => (int64[{len(dims)},k] y, float[n] z) {{ y = NonZero(c) z = Neg(x) }}"
    )
    data = np.arange(int(np.prod(dims)), dtype=np.float32).reshape(dims) % 3
    model.graph.initializer.append(numpy_helper.from_array(data, "c"))
    result = rewritten(model)
    assert outcomes(result) == {"y": "removed"} and ops(result.model) == ["Neg"]
    assert result.plan.decisions[0].rules == ("constant",)


def test_constant_through_foldable_nodes() -> None:
    text = """g (float[n,4] x) => (int64[1,k] y, int64[2] s) <float[4] c = {1.0, 0.0, 2.0, 3.0}> {
        s = Shape(x) h = Constant <value_float = 1.5> () m = Greater(c, h) y = NonZero(m) }"""
    result = rewritten(parse(text))
    assert ops(result.model) == ["Shape"]


@pytest.mark.parametrize(("ir", "outcome"), [(3, "removed"), (4, "plugin"), (8, "plugin")])
def test_since_when_a_default_is_no_constant(ir: int, outcome: str) -> None:
    text = "g (float[4] c) => (int64[1,k] y) <float[4] c = {1.0, 0.0, 2.0, 3.0}> { y = NonZero(c) }"
    assert outcomes(rewrite_model(parse(text, ir=ir))) == {"y": outcome}


def test_a_default_is_no_constant() -> None:
    """From IR 4 on, a caller may feed an input that has an initializer."""
    text = "g (float[4] c) => (int64[1,k] y) <float[4] c = {1.0, 0.0, 2.0, 3.0}> { y = NonZero(c) }"
    model = parse(text)
    result = rewritten(model)
    assert outcomes(result) == {"y": "plugin"}
    from helpers.graphs import run

    feeds = {"c": np.array([0, 0, 5, 0], np.float32)}
    assert run(result.model, feeds)[0].tolist() == [[2]] == run(model, feeds)[0].tolist()


def test_a_large_constant_is_no_table_in_the_file() -> None:
    model = parse("g (float[n] x) => (int64[1,k] y, float[n] z) { y = NonZero(c) z = Neg(x) }")
    data = np.ones(1 << 16, np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(data, "c"))
    assert outcomes(rewritten(model, rules=DEFAULT_RULES - {"ramp"})) == {"y": "removed"}
    wide = numpy_helper.from_array(data.reshape(256, 256), "c")
    model.graph.initializer[0].CopyFrom(wide)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    result = rewritten(model, rules=DEFAULT_RULES - {"ramp"})
    assert outcomes(result) == {"y": "plugin"}
    assert misses(result)["constant"] == "the indices would be 131072 numbers in the file"


def test_a_constant_scalar_is_left() -> None:
    model = parse(
        """g (float[n] x) => (int64[a,k] y, float[n] z) <float c = {1.0}> {
        y = NonZero(c) z = Neg(x) }"""
    )
    result = rewritten(model)
    assert result.plan.decisions[0].reason is SkipReason.RANK_ZERO


# -- ramp ------------------------------------------------------------------------------------------


def of_shape(
    opset: int, rank: int, value: TensorProto | None, transpose: bool = True
) -> onnx.ModelProto:
    """Shape -> ConstantOfShape -> NonZero -> Transpose, as old exporters write arange."""
    dims = ["n", "m", 2, 3][:rank]
    attrs = {} if value is None else {"value": value}
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["ones"], **attrs),
        helper.make_node("NonZero", ["ones"], ["i"]),
        helper.make_node("Transpose", ["i"], ["t"], perm=[1, 0]),
    ]
    graph = helper.make_graph(
        nodes if transpose else nodes[:3],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [
            helper.make_tensor_value_info("t", TensorProto.INT64, ["k", rank])
            if transpose
            else helper.make_tensor_value_info("i", TensorProto.INT64, [rank, "k"])
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def one(dtype: type = np.float32, value: float = 1) -> TensorProto:
    return numpy_helper.from_array(np.array([value], dtype=dtype))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_ones_become_coordinates(opset: int, rank: int) -> None:
    result = rewritten(of_shape(opset, rank, one()), sizes={"m": 2}, ran=12)
    if opset < 11 and rank > 1:
        assert outcomes(result) == {"i": "plugin"}
        assert misses(result) == {"ramp": "a grid of coordinates needs opset 11 or newer"}
    else:
        assert outcomes(result) == {"i": "removed"} and not plugins(result.model)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("value", [None, one(np.int64, 0)])
def test_zeros_become_nothing(opset: int, value: TensorProto | None) -> None:
    result = rewritten(of_shape(opset, 2, value, transpose=False), ran=12)
    assert ops(result.model) == [] and outcomes(result) == {"i": "removed"}


@pytest.mark.parametrize(
    "value", [one(np.float32, float("nan")), one(np.float16, 6e-8), one(np.int64, -1)]
)
def test_any_fill_that_is_not_zero(value: TensorProto) -> None:
    assert not plugins(rewritten(of_shape(17, 1, value)).model)


@pytest.mark.parametrize(
    "body",
    [
        "o = Constant <value = float[1] {2.0}> () e = Expand(o, s)",
        "o = ConstantOfShape <value = int64[1] {1}> (s) e = Cast <to = 9> (o)",
        "o = ConstantOfShape <value = bool[1] {1}> (s) t = Transpose(o) e = Transpose(t)",
        "o = ConstantOfShape <value = float[1] {1.0}> (s) r = Reshape(o, w) e = Unsqueeze(r, z)",
    ],
)
def test_ones_by_other_means(body: str) -> None:
    rank = 3 if "Unsqueeze" in body else 2
    constants = "<int64[2] w = {4, -1}, int64[1] z = {0}>"
    text = f"""g (float[n,4] x) => (int64[{rank},k] y) {constants} {{
        s = Shape(x) {body} y = NonZero(e) }}"""
    result = rewritten(parse(text), sizes={"n": 3})
    assert not plugins(result.model), misses(result)


@pytest.mark.parametrize(
    "body",
    [
        "o = Constant <value = float[4] {2.0, 0.0, 1.0, 1.0}> () e = Expand(o, s)",  # one is zero
        "o = ConstantOfShape <value = float[1] {0.5}> (s) e = Cast <to = 7> (o)",  # 0.5 becomes 0
        "o = ConstantOfShape <value = float[1] {1.0}> (s) e = Mul(o, x)",  # times something
    ],
)
def test_not_surely_ones(body: str) -> None:
    text = f"g (float[n,4] x) => (int64[2,k] y) {{ s = Shape(x) {body} y = NonZero(e) }}"
    assert plugins(rewritten(parse(text)).model)


def test_a_ramp_feeds_a_cast_as_old_exporters_write_it() -> None:
    text = """g (float[n,4] x) => (int64[k] y) {
        s = Shape(x) zero = Constant <value = int64[1] {0}> () d = Gather <axis = 0> (s, zero)
        f = ConstantOfShape <value = float[1] {1.0}> (d) i = NonZero(f)
        t = Transpose <perm = [1, 0]> (i) q = Squeeze <axes = [1]> (t) y = Cast <to = 7> (q) }"""
    result = rewritten(parse(text, opset=9))
    assert not plugins(result.model) and outcomes(result) == {"i": "removed"}


@pytest.mark.parametrize("body", ["y = NonZero(c)", "d = Cast <to = 9> (c) y = NonZero(d)"])
def test_ones_of_the_file_become_coordinates_where_no_constant_may(body: str) -> None:
    text = f"""g (float[n] x) => (int64[2,k] y, float[n] z) <float[2,3] c = {{1,2,3,4,5,6}}> {{
        {body} z = Neg(x) }}"""
    result = rewritten(parse(text), rules=DEFAULT_RULES - {"constant"})
    assert result.plan.decisions[0].rules == ("ramp",)


def test_a_fill_of_unknown_rank_is_a_near_miss() -> None:
    text = """g (int64[r] s) => (int64[p,k] y) {
        f = ConstantOfShape <value = float[1] {1.0}> (s) y = NonZero(f) }"""
    result = rewritten(parse(text), given={"s": np.array([2, 3], np.int64)})
    assert misses(result)["ramp"] == "the rank of the uniform input is not known"
    assert result.plan.decisions[0].reason is SkipReason.RANK_UNKNOWN
