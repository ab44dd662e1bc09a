"""What people ran into in the field, as far as it concerns the graph: B26 and on."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.graphs import (
    NonZeroPlugin,
    assert_equal_by_reference,
    misses,
    outcomes,
    parse,
    plugins,
    rewritten,
    run,
)
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from nonzero_rewrite import Options, rewrite_model, scan_model


def test_b26_row_major_order_is_kept() -> None:
    text = (
        "g (float[64,64] x) => (float[k] y) { i = NonZero(x) t = Transpose(i) y = GatherND(x, t) }"
    )
    x = np.random.default_rng(0).permutation(4096).reshape(64, 64).astype(np.float32)
    x[x % 2 == 0] = 0
    result = rewritten(parse(text), given={"x": x})
    assert np.array_equal(run(result.model, {"x": x})[0], x[x != 0])


def test_b29_indices_meet_int64_constants() -> None:
    text = """g (bool[n] m) => (int64[k] a, int64[k] b, int64[c] d, int64[k] s)
        <int64[1] ten = {10}, int64 cap = {3}, int64[2] more = {7, 8}, int64[1] one = {1}> {
        i = NonZero(m) t = Transpose(i) s = Squeeze(t, one) a = Add(s, ten) b = Max(s, cap)
        d = Concat <axis = 0> (s, more) }"""
    result = rewritten(parse(text))
    types = {o.name: o.type.tensor_type.elem_type for o in result.model.graph.output}
    assert set(types.values()) == {TensorProto.INT64} and len(plugins(result.model)) == 1
    indices = {v.name: v for v in result.model.graph.value_info}[plugins(result.model)[0].output[0]]
    assert indices.type.tensor_type.elem_type == TensorProto.INT64


def test_b34_the_rewritten_graph_runs_without_a_gpu() -> None:
    text = "g (float[n,4] x, bool[n] m) => (float[k,4] y) { i = NonZero(m) t = Transpose(i) " + (
        "y = GatherND(x, t) }"
    )
    model = parse(text)
    patched = rewrite_model(model, function=False).model
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "m": np.array([1, 0, 1], bool)}
    runner = ReferenceEvaluator(patched, new_ops=[NonZeroPlugin])
    assert np.array_equal(runner.run(None, feeds)[0], run(model, feeds)[0])


@pytest.mark.parametrize("raw", [False, True], ids=["inside", "output"])
def test_b35_two_consumers(raw: bool) -> None:
    outputs = "float[k] y, float n0" + (", int64[2,k] i" if raw else "")
    text = f"""g (float[n,4] x) => ({outputs}) <int64 one = {{1}}> {{
        i = NonZero(x) t = Transpose <perm = [1, 0]> (i) y = GatherND(x, t)
        s = Shape(i) c = Gather(s, one) n0 = Cast <to = 1> (c) }}"""
    model = parse(text)
    result = rewritten(model)
    assert result.model.graph.output == model.graph.output
    used = {name for node in result.model.graph.node for name in node.input}
    used |= {output.name for output in model.graph.output}
    dead = [node.op_type for node in result.model.graph.node if not used & set(node.output)]
    assert dead == []


@pytest.mark.parametrize("opset", [11, 13])
def test_b38_helpers_fit_the_opset(opset: int) -> None:
    """Split and Squeeze take axes as attribute below 13, as input from 13 on."""
    split = "<axis = 1, split = [1, 1]> (t)" if opset < 13 else "<axis = 1> (t, sizes)"
    squeeze = "<axes = [1]> (a)" if opset < 13 else "(a, axis)"
    text = f"""g (float[n,4] x, float[n,4] d, bool[n] m) => (int64[k] y, float[n,4] z)
        <int64[2] sizes = {{1, 1}}, int64[1] axis = {{1}}, int64[1] one = {{1}}, float v = {{2}}> {{
        i = NonZero(x) t = Transpose <perm = [1, 0]> (i) a, b = Split {split} y = Squeeze {squeeze}
        j = NonZero(m) u = Transpose(j) s = Shape(j) k = Gather(s, one)
        e = Concat <axis = 0> (k, four) w = Expand(v, e) z = ScatterND(d, u, w) }}"""
    text = text.replace("float v =", "int64[1] four = {4}, float v =")
    model = parse(text, opset=opset)
    result = rewritten(model, zero_signs=False)
    assert [o.version for o in result.model.opset_import if o.domain == ""] == [opset]
    assert outcomes(result) == {"i": "plugin", "j": "removed"}, misses(result)


def test_b40_types_behind_the_custom_node() -> None:
    text = """g (float[n,4] x, bool[n] m) => (float[p] y) {
        i = NonZero(m) t = Transpose(i) p = GatherND(x, t)
        y = ReduceMax <axes = [1], keepdims = 0> (p) }"""
    patched = rewrite_model(parse(text), function=False).model
    inferred = onnx.shape_inference.infer_shapes(patched, strict_mode=True)
    types = {
        v.name: v.type.tensor_type for v in (*inferred.graph.value_info, *inferred.graph.output)
    }
    assert types["p"].elem_type == TensorProto.FLOAT and len(types["p"].shape.dim) == 2
    assert types["p"].shape.dim[1].dim_value == 4
    onnx.checker.check_model(patched, full_check=True)


def test_b41_before_and_after_a_conversion_to_float16() -> None:
    """1e-8 is a zero in FLOAT16: the cast in front of NonZero must not be bypassed.

    onnxruntime itself bypasses it, since it casts FLOAT16 back to FLOAT for its NonZero and makes
    one cast of both; the reference evaluator judges.
    """
    model = parse("""g (float[n] x) => (int64[1,k] y, float16[n] h) {
        h = Cast <to = 10> (x) y = NonZero(h) }""")
    result = rewrite_model(model)
    assert plugins(result.model)[0].input[0] == "h"
    assert "mask-cast" not in result.plan.decisions[0].rules
    x = np.array([1e-8, 1.0], np.float32)
    assert assert_equal_by_reference(model, result.model, [{"x": x}]) == 1
    assert run(result.model, {"x": x})[0].tolist() == [[1]]


@pytest.mark.parametrize("expert", [0, 3])
def test_b42_experts_with_no_and_with_every_token(expert: int) -> None:
    body = " ".join(
        f"""e{k} = Constant <value = int64 {{{k}}}> () g{k} = Gather <axis = 0> (hot, e{k})
        c{k} = Cast <to = 7> (g{k}) i{k} = NonZero(c{k}) t{k} = Transpose <perm = [1, 0]> (i{k})
        a{k}, b{k} = Split <axis = 1> (t{k}) s{k} = Squeeze(b{k}, one) r{k} = Gather(x, s{k})
        y{k} = ReduceSum <keepdims = 0> (r{k}, zero)"""
        for k in range(4)
    )
    outputs = ", ".join(f"float[8] y{k}" for k in range(4))
    text = f"""g (float[6,8] x, int64[4,2,6] hot) => ({outputs})
        <int64[1] one = {{1}}, int64[1] zero = {{0}}> {{ {body} }}"""
    hot = np.zeros((4, 2, 6), np.int64)
    hot[expert, 0] = 1
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    result = rewritten(parse(text), given={"hot": hot, "x": x})
    assert len(plugins(result.model)) == 4
    assert {d.site.dtype for d in result.plan.decisions} == {"INT64"}


@pytest.mark.parametrize("unsqueeze", [True, False], ids=["torchscript", "dynamo"])
def test_b43_the_count_bounds_a_slice(unsqueeze: bool) -> None:
    place = "k0 = Gather <axis = 0> (s, first) k = Unsqueeze(k0, zero)"
    count = place if unsqueeze else "k = Slice(s, zero, one)"
    text = f"""g (int64[1,n] ids, float[m,8] rows, float[1,n,8] emb) => (float[1,n,8] y)
        <int64 first = {{0}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64 token = {{1}},
        int64[1] last = {{-1}}, int64[1] flat = {{-1}}> {{
        q = Equal(ids, token) w = Unsqueeze(q, last) d = Shape(emb) m0 = Expand(w, d)
        i = NonZero(m0) t = Transpose <perm = [1, 0]> (i) s = Shape(t) {count}
        f = Reshape(rows, flat) u = Slice(f, zero, k) y = ScatterND(emb, t, u) }}"""
    model = parse(text)
    result = rewritten(model, sizes={"m": 4})
    assert outcomes(result) == {"i": "plugin"}
    assert not any(node.op_type == "ReduceSum" for node in result.model.graph.node)


def test_b44_a_mask_is_never_an_index() -> None:
    text = "g (float[4] x, bool[4] m) => (float[k] y) { i = NonZero(m) t = Transpose(i) " + (
        "y = GatherND(x, t) }"
    )
    feeds = {"x": np.arange(4, dtype=np.float32), "m": np.array([1, 0, 1, 0], bool)}
    result = rewritten(parse(text), given=feeds)
    assert run(result.model, feeds)[0].tolist() == [0.0, 2.0]


def test_b45_where_a_nonzero_comes_from() -> None:
    text = """g (float[n,4] x, bool c) => (int64[k,2] y, float[p] z) <float h = {0.5}> {
        m = Greater(x, h) i = NonZero(m) y = Transpose(i)
        z = If (c) <then_branch = a () => (float[q] o) { j = NonZero(x) t = Transpose(j)
            o = GatherND(x, t) }, else_branch = b () => (float[r] e) { s = Shape(x)
            e = Cast <to = 1> (s) }> }"""
    model = parse(text)
    node = model.graph.node[1]
    node.name = "node_nonzero"
    key = "pkg.torch.onnx.stack_trace"
    node.metadata_props.add(key=key, value='File "net.py", line 7, in forward\n    y = x[x > 0.5]')
    first, second = scan_model(model, Options()).sites
    assert (first.node, first.graph, first.dtype, first.dims) == (
        "node_nonzero",
        "",
        "BOOL",
        ("n", 4),
    )
    assert first.mask_from == ("Greater", "input") and first.consumers == ("output",)
    assert first.transposed and first.trace == "y = x[x > 0.5]"
    assert second.graph == "If 'If#3'/then_branch" and second.consumers == ("GatherND",)


def test_the_spelling_that_parsers_take() -> None:
    """B31, facts of TensorRT's parser: both outputs named, strings and small integers only."""
    (node,) = plugins(rewritten(parse("g (float[n] x) => (int64[1,k] y) { y = NonZero(x) }")).model)
    assert len(node.output) == 2 and all(node.output)
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert values == {
        "backend": b"cuda_python",
        "perm": [0, 1],
        "index_type": 7,
        "plugin_namespace": b"nonzero_rewrite",
        "plugin_version": b"1",
    }
