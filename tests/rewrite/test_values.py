"""What is proved without running the model: constants, fills, scalars and equal shapes."""

from __future__ import annotations

import functools

import pytest
from helpers import graphs
from helpers.graphs import misses, outcomes, parse
from onnx import TensorProto

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.graph import Scope, scopes_of
from nonzero_rewrite.infer import Types
from nonzero_rewrite.rules import DEFAULT_RULES
from nonzero_rewrite.values import Facts, keeps_nonzero

rewritten = functools.partial(graphs.rewritten, zero_signs=False)
NO_RAMP = DEFAULT_RULES - {"ramp"}


GIVEN = (
    "int64[3] a = {3, 0, 2}, int64[2] pair = {1, 2}, int64[1] two = {2}, int64[1] far = {-9}, "
    "int64[1] minus = {-1}, int64 zero = {0}, int64 one = {1}, int64 down = {-1}"
)


def of_constant(body: str, rank: int = 1, x: str = "float[2,3]") -> str:
    """A NonZero of ``m``; ``x`` is there because a model needs an input."""
    return f"""g ({x} x) => (int64[{rank},k] y, {x} z) <{GIVEN}> {{
        {body} y = NonZero(m) z = Neg(x) }}"""


@pytest.mark.parametrize(
    ("body", "rank"),
    [
        ("m = Constant <value_ints = [3, 0, 5]> ()", 1),
        ("m = Constant <value_floats = [0.0, 0.5, -0.0]> ()", 1),
        ("c = Constant <value_int = 7> () m = Expand(c, pair)", 2),
        ("c = Constant <value_float = 0.5> () m = Expand(c, two)", 1),
        ("m = Shape(x)", 1),
        ("m = Shape <start = 1> (x)", 1),
        ("m = Shape <end = 1> (x)", 1),
        ("m = Shape <start = -1> (x)", 1),
        ("m = Shape <start = 0, end = 2> (x)", 1),
        ("s = Shape(x) m = ConstantOfShape(s)", 2),
        ("s = Shape(x) m = ConstantOfShape <value = int64[1] {4}> (s)", 2),
        ("s = Shape(x) e = ConstantOfShape(s) m = EyeLike(e)", 2),
        ("m = Sub(a, one)", 1),
        ("m = CumSum(a, zero)", 1),
        ("m = Range(zero, zero, one)", 1),
        (
            "s = Constant <value_int = 70000> () e = Add(s, one) m = Range(s, e, one)",
            1,
        ),
        ("s = Constant <value_ints = [1, 1, 65536]> () m = ConstantOfShape(s)", 3),
        ("m = Gather(a, pair)", 1),
        ("m = Slice(a, two, far, , minus)", 1),
    ],
)
def test_constants_that_are_computed(body: str, rank: int) -> None:
    result = rewritten(parse(of_constant(body, rank)), rules=NO_RAMP)
    assert result.plan.decisions[0].rules == ("constant",), misses(result)


@pytest.mark.parametrize(
    "body",
    [
        "s = Shape(x) r = RandomNormal <shape = [3]> () m = Add(r, r)",
        "f = Constant <value_floats = [1.0, 2.0]> () m = ReduceSum(f)",  # in whatever order
        "f = Constant <value_floats = [1.0, 2.0]> () m = CumSum(f, zero)",
        "t = Constant <value_strings = [\"a\", \"b\"]> () m = Equal(t, t)",
    ],
)  # fmt: skip
def test_what_is_not_computed(body: str) -> None:
    assert outcomes(rewrite_model(parse(of_constant(body)), rules=NO_RAMP)) == {"y": "plugin"}


LIMIT = 1 << 16
SIZED = {
    "ConstantOfShape": "m = ConstantOfShape <value = uint8[1] {1}> (n)",
    "Expand": "m = Expand(one, n)",
    "Tile": "m = Tile(two, n)",
    "Range": "q = Squeeze(n) m = Range(zero, q, one)",
    "Range down": "q = Squeeze(n) p = Neg(q) m = Range(zero, p, down)",
}


@pytest.mark.parametrize("form", SIZED)
@pytest.mark.parametrize(("items", "outcome"), [(LIMIT, "removed"), (LIMIT + 1, "plugin")])
def test_how_large_a_constant_may_become(form: str, items: int, outcome: str) -> None:
    body = f"n = Constant <value_ints = [{items}]> () {SIZED[form]}"
    assert outcomes(rewrite_model(parse(of_constant(body)), rules=NO_RAMP)) == {"y": outcome}


@pytest.mark.parametrize("form", ["Add", "Gather", "OneHot"])
@pytest.mark.parametrize(("side", "outcome"), [(181, "removed"), (257, "plugin")])
def test_how_large_the_result_of_two_constants_may_become(
    form: str, side: int, outcome: str
) -> None:
    """Indices are two numbers for each non-zero, so one item in two hundred is one."""
    zeros = f"s = Constant <value_ints = [{side}, 1]> () c = ConstantOfShape(s)"
    last = {
        "Add": "t = Transpose(c) m = Add(c, t)",
        "Gather": f"t = Transpose(c) f = Constant <value_ints = [{side}]> () "
        "i = ConstantOfShape <value = int64[1] {0}> (f) m = Gather <axis = 0> (t, i)",
        "OneHot": f"f = Constant <value_ints = [{side}]> () "
        "i = ConstantOfShape <value = int64[1] {0}> (f) "
        f"d = Constant <value_int = {side}> () v = Constant <value_ints = [0, 1]> () "
        "m = OneHot(i, d, v)",
    }[form]
    text = of_constant(f"{zeros} {last}", rank=2)
    assert outcomes(rewrite_model(parse(text), rules=NO_RAMP)) == {"y": outcome}


