"""where-scatter and elementwise: a masked write becomes Where, and where it must not."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from helpers import graphs
from helpers.graphs import assert_equal, feeds_of, misses, ops, outcomes, parse, plugins

from nonzero_rewrite import rewrite_model

rewritten = functools.partial(graphs.rewritten, zero_signs=False)

NZ = "i = NonZero(m) t = Transpose <perm = [1, 0]> (i)"
COUNT = "s = Shape(t) k = Slice(s, zero, one)"
CONSTANTS = "int64[1] zero = {0}, int64[1] one = {1}, float v = {9.5}"


def write(
    update: str, x: str = "float[n,4] x", m: str = "bool[n,4] m", more: str = "", attrs: str = ""
) -> str:
    out = x.rsplit(" ", 1)[0]
    return f"""g ({x}, {m}) => ({out} y) <{CONSTANTS}{more}> {{
        {NZ} {COUNT} {update} y = ScatterND {attrs} (x, t, u) }}"""


# -- where-scatter ---------------------------------------------------------------------------------


def assert_where(result: object, rule: str = "where-scatter") -> None:
    assert not plugins(result.model), misses(result)  # type: ignore[attr-defined]
    assert "Where" in ops(result.model) and "ScatterND" not in ops(result.model)  # type: ignore[attr-defined]
    assert rule in result.plan.decisions[0].rules  # type: ignore[attr-defined]


@pytest.mark.parametrize("opset", [11, 12, 13, 16, 17, 18, 21])
def test_a_scalar_expanded(opset: int) -> None:
    assert_where(rewritten(parse(write("u = Expand(v, k)"), opset=opset), ran=12))


@pytest.mark.parametrize(
    "update",
    [
        "c = ConstantOfShape <value = float[1] {3.0}> (k) u = Identity(c)",
        "u = ConstantOfShape (k)",
        "e = Expand(v, k) u = Cast <to = 1> (e)",
        "w = Constant <value = double {0.1}> () e = Expand(w, k) u = Cast <to = 1> (e)",
        "w = Constant <value = float[1,1] {2.0}> () r = Squeeze(w) u = Expand(r, k)",
        "w = Constant <value = float[1] {2.0}> () u = Tile(w, k)",
    ],
)
def test_other_ways_to_repeat_a_scalar(update: str) -> None:
    assert_where(rewritten(parse(write(update)), ran=12))


def test_the_scalar_is_a_value_of_the_model() -> None:
    text = write("w = ReduceMax <keepdims = 0> (x) u = Expand(w, k)")
    assert_where(rewritten(parse(text), sizes={"n": 2}))


def test_the_count_comes_from_a_sum_as_dynamo_writes_it() -> None:
    update = "c = Cast <to = 7> (m) r = Reshape(c, neg) q = ReduceSum(r, zero) u = Expand(v, q)"
    assert_where(rewritten(parse(write(update, more=", int64[1] neg = {-1}"))))


@pytest.mark.parametrize("dtype", ["float", "double", "float16", "int32", "int64", "uint8"])
def test_element_types(dtype: str) -> None:
    text = write("u = Expand(w, k)", f"{dtype}[n,4] x", more=f", {dtype} w = {{7}}")
    assert_where(rewritten(parse(text)))


def test_no_where_for_the_type() -> None:
    text = write("u = Expand(w, k)", "int8[n,4] x", more=", int8 w = {7}")
    result = rewritten(parse(text))
    assert misses(result)["where-scatter"] == "onnxruntime has no Where for INT8"
    assert len(plugins(result.model)) == 1


def test_row_masks() -> None:
    """``x[rows] = v``: each index names a whole row."""
    text = write(
        "d = Concat <axis = 0> (k, four) u = Expand(v, d)",
        m="bool[n] m",
        more=", int64[1] four = {4}",
    )
    assert_where(rewritten(parse(text), ran=12))


def test_a_mask_that_is_no_bool() -> None:
    assert_where(rewritten(parse(write("u = Expand(v, k)", m="float[n,4] m"))))


def test_none_all_and_empty() -> None:
    model = parse(write("u = Expand(v, k)", "float[n,0,2] x", "bool[n,0,2] m"))
    assert_where(rewritten(model))


def test_unequal_symbols_cut_the_mask() -> None:
    """The original runs as long as no hit lies outside of the data."""
    mask = np.zeros((5, 4), bool)
    mask[1, 2] = mask[2, 0] = True
    text = f"""g (float[n,4] x, bool[a,4] raw) => (float[n,4] y) <{CONSTANTS}> {{
        s0 = Shape(x) m = Expand(raw, s0) {NZ} {COUNT} u = Expand(v, k) y = ScatterND(x, t, u) }}"""
    result = rewritten(parse(text), sizes={"n": 3, "a": 1})
    assert_where(result)
    assert "Slice" in ops(result.model)
    result = rewritten(parse(text), given={"raw": mask, "x": np.ones((5, 4), np.float32)})
    assert_where(result)


def test_a_mask_smaller_than_the_data() -> None:
    text = write("u = Expand(v, k)", m="bool[q,4] m")
    mask = np.array([[1, 0, 0, 1], [0, 1, 0, 0]], bool)
    result = rewritten(parse(text), given={"m": mask, "x": np.ones((3, 4), np.float32)})
    assert misses(result)["where-scatter"] == "the mask is not surely as large as the data"
    assert ops(result.model)[-1] == "ScatterND" and len(plugins(result.model)) == 1


def test_a_mask_of_rows_cut_to_the_rows_of_another_value() -> None:
    text = f"""g (float[n,4] x, float[n] labels, bool[a] raw) => (float[n,4] y)
        <{CONSTANTS}, int64[1] four = {{4}}> {{
        size = Shape(labels) m = Expand(raw, size) {NZ} {COUNT} d = Concat <axis = 0> (k, four)
        u = Expand(v, d) y = ScatterND(x, t, u) }}"""
    mask = np.array([1, 0, 0, 0], bool)
    result = rewritten(parse(text), sizes={"n": 1}, given={"raw": mask})
    assert_where(result)
    assert "Slice" in ops(result.model)


@pytest.mark.parametrize(
    "size",
    [
        "m = Expand(raw, d)",
        "s0 = Shape <start = 1> (w) m = Expand(raw, s0)",
        "s0 = Shape <end = 2> (x) m = Expand(raw, s0)",
        "s0 = Shape(z) m = Expand(raw, s0)",
        "m = Concat <axis = 0> (raw, raw)",
    ],
)
def test_a_mask_expanded_to_another_size(size: str) -> None:
    text = f"""g (float[n,4] x, bool[a,4] raw, int64[2] d, float[b,4] z, float[c,n,4] w) =>
        (float[n,4] y) <{CONSTANTS}> {{ {size} {NZ} {COUNT} u = Expand(v, k)
        y = ScatterND(x, t, u) }}"""
    given = {"d": np.array([1, 1])}
    result = rewritten(parse(text, opset=15), sizes={"n": 6}, given=given)
    assert misses(result)["where-scatter"] == "the mask is not surely as large as the data"


def test_data_whose_rank_nobody_knows() -> None:
    text = f"""g (float[n,4] a, bool[n,4] m, int64[r] d) => (float[p,q] y) <{CONSTANTS}> {{
        x = Reshape(a, d) {NZ} {COUNT} u = Expand(v, k) y = ScatterND(x, t, u) }}"""
    result = rewritten(parse(text), sizes={"n": 3}, given={"d": np.array([3, 4])})
    assert misses(result)["where-scatter"] == (
        "the ranks of the mask and of the data are not both known"
    )


def test_a_scalar_mask() -> None:
    """For it onnxruntime gives the place 0, ONNX none."""
    text = f"""g (float[n] x, float m) => (float[n] y) <{CONSTANTS}> {{
        {NZ} {COUNT} u = Expand(v, k) y = ScatterND(x, t, u) }}"""
    model = parse(text)
    result = rewrite_model(model)
    assert assert_equal(model, result.model, list(feeds_of(model))) >= 4
    assert misses(result)["where-scatter"] == (
        "the mask is a scalar, where ONNX and onnxruntime disagree"
    )


@pytest.mark.parametrize("step", ["Identity", "Cast <to = 1>"])
@pytest.mark.parametrize(("length", "outcome"), [(16, "removed"), (17, "plugin")])
def test_how_far_up_a_scalar_is_looked_for(length: int, outcome: str, step: str) -> None:
    names = ["v0", *(f"v{n + 1}" for n in range(length - 1)), "u"]
    chain = " ".join(f"{name} = {step} ({names[n]})" for n, name in enumerate(names[1:]))
    text = write(f"v0 = ConstantOfShape <value = float[1] {{3.0}}> (k) {chain}")
    assert outcomes(rewritten(parse(text))) == {"i": outcome}


def test_a_constant_of_one_item_in_two_dims() -> None:
    text = write(
        "d = Concat <axis = 0> (k, four) u = Expand(w, d)",
        m="bool[n] m",
        more=", int64[1] four = {4}, float[1,1] w = {2.0}",
    )
    assert_where(rewritten(parse(text), ran=12))


@pytest.mark.parametrize(("second", "outcome"), [("a", "removed"), ("b", "plugin")])
def test_text(second: str, outcome: str) -> None:
    text = f"""g (string[2] x, bool[2] m) => (string[2] y)
        <string[2] u = {{"a", "{second}"}}> {{ {NZ} y = ScatterND(x, t, u) }}"""
    given = {"x": np.array(["x", "y"], dtype=object), "m": np.ones(2, bool)}
    assert outcomes(rewritten(parse(text), given=given)) == {"i": outcome}


@pytest.mark.parametrize("items", [0, 2])
def test_a_fill_that_is_no_single_item(items: int) -> None:
    model = parse(write("u = ConstantOfShape <value = float[1] {3.0}> (k)"))
    fill = next(node for node in model.graph.node if node.op_type == "ConstantOfShape")
    fill.attribute[0].t.dims[0] = items
    fill.attribute[0].t.float_data[:] = [3.0] * items
    assert outcomes(rewrite_model(model)) == {"i": "plugin"}


def test_a_fill_without_its_data() -> None:
    model = parse(write("u = ConstantOfShape <value = float[1] {3.0}> (k)"))
    fill = next(node for node in model.graph.node if node.op_type == "ConstantOfShape")
    del fill.attribute[0].t.float_data[:]
    assert outcomes(rewrite_model(model)) == {"i": "plugin"}


def test_symbols_that_inference_makes_up_prove_nothing() -> None:
    """Two runs of inference call different lengths by the same name."""
    text = """g (float[a] d, float[b] e, bool[a] dm, bool[b] em) => (float[c] y) <float v = {9.0}> {
        dz = NonZero(dm) dt = Transpose(dz) data = GatherND(d, dt)
        ez = NonZero(em) et = Transpose(ez) q = GatherND(e, et)
        h = Constant <value_float = 0.0> () mask = Greater(q, h)
        i = NonZero(mask) t = Transpose(i) s = Shape(i) one = Constant <value = int64[1] {1}> ()
        k = Gather(s, one) u = Expand(v, k) y = ScatterND(data, t, u) }"""
    dm = np.array([1, 1, 1, 0], bool)
    em = np.array([1, 1, 0, 0, 0], bool)
    e = np.array([1, -1, 1, 1, 1], np.float32)
    given = {"dm": dm, "em": em, "e": e, "d": np.ones(4, np.float32)}
    result = rewritten(parse(text), given=given, ran=12)
    named = {info.name: info for info in result.model.graph.value_info}
    assert not any(d.dim_param for info in named.values() for d in info.type.tensor_type.shape.dim)


@pytest.mark.parametrize("reduction", ["add", "mul", "max"])
def test_reductions_are_no_writes(reduction: str) -> None:
    opset = 18 if reduction == "max" else 16
    text = write("u = Expand(v, k)", attrs=f'<reduction = "{reduction}">')
    result = rewritten(parse(text, opset=opset))
    assert misses(result)["where-scatter"] == f"ScatterND reduces with {reduction}"


def test_reduction_none_is_a_write() -> None:
    assert_where(rewritten(parse(write("u = Expand(v, k)", attrs='<reduction = "none">'))))


def test_updates_that_vary_are_left() -> None:
    text = f"""g (float[n] x, bool[n] m, float[n] w) => (float[n] y) <{CONSTANTS}> {{
        {NZ} {COUNT} u = Slice(w, zero, k) y = ScatterND(x, t, u) }}"""
    result = rewritten(parse(text))
    assert outcomes(result) == {"i": "plugin"} and misses(result) == {}


def test_equal_zeros_of_different_sign_are_not_one_scalar() -> None:
    text = f"g (float[2] x, bool[2] m) => (float[2] y) <float[2] u = {{0.0, -0.0}}> {{ {NZ} " + (
        "y = ScatterND(x, t, u) }"
    )
    assert len(plugins(rewritten(parse(text)).model)) == 1


def test_a_constant_update() -> None:
    text = f"g (float[2] x, bool[2] m) => (float[2] y) <float[2] u = {{3.0, 3.0}}> {{ {NZ} " + (
        "y = ScatterND(x, t, u) }"
    )
    assert_where(rewritten(parse(text)))


def test_two_writes_with_one_mask() -> None:
    text = f"""g (float[n,4] x, bool[n,4] m, float[n,4] w) => (float[n,4] y, float[n,4] z)
        <{CONSTANTS}> {{ {NZ} {COUNT} u = Expand(v, k) y = ScatterND(x, t, u)
        z = ScatterND(w, t, u) }}"""
    result = rewritten(parse(text))
    assert_where(result)
    assert ops(result.model) == ["Where", "Where"]


def test_where_the_indices_are_needed_too_the_plugin_stays() -> None:
    text = f"""g (float[n,4] x, bool[n,4] m) => (float[n,4] y, float[q] z) <{CONSTANTS}> {{
        {NZ} {COUNT} u = Expand(v, k) y = ScatterND(x, t, u) z = GatherND(x, t) }}"""
    result = rewritten(parse(text))
    assert sorted(ops(result.model)) == ["GatherND", "NonZeroPlugin", "Where"]
    assert result.plan.decisions[0].rules == ("where-scatter", "plugin", "transpose")


def test_opset_9_and_10_have_no_scatternd_and_cut_by_attribute() -> None:
    """ScatterND is of opset 11, so only the borders above matter; below nothing is claimed."""
    text = write("u = Expand(v, k)").replace("y = ScatterND  (x, t, u)", "y = Identity(x)")
    result = rewritten(
        parse(text.replace("k = Slice(s, zero, one)", "k = Gather(s, zero)"), opset=10)
    )
    assert outcomes(result)["i"] in ("plugin", "removed")


# -- elementwise -----------------------------------------------------------------------------------


def update(chain: str, x: str = "float[n,4] x", m: str = "bool[n,4] m", more: str = "") -> str:
    out = x.rsplit(" ", 1)[0]
    return f"""g ({x}, {m}{more}) => ({out} y) <{CONSTANTS}, float[4] row = {{1, 2, 3, 4}}> {{
        {NZ} p = GatherND(x, t) {chain} y = ScatterND(x, t, u) }}"""


@pytest.mark.parametrize(
    "chain",
    [
        "u = Neg(p)",
        "u = Mul(p, v)",
        "a = Add(p, v) b = Div(v, a) u = Sqrt(b)",
        "a = Relu(p) b = Min(a, v) u = Max(b, p)",
        "c = Less(p, v) a = Sub(p, v) u = Where(c, a, p)",
        "q = GatherND(x, t) u = Sub(p, q)",
        "h = Cast <to = 11> (p) d = Mul(h, h) u = Cast <to = 1> (d)",
        "a = Clip(p, v, v) b = Round(a) c = Floor(b) d = Ceil(c) e = Sign(d) u = Abs(e)",
        "u = Identity(p)",
    ],
)
def test_exact_chains(chain: str) -> None:
    assert_where(rewritten(parse(update(chain)), sizes={"n": 37}, ran=12), "elementwise")


def test_several_sources() -> None:
    text = update("q = GatherND(w, t) u = Add(p, q)", more=", float[n,4] w")
    assert_where(rewritten(parse(text), sizes={"n": 19}), "elementwise")


def test_a_source_of_another_shape() -> None:
    text = update("q = GatherND(w, t) u = Add(p, q)", more=", float[r,4] w")
    result = rewritten(parse(text))
    assert misses(result)["elementwise"] == "'w' is not surely shaped like 'x'"


def test_rows_with_a_trailing_constant() -> None:
    assert_where(rewritten(parse(update("u = Mul(p, row)", m="bool[n] m"))), "elementwise")


def test_a_constant_along_the_selected_items() -> None:
    """[4] may be added to K items only where K is 4: not item by item."""
    text = update("u = Add(p, row)", x="float[n] x", m="bool[n] m")
    result = rewritten(parse(text), given={"m": np.ones(4, bool), "x": np.ones(4, np.float32)})
    assert misses(result)["elementwise"] == "'row' is not taken from the same places"


@pytest.mark.parametrize("op", ["Exp", "Tanh", "Sigmoid", "Erf", "Log"])
def test_inexact_operators_are_refused(op: str) -> None:
    result = rewritten(parse(update(f"u = {op}(p)")))
    assert misses(result)["elementwise"] == f"{op} is not exact item by item"
    assert len(plugins(result.model)) == 1


def test_integer_division_may_fail_on_items_not_selected() -> None:
    text = update("q = GatherND(w, t) u = Div(p, q)", "int64[n] x", "bool[n] m", ", int64[n] w")
    given = {"m": np.array([1, 0], bool), "x": np.array([6, 7]), "w": np.array([2, 0])}
    result = rewritten(parse(text), given=given)
    assert misses(result)["elementwise"] == "Div of unselected integers may differ or fail"


def test_a_cast_of_floats_to_integers_is_refused() -> None:
    text = update("c = Cast <to = 7> (p) u = Cast <to = 1> (c)")
    result = rewritten(
        parse(text), given={"x": np.ones((3, 4), np.float32), "m": np.ones((3, 4), bool)}
    )
    assert misses(result)["elementwise"] == "Cast of unselected integers may differ or fail"


def test_integers_that_wrap() -> None:
    text = update("u = Mul(p, p)", "int32[n] x", "bool[n] m")
    x = np.array([2**30, -(2**31), 7], np.int32)
    assert_where(
        rewritten(parse(text), given={"x": x, "m": np.array([1, 1, 0], bool)}), "elementwise"
    )


def test_the_other_layout_is_no_write() -> None:
    text = """g (float[n,4] x, bool[n,4] m) => (float[n,4] y) {
        i = NonZero(m) p = GatherND(x, i) u = Neg(p) y = ScatterND(x, i, u) }"""
    # Not run: GatherND with the layout of NonZero itself ends onnxruntime 1.23 on empty inputs.
    result = rewrite_model(parse(text))
    assert outcomes(result) == {"i": "plugin"}


def test_a_number_computed_from_the_selection_is_a_scalar_too() -> None:
    result = rewritten(parse(update("w = ReduceSum(p) u = Add(p, w)")))
    assert result.plan.decisions[0].rules == ("elementwise", "plugin", "transpose")
    assert "ScatterND" not in ops(result.model)


def test_a_layer_on_the_selection_is_named() -> None:
    text = update("w = Softmax(p) u = Add(p, w)")
    assert misses(rewritten(parse(text)))["elementwise"] == "Softmax is not exact item by item"
