"""rows: a mask expanded along the last dims of the data lists rows, and where it must not."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest
from helpers import graphs
from helpers.graphs import misses, ops, outcomes, parse, plugins
from onnx import ModelProto, shape_inference

from nonzero_rewrite import Options, rewrite_model
from nonzero_rewrite.rules import DEFAULT_RULES
from nonzero_rewrite.rules.tape import RULE_KEY

rewritten = functools.partial(graphs.rewritten, zero_signs=False)

WIDE = "f = Unsqueeze(m, minus) s = Shape(x) w = Expand(f, s)"
LIST = "i = NonZero(w) t = Transpose <perm = [1, 0]> (i)"
COUNT = "c = Shape(t) k = Slice(c, zero, one)"
CONSTANTS = (
    "int64[1] zero = {0}, int64[1] one = {1}, int64[1] minus = {-1}, int64[2] axes = {1, 2}, "
    "float two = {2}"
)


def model(
    use: str,
    x: str = "float[n,4] x",
    m: str = "bool[n] m",
    wide: str = WIDE,
    y: str = "",
    more: str = "",
    opset: int = 17,
) -> ModelProto:
    out = y or x.rsplit(" ", 1)[0]
    text = f"g ({x}, {m}{more}) => ({out} y) <{CONSTANTS}> {{ {wide} {LIST} {use} }}"
    return parse(text, opset=opset)


ANY = "h = GatherND(x, r) g = Tanh(h) v = Reshape(g, minus)"
READ = "j = NonZero(m) r = Transpose <perm = [1, 0]> (j)"
WRITE = "y = ScatterND(x, t, v)"


def ranks(result: object) -> list[int]:
    """The rank of each plugin's mask, as its indices show."""
    patched = shape_inference.infer_shapes(result.model)  # type: ignore[attr-defined]
    infos = (*patched.graph.value_info, *patched.graph.output)
    types = {info.name: info.type.tensor_type for info in infos}
    return [
        max(d.dim_value for d in types[node.output[0]].shape.dim)
        for node in plugins(result.model)  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize("opset", [13, 14, 16, 17, 18, 21])
def test_a_write_shares_the_rows_with_the_read(opset: int) -> None:
    result = rewritten(model(f"{READ} {ANY} {WRITE}", opset=opset), ran=12)
    assert set(outcomes(result).values()) == {"plugin"} and ranks(result) == [1]
    assert "rows" in result.plan.decisions[0].rules + result.plan.decisions[1].rules
    assert ops(result.model) == ["NonZeroPlugin", "GatherND", "Tanh", "ScatterND"]


def test_the_update_is_cut_to_the_number_of_items() -> None:
    """As TorchScript writes it: the Shape of the items' indices is D times that of the rows'."""
    use = f"{COUNT} q = Reshape(src, minus) v = Slice(q, zero, k, zero) {WRITE}"
    result = rewritten(
        model(use, more=", float[n,4] src"),
        given={"m": np.array([1, 0, 1], bool)},
        sizes={"n": 3},
        ran=4,
    )
    assert ranks(result) == [1]


def test_reads_become_reads_of_rows() -> None:
    result = rewritten(model("y = GatherND(x, t)", y="float[q]"), ran=12)
    assert ranks(result) == [1] and ops(result.model)[-2:] == ["GatherND", "Reshape"]


@pytest.mark.parametrize("reader", ["y = Shape(t)", "y = Shape(i)", "y = Shape <start = 1> (t)"])
def test_readers_of_the_shape(reader: str) -> None:
    text = f"g = GatherND(x, t) z = ReduceSum(g) b = ReduceMax(g) {reader}"
    assert ranks(rewritten(model(text, y="int64[q]"), ran=8)) == [1]


def test_size_counts_all_coordinates() -> None:
    text = "g = GatherND(x, t) z = Identity(g) y = Size(t)"
    result = rewritten(model(text, y="int64"), ran=12)
    assert outcomes(result)


@pytest.mark.parametrize(
    ("x", "m", "wide", "rank"),
    [
        ("float[n,3,4] x", "bool[n] m", "f = Unsqueeze(m, axes) s = Shape(x) w = Expand(f, s)", 1),
        ("float[b,n,4] x", "bool[b,n] m", WIDE, 2),
        ("float[n,4] x", "bool[n,1] m", "s = Shape(x) w = Expand(m, s)", 1),
        ("float[b,n,4] x", "bool[n,1] m", "s = Shape(x) w = Expand(m, s)", 2),
        ("float[n,4] x", "int32[n] m", WIDE, 1),
        ("float[n,4] x", "float[n] m", WIDE, 1),
        ("float[n,4] x", "bool[1] m", WIDE, 1),
        ("float[b,n,4] x", "bool[1,1] m", "s = Shape(x) w = Expand(m, s)", 1),
        ("float[n,d,e] x", "bool[n,1,1] m", "s = Shape(x) w = Expand(m, s)", 1),
        ("float[n,0] x", "bool[n] m", WIDE, 1),
        ("float[n,?,4] x", "bool[n] m", "f = Unsqueeze(m, axes) s = Shape(x) w = Expand(f, s)", 2),
        (
            "float[n,3,4] x",
            "bool[n] m",
            "last = Constant <value_ints = [2]> () f1 = Unsqueeze(m, one) f = Unsqueeze(f1, last) "
            "s = Shape(x) w = Expand(f, s)",
            1,
        ),
    ],
    ids=[
        *("two-dims", "batch", "squeezed", "broadcast-batch", "int32", "float", "one-flag"),
        *("fewer-dims", "two-symbols", "no-items", "unknown-dim", "unsqueezed-twice"),
    ],
)
def test_shapes_and_types_of_masks(x: str, m: str, wide: str, rank: int) -> None:
    use = f"h = GatherND(x, t) v = Tanh(h) {WRITE}"
    assert ranks(rewritten(model(use, x=x, m=m, wide=wide), ran=8)) == [rank]


def test_rows_of_a_size_that_only_the_input_knows() -> None:
    use = f"h = GatherND(x, t) v = Tanh(h) {WRITE}"
    result = rewritten(model(use, x="float[n,d] x"), ran=12)  # sizes 0 and 1 among them
    assert ranks(result) == [1]
    old = rewritten(model(use, x="float[n,d] x", opset=13), ran=12)
    assert ranks(old) == [2]
    assert misses(old)["rows"] == "the size of a row is not known"


def test_exact_updates_of_rows_need_no_nonzero() -> None:
    use = f"{READ} {COUNT} g = GatherND(x, r) a = Mul(g, two) q = Reshape(a, minus)"
    result = rewritten(model(f"{use} v = Slice(q, zero, k, zero) {WRITE}"), ran=12)
    assert set(outcomes(result).values()) == {"removed"}
    assert ops(result.model) == ["Mul", "Unsqueeze", "Where"]


def test_one_row_written_everywhere_is_no_exact_update() -> None:
    """x[mask] = x[mask][:1]"""
    use = f"{READ} {COUNT} g = GatherND(x, r) a = Slice(g, zero, one, zero)"
    wide = "e = Shape(r) n1 = Slice(e, zero, one) d = Constant <value_ints = [4]> ()"
    use += f" {wide} e2 = Concat <axis = 0> (n1, d) b = Expand(a, e2) v = Reshape(b, minus) {WRITE}"
    result = rewritten(model(use), ran=8)
    assert ranks(result) == [1] and "Where" not in ops(result.model)


@pytest.mark.parametrize(
    ("use", "y", "why"),
    [
        (
            f"h = GatherND(x, t) v = Tanh(h) z = {WRITE[4:]} y = Identity(t)",
            "int64[q,2]",
            "the indices of single items are used as they are",
        ),
        (
            "g = GatherND(x, t) c = Slice(t, zero, one, one) y = Identity(c)",
            "int64[q,1]",
            "Slice uses the indices of single items",
        ),
    ],
)
def test_whoever_needs_single_items_keeps_them(use: str, y: str, why: str) -> None:
    result = rewritten(model(use, y=y), ran=8)
    assert ranks(result) == [2] and misses(result)["rows"] == why


def test_data_with_other_rows() -> None:
    text = "z = GatherND(big, t) y = Identity(z)"
    result = rewritten(model(text, y="float[q]", more=", float[n,5] big"), ran=8)
    assert ranks(result) == [2]
    assert misses(result)["rows"] == "GatherND uses the indices of single items"


def test_a_promise_counts_items() -> None:
    use = f"h = GatherND(x, t) v = Tanh(h) {WRITE}"
    result = rewrite_model(model(use), Options(max_nonzero=8))
    assert ranks(result) == [2]


def test_switched_off() -> None:
    use = f"h = GatherND(x, t) v = Tanh(h) {WRITE}"
    for without in ("rows", "plugin"):
        options = Options(rules=DEFAULT_RULES - {without})
        result = rewritten(model(use), options, ran=12)
        assert "rows" not in result.plan.decisions[0].rules


def test_twice_is_once() -> None:
    first = rewrite_model(model(f"{READ} {ANY} {WRITE}")).model
    data = first.SerializeToString(deterministic=True)
    assert rewrite_model(first).model.SerializeToString(deterministic=True) == data


TANH = "h = GatherND(x, t) v = Tanh(h) y = ScatterND(x, t, v)"


@pytest.mark.parametrize(
    ("shape", "rank"),
    [
        ("s = Constant <value_ints = [4]> ()", 2),
        ("s = Shape <start = 1> (x)", 2),
        ("s = Shape <end = 2> (x)", 1),
        ("s0 = Shape(x) s = Slice(s0, one, last)", 2),
        ("s0 = Shape(x) s1 = Slice(s0, zero, one) s = Concat <axis = 0> (s1, last)", 1),
    ],
)
def test_where_the_shape_comes_from(shape: str, rank: int) -> None:
    """A shape of the last dims only does not hold the number of rows."""
    wide = f"last = Constant <value_ints = [4]> () f = Unsqueeze(m, minus) {shape} w = Expand(f, s)"
    assert ranks(rewritten(model(TANH, wide=wide), ran=12)) == [rank]


def test_rows_of_no_items_do_not_show_how_many_they_are() -> None:
    """src has 5 rows of nothing, m selects 2: both are no items, and no row may be lost."""
    one = model(f"v = Reshape(src, minus) {WRITE}", x="float[n,d] x", more=", float[q,d] src")
    for sizes in ({"n": 3, "d": 0, "q": 5}, {"n": 3, "d": 4, "q": 2}):
        result = rewritten(one, given={"m": np.array([1, 0, 1], bool)}, sizes=sizes, ran=4)
        assert ranks(result) == [1]


@pytest.mark.parametrize("opset", [11, 12])
def test_axes_as_attributes(opset: int) -> None:
    wide = "f = Unsqueeze <axes = [1]> (m) s = Shape(x) w = Expand(f, s)"
    assert ranks(rewritten(model(TANH, wide=wide, opset=opset), ran=12)) == [1]


@pytest.mark.parametrize(("d", "opset", "rank"), [("d,4", 13, 3), ("d,4", 14, 1), ("1,4", 13, 1)])
def test_from_which_opset_rows_of_unknown_size_are_listed(d: str, opset: int, rank: int) -> None:
    wide = "f = Unsqueeze(m, axes) s = Shape(x) w = Expand(f, s)"
    one = model(TANH, x=f"float[n,{d}] x", wide=wide, opset=opset)
    assert ranks(rewritten(one, ran=8)) == [rank]


def test_items_are_counted_by_a_size_that_only_the_input_knows() -> None:
    use = "g = GatherND(x, t) z = Identity(g) y = Shape(t)"
    wide = "f = Unsqueeze(m, axes) s = Shape(x) w = Expand(f, s)"
    one = model(use, x="float[n,d,e] x", wide=wide, y="int64[q]")
    one.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, ["k"]))
    for sizes in ({}, {"d": 2, "e": 5}):
        assert ranks(rewritten(one, sizes=sizes, ran=4)) == [1]


