"""share and mask-cast: equal masks become one node, casts that keep every zero are bypassed."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.graphs import misses, ops, outcomes, parse, plugins, rewritten
from onnx import TensorProto, helper

from nonzero_rewrite.rules import DEFAULT_RULES
from nonzero_rewrite.values import keeps_nonzero

X = "float[n,4] x"


# -- share -----------------------------------------------------------------------------------------


def test_equal_nonzero_become_one() -> None:
    """A YOLO head picks boxes, scores and classes by one mask, with a NonZero for each."""
    chains = " ".join(
        f"i{k} = NonZero(m) t{k} = Transpose(i{k}) y{k} = GatherND(x{k}, t{k})" for k in range(4)
    )
    inputs = ", ".join(f"float[n] x{k}" for k in range(4))
    outputs = ", ".join(f"float[k{k}] y{k}" for k in range(4))
    result = rewritten(parse(f"g (bool[n] m, {inputs}) => ({outputs}) {{ {chains} }}"))
    assert ops(result.model) == ["NonZeroPlugin", *["GatherND"] * 4]
    assert all(d.rules == ("plugin", "transpose", "share") for d in result.plan.decisions)
    assert len({d.node for d in result.plan.decisions}) == 1


def test_masks_computed_twice_are_equal() -> None:
    text = f"""g ({X}) => (int64[2,k] y, int64[2,j] z) <float h = {{0.5}}> {{
        a = Greater(x, h) y = NonZero(a) b = Greater(x, h) c = Identity(b) z = NonZero(c) }}"""
    result = rewritten(parse(text))
    assert ops(result.model) == ["Greater", "NonZeroPlugin", "Identity"]
    assert {output.name for output in result.model.graph.output} == {"y", "z"}
    assert "share" in result.plan.decisions[0].rules


@pytest.mark.parametrize(
    "second",
    [
        "b = Less(x, h)",  # another operator
        "b = Greater(h, x)",  # other order of inputs
        "n = Neg(x) b = Greater(n, h)",  # another input
        "h2 = Constant <value_float = 0.25> () b = Greater(x, h2)",  # another constant
    ],
)
def test_masks_that_may_differ_are_not_shared(second: str) -> None:
    text = f"""g ({X}) => (int64[2,k] y, int64[2,j] z) <float h = {{0.5}}> {{
        a = Greater(x, h) y = NonZero(a) {second} z = NonZero(b) }}"""
    assert len(plugins(rewritten(parse(text)).model)) == 2


def test_attributes_tell_masks_apart() -> None:
    text = """g (float[n,4] x) => (int64[2,k] y, int64[2,j] z) {
        a = Cast <to = 9> (x) y = NonZero(a) b = Cast <to = 6> (x) z = NonZero(b) }"""
    assert len(plugins(rewritten(parse(text)).model)) == 2


def test_the_number_of_parts_tells_masks_apart() -> None:
    """Up to opset 17, Split without sizes makes as many equal parts as it has outputs."""
    text = """g (float[12] x) => (int64[1,k] y, int64[1,j] z) {
        a, b = Split(x) y = NonZero(a) c, d, e = Split(x) z = NonZero(c) }"""
    assert len(plugins(rewritten(parse(text)).model)) == 2


@pytest.mark.parametrize(("length", "nodes"), [(8, 1), (9, 2)])
def test_how_far_up_masks_are_compared(length: int, nodes: int) -> None:
    chains = [
        " ".join(f"{c}{n + 1} = Neg({f'{c}{n}' if n else 'x'})" for n in range(length))
        for c in "ab"
    ]
    text = f"""g ({X}) => (int64[2,k] y, int64[2,j] z) {{
        {" ".join(chains)} y = NonZero(a{length}) z = NonZero(b{length}) }}"""
    assert len(plugins(rewritten(parse(text)).model)) == nodes


def test_random_masks_are_not_equal() -> None:
    text = """g () => (int64[2,k] y, int64[2,j] z) <float h = {0.0}> {
        r = RandomNormal <shape = [8, 8]> () a = Greater(r, h) y = NonZero(a)
        s = RandomNormal <shape = [8, 8]> () b = Greater(s, h) z = NonZero(b) }"""
    from nonzero_rewrite import rewrite_model

    assert len(plugins(rewrite_model(parse(text)).model)) == 2


def test_outputs_of_shared_nonzero_keep_their_names() -> None:
    text = f"g ({X}) => (int64[2,k] y, int64[k,2] z, int64[2,k] w) {{ " + (
        "y = NonZero(x) i = NonZero(x) z = Transpose(i) w = NonZero(x) }"
    )
    result = rewritten(parse(text))
    assert len(plugins(result.model)) == 1
    assert sorted(ops(result.model)) == ["Identity", "NonZeroPlugin", "Transpose"]


def test_without_share() -> None:
    text = f"g ({X}) => (int64[2,k] y, int64[2,k] z) {{ y = NonZero(x) z = NonZero(x) }}"
    result = rewritten(parse(text), rules=DEFAULT_RULES - {"share"})
    assert len(plugins(result.model)) == 2


def test_value_numbers_walk_each_value_once() -> None:
    """Concat of 40 times a Concat of 40 times ...: 40 ** 6 paths lead to the top."""
    wide = [f"v{k + 1} = Concat <axis = 0> ({', '.join([f'v{k}'] * 40)})" for k in range(6)]
    text = f"""g (float[n,4] v0) => (int64[2,k] y, int64[2,j] z) <float[p,4] v6> {{
        {" ".join(wide)} y = NonZero(v6) e = Neg(v6) z = NonZero(e) }}"""
    assert (
        len(plugins(rewritten(parse(text), given={"v0": np.zeros((0, 4), np.float32)}).model)) == 2
    )


# -- mask-cast -------------------------------------------------------------------------------------

TYPES = {
    "bool": TensorProto.BOOL,
    "float": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "double": TensorProto.DOUBLE,
}


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", ["bool", "float", "float16", "int32", "int64", "uint8"])
def test_casts_are_bypassed_where_exact(source: str, target: str) -> None:
    text = f"""g ({source}[n] x) => (int64[1,k] y) {{
        c = Cast <to = {TYPES[target]}> (x) y = NonZero(c) }}"""
    model = parse(text)
    given = None
    if source == "int64":
        given = {"x": np.array([0, 1, 2**32, -(2**33), 256, 2**53 + 1], np.int64)}
    if source == "int32":
        given = {"x": np.array([0, 1, 256, 65536, -512], np.int32)}
    if source == "double":
        # onnxruntime makes one cast of DOUBLE -> FLOAT16 -> FLOAT, which it needs for its NonZero.
        given = {"x": np.array([0.0, -0.0, 1e-300, 1e-46, np.nan, 1.0])}
    result = rewritten(model, given=given)
    exact = keeps_nonzero(TYPES[source], TYPES[target])
    bypassed = "mask-cast" in result.plan.decisions[0].rules
    assert bypassed == (exact and target != source) or (source == target and bypassed)
    assert (plugins(result.model)[0].input[0] == "c") == (not exact and target != "uint8")


NUMERIC = [
    *("BOOL", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"),
    *("FLOAT16", "BFLOAT16", "FLOAT", "DOUBLE"),
]
EXACT_ALL_THE_SAME = {("FLOAT16", "BFLOAT16")}
"""Casts that keep every non-zero and are not said to."""


@pytest.mark.parametrize("source", NUMERIC)
@pytest.mark.parametrize("target", NUMERIC)
def test_the_exactness_table_against_numpy(source: str, target: str) -> None:
    of, to = TensorProto.DataType.Value(source), TensorProto.DataType.Value(target)
    dtype = helper.tensor_dtype_to_np_dtype(of)
    wide = np.array(
        [0.5, 1e-300, 1e-45, 1e-40, 1e-10, 6e-8, 1, 3.5, 2.0**70, np.nan, np.inf, -1e-40]
    )
    powers = np.array([1 << bit for bit in range(64)], np.uint64)
    with np.errstate(all="ignore"):
        items = (powers if np.issubdtype(dtype, np.integer) else wide).astype(dtype)
        items = items[items != 0]
        kept = bool(np.all(items.astype(helper.tensor_dtype_to_np_dtype(to)) != 0))
    assert keeps_nonzero(of, to) == (kept and (source, target) not in EXACT_ALL_THE_SAME)


def test_a_chain_of_casts() -> None:
    text = f"""g ({X}) => (int64[2,k] y) <float h = {{0.5}}> {{
        m = Greater(x, h) a = Cast <to = 1> (m) b = Identity(a) c = Cast <to = 7> (b)
        y = NonZero(c) }}"""
    result = rewritten(parse(text))
    # FLOAT -> INT64 is not exact for every FLOAT, but it is for the 0 and 1 of a BOOL.
    assert ops(result.model) == ["Greater", "NonZeroPlugin"]


def test_a_chain_of_casts_that_each_keep_every_item() -> None:
    text = """g (float16[n] x) => (int64[1,k] y) {
        a = Cast <to = 1> (x) b = Cast <to = 11> (a) c = Cast <to = 9> (b) y = NonZero(c) }"""
    assert ops(rewritten(parse(text)).model) == ["NonZeroPlugin"]


def test_a_chain_of_casts_from_floats() -> None:
    text = f"""g ({X}) => (int64[2,k] y) {{
        a = Identity(x) c = Cast <to = 7> (a) d = Cast <to = 1> (c) y = NonZero(d) }}"""
    result = rewritten(parse(text))
    # INT64 -> FLOAT keeps every non-zero, FLOAT -> INT64 does not.
    assert ops(result.model) == ["Identity", "Cast", "NonZeroPlugin"]


def test_a_cast_with_other_users_stays() -> None:
    text = (
        """g (bool[n] m) => (int64[1,k] y, float[n] c) { c = Cast <to = 1> (m) y = NonZero(c) }"""
    )
    result = rewritten(parse(text))
    assert ops(result.model) == ["Cast", "NonZeroPlugin"]
    assert plugins(result.model)[0].input[0] == "m"


def test_without_mask_cast() -> None:
    text = "g (bool[n] m) => (int64[1,k] y) { c = Cast <to = 1> (m) y = NonZero(c) }"
    result = rewritten(parse(text), rules=DEFAULT_RULES - {"mask-cast"})
    assert ops(result.model) == ["Cast", "NonZeroPlugin"]
    assert misses(result) == {}


def test_two_casts_never_stand_in_a_row() -> None:
    """onnxruntime up to 1.23 makes one of them: FLOAT -> INT64 -> BOOL became FLOAT -> BOOL."""
    text = f"g ({X}) => (int64[2,k] y) {{ c = Cast <to = 7> (x) y = NonZero(c) }}"
    (function,) = rewritten(parse(text)).model.functions
    assert [node.op_type for node in function.node][:2] == ["Concat", "Cast"]

    text = f"g ({X}) => (int64[2,k] y) {{ c = Cast <to = 2> (x) y = NonZero(c) }}"
    assert ops(rewritten(parse(text)).model) == ["Cast", "Concat", "Cast", "NonZeroPlugin"]

    text = text.replace("y = NonZero(c)", "d = Identity(c) y = NonZero(d)")
    result = rewritten(parse(text), rules=DEFAULT_RULES - {"mask-cast"})
    assert ops(result.model) == ["Cast", "Identity", "Concat", "Cast", "NonZeroPlugin"]

    text = "g (float[n] x) => (int64[1,k] y) { y = NonZero(x) }"
    (function,) = rewritten(parse(text)).model.functions
    assert function.node[0].op_type == "Cast"


def test_declared_types_hide_no_values_that_decide_a_rank() -> None:
    """Axes that a converter declared count by their values: of the sum no type says the rank."""
    model = parse(
        """g (float[n,4,3] x) => (int64[r,k] y) <int64[2] axes> {
            axes = Constant <value = int64[2] {-1, -2}> ()
            s = ReduceSum <keepdims = 0> (x, axes)
            e = Cast <to = 9> (s)
            y = NonZero(e) }"""
    )
    assert outcomes(rewritten(model, ran=8)) == {"y": "plugin"}
