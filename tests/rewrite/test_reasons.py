"""Each reason for which a NonZero is left alone, its sentence, and that the model still runs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.graphs import (
    NonZeroPlugin,
    assert_equal_by_reference,
    ops,
    parse,
    plugins,
    rewritten,
)
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from nonzero_rewrite import RewriteResult, rewrite_model
from nonzero_rewrite.rules import DEFAULT_RULES, SkipReason

SENTENCES = {
    SkipReason.EXCLUDED: "excluded by the options or the plan",
    SkipReason.IN_SUBGRAPH: (
        "inside a control-flow body, where TensorRT allows no data-dependent shape"
    ),
    SkipReason.IN_FUNCTION: "inside a model-local function that is not inlined",
    SkipReason.RANK_UNKNOWN: (
        "the rank of its input is not known (--rules +any-rank leaves it to TensorRT)"
    ),
    SkipReason.RANK_ZERO: (
        "its input is a scalar, where ONNX and onnxruntime disagree about the result"
    ),
    SkipReason.RANK_TOO_HIGH: "its input has more dimensions than TensorRT's eight",
    SkipReason.DTYPE_UNKNOWN: "the type of its input is not known",
    SkipReason.DTYPE_UNSUPPORTED: "its input type has no exact form that the plugin takes",
    SkipReason.MALFORMED: "the node has not exactly one input and one output",
}


def single(elem_type: int, dims: list[object] | None) -> onnx.ModelProto:
    rank = "r" if dims is None else len(dims)
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"], name="nz")],
        "g",
        [helper.make_tensor_value_info("x", elem_type, dims)],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [rank, "k"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def unknown_type() -> onnx.ModelProto:
    """Behind a custom operator nothing is known."""
    model = single(TensorProto.FLOAT, ["n"])
    model.opset_import.append(helper.make_opsetid("other", 1))
    model.graph.node.insert(0, helper.make_node("Op", ["x"], ["m"], domain="other"))
    model.graph.node[1].input[0] = "m"
    return model


def malformed(inputs: int, outputs: int) -> onnx.ModelProto:
    model = single(TensorProto.FLOAT, ["n"])
    node = model.graph.node[0]
    del node.input[:], node.output[:]
    node.input.extend(["x"] * inputs)
    node.output.extend(f"y{k}" for k in range(outputs))
    return model


IN_LOOP = """g (float[n] first) => (float[n] y) <int64 trips = {2}, bool go = {1}> {
    y = Loop (trips, go, first) <body = b (int64 i, bool c, float[n] v) => (bool d, float[n] w) {
        d = Identity(c) nz = NonZero(v) t = Transpose(nz) p = GatherND(v, t)
        z = ReduceSum <keepdims = 0> (p) w = Add(v, z) }> }"""
FUNCTION = """<domain: "local", opset_import: ["": 17]> f (a) => (b) { b = NonZero(a) }"""

CASES = {
    "excluded": (SkipReason.EXCLUDED, lambda: rewrite_model(single(1, ["n"]), skip=("nz",))),
    "no plugin": (
        SkipReason.EXCLUDED,
        lambda: rewrite_model(single(1, ["n"]), rules=DEFAULT_RULES - {"plugin"}),
    ),
    "loop": (SkipReason.IN_SUBGRAPH, lambda: rewrite_model(parse(IN_LOOP))),
    "function": (
        SkipReason.IN_FUNCTION,
        lambda: rewrite_model(
            parse("g (float[n] x) => (int64[1,k] y) { y = local.f(x) }", tail=FUNCTION),
            rules=DEFAULT_RULES - {"inline-function"},
        ),
    ),
    "no rank": (SkipReason.RANK_UNKNOWN, lambda: rewrite_model(single(1, None))),
    "rank 0": (SkipReason.RANK_ZERO, lambda: rewrite_model(single(1, []))),
    "rank 9": (SkipReason.RANK_TOO_HIGH, lambda: rewrite_model(single(1, ["n"] + [1] * 8))),
    "no type": (SkipReason.DTYPE_UNKNOWN, lambda: rewrite_model(unknown_type())),
    "string": (
        SkipReason.DTYPE_UNSUPPORTED,
        lambda: rewrite_model(single(TensorProto.STRING, ["n"])),
    ),
    "complex": (
        SkipReason.DTYPE_UNSUPPORTED,
        lambda: rewrite_model(single(TensorProto.COMPLEX64, ["n"])),
    ),
    "float8": (
        SkipReason.DTYPE_UNSUPPORTED,
        lambda: rewrite_model(single(TensorProto.FLOAT8E4M3FN, ["n"])),
    ),
    "two inputs": (SkipReason.MALFORMED, lambda: rewrite_model(malformed(2, 1))),
    "no input": (SkipReason.MALFORMED, lambda: rewrite_model(malformed(0, 1))),
    "no output": (SkipReason.MALFORMED, lambda: rewrite_model(malformed(1, 0))),
    "two outputs": (SkipReason.MALFORMED, lambda: rewrite_model(malformed(1, 2))),
}


@pytest.mark.parametrize("name", CASES)
def test_reason(name: str) -> None:
    reason, make = CASES[name]
    result: RewriteResult = make()
    (decision,) = result.plan.decisions
    assert (decision.outcome, decision.reason) == ("left", reason)
    assert decision.summary == SENTENCES[reason] and not result.changed
    assert decision.to_dict()["reason"] == reason.name


def test_every_reason_has_a_case_and_a_sentence() -> None:
    assert {reason for reason, _ in CASES.values()} == set(SkipReason)
    assert {reason: reason.value for reason in SkipReason} == SENTENCES


def test_left_in_a_loop_runs_as_before() -> None:
    result = rewritten(parse(IN_LOOP))
    assert not result.changed


def test_any_rank_leaves_it_to_tensorrt() -> None:
    result = rewrite_model(single(1, None), rules=DEFAULT_RULES | {"any-rank"})
    assert ops(result.model) == ["NonZeroPlugin"]


@pytest.mark.parametrize("rank", range(1, 9))
def test_ranks(rank: int) -> None:
    result = rewritten(single(TensorProto.FLOAT, ["n", *[2] * (rank - 1)]))
    assert ops(result.model) == ["NonZeroPlugin"]


NATIVE = [TensorProto.BOOL, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32]
NATIVE += [TensorProto.INT64, TensorProto.INT8, TensorProto.BFLOAT16]
THROUGH_A_CAST = [TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.UINT32]
THROUGH_A_CAST += [TensorProto.UINT64, TensorProto.DOUBLE]


@pytest.mark.parametrize("elem_type", [*NATIVE, *THROUGH_A_CAST])
@pytest.mark.parametrize("dims", [(7,), (3, 4), (2, 3, 2), (0, 4)])
def test_types_judged_by_the_reference_evaluator(elem_type: int, dims: tuple[int, ...]) -> None:
    """onnxruntime has no NonZero for half of them."""
    model = single(elem_type, list(dims))
    result = rewrite_model(model)
    onnx.checker.check_model(result.model, full_check=True)
    assert ops(result.model) == (["Cast"] if elem_type in THROUGH_A_CAST else []) + [
        "NonZeroPlugin"
    ]
    x = values(elem_type, dims)
    assert assert_equal_by_reference(model, result.model, [{"x": x}]) == 1
    body = ReferenceEvaluator(result.model).run(None, {"x": x})[0]
    spec = ReferenceEvaluator(result.model, new_ops=[NonZeroPlugin]).run(None, {"x": x})[0]
    assert np.array_equal(body, spec), "the function's body is the operator"


def values(elem_type: int, dims: tuple[int, ...]) -> np.ndarray:
    """Zeros of both signs, NaN, subnormals, the smallest and the largest."""
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    items = int(np.prod(dims))
    if elem_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        bits = np.array([0, 0x8000, 1, 0x8001, 0x7E00, 0xFC00, 0x3C00], np.uint16)
        return np.resize(bits, items).view(dtype).reshape(dims)
    if np.issubdtype(dtype, np.floating):
        tiny = np.finfo(dtype).smallest_subnormal
        special = [0.0, -0.0, tiny, -tiny, np.nan, -np.inf, 1.0]
        return np.resize(np.array(special, dtype), items).reshape(dims)
    if dtype == np.bool_:
        return np.resize(np.array([False, True, True, False]), items).reshape(dims)
    info = np.iinfo(dtype)
    special = [0, info.min, info.max, 0, 1, 0, info.max // 2 + 1]
    return np.resize(np.array(special, dtype), items).reshape(dims)


def test_shared_inputs_of_a_cast_type_are_cast_once() -> None:
    text = """g (uint8[n] x) => (int64[1,k] y, int64[k,1] z) {
        y = NonZero(x) i = NonZero(x) z = Transpose(i) }"""
    result = rewritten(parse(text))
    assert ops(result.model).count("Cast") == 1 and len(plugins(result.model)) == 1