def test_data_that_is_computed() -> None:
    use = "d = Neg(x) h = GatherND(d, t) v = Tanh(h) y = ScatterND(d, t, v)"
    alone = Options(rules=frozenset({"rows", "plugin"}))  # nobody else asks for types
    assert ranks(rewritten(model(use), alone, ran=12)) == [1]
    result = rewritten(model(use), ran=12)
    assert ranks(result) == [1]
    (written,) = [node for node in result.model.graph.node if node.op_type == "ScatterND"]
    assert {entry.key: entry.value for entry in written.metadata_props}[RULE_KEY] == "rows"


def test_indices_that_nobody_uses_are_not_listed() -> None:
    result = rewritten(model(f"dead = Identity(t) {TANH}"), ran=12)
    assert ranks(result) == [1] and len(plugins(result.model)) == 1
    assert result.plan.decisions[0].rules == ("rows", "plugin", "transpose")


@pytest.mark.parametrize(
    ("x", "use"),
    [
        (
            "float[n,2] x",
            "h = GatherND(x, t) v = Tanh(h) z = ScatterND(x, t, v) y = GatherND(t, zero)",
        ),
        ("float[n,2] x", "y = GatherND(x, i)"),
    ],
    ids=["as-data", "rank-first"],
)
def test_indices_in_other_places(x: str, use: str) -> None:
    y = "int64[q]" if "zero" in use else "float[a]"
    one = model(use, x=x, y=y)
    result = rewritten(one, given={"m": np.array([0, 1, 0], bool)}, sizes={"n": 3}, ran=4)
    assert ranks(result) == [2]
    assert misses(result)["rows"] == "GatherND uses the indices of single items"


@pytest.mark.parametrize("source", ["q = Identity(src)", "q = Reshape(src, any)"])
def test_what_is_flattened_need_not_be_rows(source: str) -> None:
    use = f"{source} v = Reshape(q, minus) {WRITE}"
    one = model(use, more=", float[a,2] src, int64[r] any")
    given = {"m": np.array([1, 0, 1], bool), "any": np.array([2, 2, 2])}
    assert ranks(rewritten(one, given=given, sizes={"n": 3, "a": 4}, ran=4)) == [1]


def test_flags_of_unknown_rank() -> None:
    one = model(TANH, wide="f = Reshape(m, to) s = Shape(x) w = Expand(f, s)", more=", int64[r] to")
    rewritten(one, given={"to": np.array([-1, 1])}, ran=8)
