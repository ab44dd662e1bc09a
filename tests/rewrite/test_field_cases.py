"""What people ran into in the field, as far as it concerns the graph; B.. is the case's id."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.graphs import (
    ops,
    outcomes,
    parse,
    perm,
    plugins,
    rewritten,
    run,
)

from nonzero_rewrite import scan_model


def test_b01_a_node_deep_in_a_decoder() -> None:
    model = parse("""g (float[4,5] x) => (int64[k,2] y) <float zero = {0.0}> {
        m = Greater(x, zero) i = NonZero(m) y = Transpose <perm = [1, 0]> (i) }""")
    model.graph.node[1].name = "/transformer_module/decoder/NonZero"
    result = rewritten(model)
    (node,) = plugins(result.model)
    assert node.name == "/transformer_module/decoder/NonZero" == result.sites[0].node
    assert "NonZero" not in ops(result.model)


@pytest.mark.parametrize("opset", [13, 17])
def test_b02_a_yolo_head_uses_one_mask_four_times(opset: int) -> None:
    picks = {"scores": "float[1,50]", "boxes": "float[1,50,4]", "ids": "int64[1,50]"}
    picks["extra"] = "float[1,50,32]"
    inputs = ", ".join(f"{kind} {name}" for name, kind in picks.items())
    outputs = ", ".join(f"{kind.replace('1,50', 'k')} {name}_out" for name, kind in picks.items())
    body = " ".join(
        f"{name}_i = NonZero(m) {name}_t = Transpose <perm = [1, 0]> ({name}_i) "
        f"{name}_0 = Gather <axis = 0> ({name}, first) {name}_out = GatherND({name}_0, {name}_t)"
        for name in picks
    )
    text = f"""g ({inputs}) => ({outputs}) <int64 first = {{0}}, float h = {{0.25}}> {{
        s = Gather <axis = 0> (scores, first) m = Greater(s, h) {body} }}"""
    result = rewritten(parse(text, opset=opset))
    assert len(result.plan.decisions) == 4 and len(plugins(result.model)) == 1


def test_b03_what_still_stands_in_the_way_is_named() -> None:
    text = """g (float[1,n,4] b, float[1,1,n] s) => (int64[k,3] y, int64[3,j] z) <int64 m = {5}> {
        [nms] y = NonMaxSuppression(b, s, m) z = NonZero(s) }"""
    result = scan_model(parse(text))
    assert outcomes(result) == {"z": "plugin"}
    assert [(b.op_type, b.node) for b in result.blockers] == [("NonMaxSuppression", "nms")]
    assert "no implementation" in result.blockers[0].reason


@pytest.mark.parametrize("opset", [9, 11])
def test_b04_where_with_one_argument_from_tensorflow(opset: int) -> None:
    text = """g (bool[3,4] x) => (float[k,2] y) {
        i = NonZero(x) t = Transpose(i) y = Cast <to = 1> (t) }"""
    model = parse(text, opset=opset)
    result = rewritten(model)
    assert ops(result.model) == ["NonZeroPlugin", "Cast"] and perm(plugins(result.model)[0]) == [
        1,
        0,
    ]
    assert result.model.graph.output == model.graph.output
    assert result.model.graph.input == model.graph.input


@pytest.mark.parametrize("opset", [9, 11, 13, 17])
def test_b05_one_column_of_the_pairs(opset: int) -> None:
    text = """g (float[6,5] x) => (int64[k] y) <float h = {0.5}, int64 first = {0}> {
        m = Greater(x, h) i = NonZero(m) t = Transpose <perm = [1, 0]> (i)
        y = Gather <axis = 1> (t, first) }"""
    x = np.zeros((6, 5), np.float32)
    x[1, 3] = 1
    x[4] = 1
    result = rewritten(parse(text, opset=opset), given={"x": x})
    assert run(result.model, {"x": x})[0].tolist() == [1, 4, 4, 4, 4, 4]


def test_b06_a_vector_of_unknown_length() -> None:
    result = rewritten(parse("g (int32[n] x) => (int64[1,k] y) { y = NonZero(x) }"))
    for n in (1, 7, 1000):
        x = np.arange(n, dtype=np.int32) % 3
        assert np.array_equal(run(result.model, {"x": x})[0], [np.flatnonzero(x)])


def test_b07_both_layouts_where_they_have_one_shape() -> None:
    text = """g (float[2,3] x) => (int64[2,k] a, int64[k,2] b) {
        a = NonZero(x) b = Transpose <perm = [1, 0]> (a) }"""
    x = np.array([[0, 0, 5], [6, 0, 0]], np.float32)
    result = rewritten(parse(text), given={"x": x})
    a, b = run(result.model, {"x": x})
    assert a.tolist() == [[0, 1], [2, 0]] and b.tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 17])
def test_b09_a_ramp_is_a_range(opset: int) -> None:
    axes = "<axes = [1]> (t)" if opset < 13 else "(t, one)"
    unsqueeze = "<axes = [0]> (d)" if opset < 13 else "(d, zero)"
    text = f"""g (float[n,4] x) => (int64[k] y)
        <int64 first = {{0}}, int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
        s = Shape(x) g0 = Gather <axis = 0> (s, first) d = Cast <to = 7> (g0)
        u = Unsqueeze {unsqueeze} f = ConstantOfShape <value = float[1] {{1.0}}> (u)
        i = NonZero(f) t = Transpose <perm = [1, 0]> (i) q = Squeeze {axes}
        y = Cast <to = 7> (q) }}"""
    result = rewritten(parse(text, opset=opset), ran=12)
    assert outcomes(result) == {"i": "removed"} and not plugins(result.model)
    for n in (0, 1, 9):
        y = run(result.model, {"x": np.zeros((n, 4), np.float32)})[0]
        assert y.dtype == np.int64 and y.tolist() == list(range(n))


def test_b11_reshapes_of_the_indices() -> None:
    text = """g (float[4,4] x) => (int64[p] y, int64[q,1] z)
        <int64[1] flat = {-1}, int64[2] column = {-1, 1}> { i = NonZero(x) y = Reshape(i, flat)
        t = Transpose <perm = [1, 0]> (i) z = Reshape(t, column) }"""
    assert len(plugins(rewritten(parse(text)).model)) == 1


@pytest.mark.parametrize("opset", [11, 13, 17, 18])
@pytest.mark.parametrize("mask", ["bool[n,4] m", "bool[n] m"])
def test_b12_a_mask_that_is_a_network_input(opset: int, mask: str) -> None:
    out = "float[k]" if "4" in mask else "float[k,4]"
    text = f"""g (float[n,4] x, {mask}) => ({out} y) {{
        i = NonZero(m) t = Transpose <perm = [1, 0]> (i) y = GatherND(x, t) }}"""
    result = rewritten(parse(text, opset=opset))
    assert ops(result.model) == ["NonZeroPlugin", "GatherND"], "BOOL is taken as it is"


SECTION_3 = {
    "gather": ("float[k]", "t = Transpose(i) y = GatherND(x, t)"),
    "column": ("int64[k]", "t = Transpose(i) y = Gather <axis = 1> (t, first)"),
    "split": ("int64[k]", "t = Transpose(i) a, b = Split <axis = 1> (t) y = Squeeze(b, one)"),
    "row": ("int64[1,k]", "y = Slice(i, one, two, zero)"),
    "rows": ("float[p,4]", "t = Transpose(i) r = Gather <axis = 1> (t, first) y = Gather(x, r)"),
    "flat": ("int64[k]", "y = Reshape(i, flat)"),
    "matmul": ("float[k,2]", "t = Transpose(i) c = Cast <to = 1> (t) y = MatMul(c, eye)"),
}


@pytest.mark.parametrize("name", SECTION_3)
def test_b20_nothing_selected(name: str) -> None:
    out, body = SECTION_3[name]
    text = f"""g (float[n,4] x) => ({out} y) <int64 first = {{0}}, int64[1] zero = {{0}},
        int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] flat = {{-1}},
        float[2,2] eye = {{1, 0, 0, 1}}> {{ i = NonZero(x) {body} }}"""
    model = parse(text)
    result = rewritten(model, ran=12)
    for x in (np.zeros((3, 4), np.float32), np.zeros((0, 4), np.float32)):
        one, other = run(model, {"x": x})[0], run(result.model, {"x": x})[0]
        assert one.shape == other.shape and one.dtype == other.dtype and not other.size