@pytest.mark.parametrize(("length", "outcome"), [(24, "removed"), (25, "plugin")])
@pytest.mark.parametrize("rule", ["constant", "ramp"])
@pytest.mark.parametrize("step", ["Identity", "Cast <to = 7>"])
def test_how_far_up_a_constant_is_looked_for(
    length: int, outcome: str, rule: str, step: str
) -> None:
    start = "v0 = Identity(a)" if rule == "constant" else "s = Shape(x) v0 = ConstantOfShape(s)"
    length -= rule == "constant"
    names = ["v0", *(f"v{n + 1}" for n in range(length - 1)), "m"]
    chain = " ".join(f"{name} = {step} ({names[n]})" for n, name in enumerate(names[1:]))
    text = of_constant(f"{start} {chain}", x="float[n]")
    assert outcomes(rewritten(parse(text), rules={rule, "plugin"})) == {"y": outcome}


def facts_of(text: str) -> tuple[Facts, Scope]:
    model = parse(text)
    return Facts(Types(model), 17, model.ir_version), scopes_of(model)[0]


@pytest.mark.parametrize(
    ("value", "is_one"), [("a", True), ("b", True), ("c", False), ("d", False)]
)
def test_what_counts_as_one_number(value: str, is_one: bool) -> None:
    """A value of two dims does not, since it would add one to what it is written to."""
    text = "g (float a, float[1] b, float[1,1] c, float[n] d) => (float y) { y = Identity(a) }"
    facts, scope = facts_of(text)
    assert facts.scalar(scope, value) == (value if is_one else None)
    text = f"g () => (float y) <float a = {{1}}, float[1] b = {{1}}, float[1,1] c = {{1}}, {FOUR}> "
    facts, scope = facts_of(text + "{ m = Identity(d) y = Abs(a) }")
    assert facts.scalar(scope, value) == (value if is_one else None)


FOUR = "float[2] d = {1, 1}"


def test_a_constant_that_lost_a_dim_is_one_number() -> None:
    facts, scope = facts_of(
        """g () => (float y) <float[1,1] c = {1}, int64[1] minus = {-1}> {
            r = Reshape(c, minus) y = Abs(r) }"""
    )
    assert facts.scalar(scope, "r") == "r"


def test_a_constant_that_a_type_brings_is_found_when_the_type_is_known() -> None:
    facts, scope = facts_of(
        "g (float[2] x) => (int64[1] s) { c = Concat <axis = 0> (x, x) s = Shape(c) }"
    )
    assert facts.constant(scope, "s") is None
    facts.need_shapes([(scope, "s")])
    value = facts.constant(scope, "s")
    assert value is not None and value.tolist() == [4]


@pytest.mark.parametrize(("length", "near"), [(24, True), (25, False)])
def test_how_far_up_facts_are_looked_for(length: int, near: bool) -> None:
    moves = " ".join(f"v{n + 1} = Identity(v{n})" for n in range(length))
    facts, scope = facts_of(f"g (float v0) => (float y) {{ {moves} y = Abs(v{length}) }}")
    assert facts.scalar(scope, f"v{length}") == ("v0" if near else None)
    steps = " ".join(f"v{n + 1} = Neg(v{n})" for n in range(length + 1))
    facts, scope = facts_of(f"g (float[?] v0) => (float[?] y) {{ {steps} y = Abs(v0) }}")
    assert facts.same_shape(scope, f"v{length + 1}", "v0") == near


@pytest.mark.parametrize(
    ("one", "other", "axes", "same"),
    [
        ("a", "a", None, True),
        ("a", "b", None, True),
        ("a", "c", None, False),  # more dims
        ("a", "c", 2, True),  # ... of which the first two are the same
        ("c", "a", 3, False),
        ("c", "a", None, False),
        ("a", "d", None, False),  # another symbol
        ("u", "v", None, False),  # dims that nobody names prove nothing
        ("w", "u", None, True),  # but being computed from the other does
        ("w", "u", 2, True),
        ("w", "u", 1, False),
        ("z", "u", None, False),  # where an operand may be larger
    ],
)
def test_when_shapes_are_surely_the_same(
    one: str, other: str, axes: int | None, same: bool
) -> None:
    inputs = "float[n,4] a, float[n,4] b, float[n,4,2] c, float[m,4] d, float[?,4] u, float[?,4] v"
    steps = "p = Neg(u) w = Mul(p, h) z = Add(u, v) y = Abs(h)"
    facts, scope = facts_of(f"g ({inputs}, float h) => (float y) {{ {steps} }}")
    assert facts.same_shape(scope, one, other, axes) == same


@pytest.mark.parametrize("source", ["STRING", "COMPLEX64", "FLOAT8E4M3FN", "INT4", "UNDEFINED"])
@pytest.mark.parametrize("target", ["BOOL", "FLOAT", "INT64"])
def test_casts_of_other_types_prove_nothing(source: str, target: str) -> None:
    of, to = TensorProto.DataType.Value(source), TensorProto.DataType.Value(target)
    assert not keeps_nonzero(of, to)
