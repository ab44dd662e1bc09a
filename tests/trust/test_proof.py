"""Mutants of the proof itself that its own tests did not notice, each with a test that does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.graphs import parse

from nonzero_rewrite import rewrite_model, verify_models
from nonzero_rewrite.compare import DifferenceKind
from nonzero_rewrite.interface import interface_differences
from nonzero_rewrite.observe import (
    Mask,
    find_masks,
    find_unobserved,
    fixed_masks,
    match_masks,
    observable_names,
)
from nonzero_rewrite.rules.tape import RULE_KEY
from nonzero_rewrite.verify import compare_masks

FUNCTION = '<domain: "{}", opset_import: ["": 17]> {} (a) => (b) {{ b = NonZero(a) }}'


@pytest.mark.parametrize(
    ("domain", "name", "seen"),
    [
        ("nonzero_rewrite", "NonZeroPlugin", False),
        ("nonzero_rewrite", "Other", True),
        ("local", "NonZeroPlugin", True),
        ("local", "Other", True),
    ],
)
def test_only_our_own_function_is_left_out_of_what_cannot_be_watched(
    domain: str, name: str, seen: bool
) -> None:
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Abs(x) }'
    model = onnx.parser.parse_model(head + FUNCTION.format(domain, name))
    expected = (f"b in function {domain}::{name}",) if seen else ()
    assert find_unobserved(model) == expected


MASKED = """g (float[n] x) => (float[n] y) {
    m = Abs(x)
    i = NonZero(m)
    p = Transpose(i)
    s = Constant<value = float[1] {2.0}>()
    c = Shape<start = 0, end = 1>(p)
    u = Expand(s, c)
    y = ScatterND(x, p, u)
}"""


def test_that_zeros_are_compared_without_their_sign_is_said_exactly_where_they_are() -> None:
    masked, plain = parse(MASKED), parse("g (float[n] x) => (int64[1, k] i) { i = NonZero(x) }")
    for model, is_said in ((masked, True), (plain, False)):
        patched = rewrite_model(model).model
        assert any(node.op_type == "Where" for node in patched.graph.node) is is_said
        result = verify_models(model, patched)
        assert result.ok, result.reason
        assert any("0.0 and -0.0 count as equal" in note for note in result.notes) is is_said


def test_a_nonzero_that_a_rule_did_away_with_is_accounted_for_all_the_same() -> None:
    model = parse(MASKED)
    result = verify_models(model, rewrite_model(model).model)
    assert len(result.selected) == len(result.cases) > 0
    assert {(s.node, s.input, s.patched, s.over_promise) for s in result.selected} == {
        ("i", "m", None, False)
    }
    assert {s.selected == s.items for s in result.selected} == {True, False}


@pytest.mark.parametrize(
    ("domain", "op_type", "watched"),
    [
        ("nonzero_rewrite", "NonZeroPlugin", True),
        ("nonzero_rewrite", "Other", False),
        ("other", "NonZeroPlugin", False),
        ("other", "NonZero", False),
        ("", "NonZero", True),
        ("ai.onnx", "NonZero", True),
    ],
)
def test_masks_are_known_by_operator_and_domain(domain: str, op_type: str, watched: bool) -> None:
    model = parse("g (float[n] x) => (int64[1, k] i) { i = NonZero(x) }")
    model.graph.node[0].op_type, model.graph.node[0].domain = op_type, domain
    assert [mask.indices for mask in find_masks(model)] == (["i"] if watched else [])


NESTED = """g (float[n] x, bool go) => (int64[1, k] y) {
    y = If(go) <
        then_branch = t () => (int64[1, k] a) {
            a = If(go) <
                then_branch = u () => (int64[1, k] c) { c = NonZero(x) },
                else_branch = v () => (int64[1, k] d) { d = NonZero(x) }
            >
        },
        else_branch = e () => (int64[1, k] b) { b = NonZero(x) }
    >
}"""


def test_what_cannot_be_watched_is_named_by_node_and_place() -> None:
    model = parse(NESTED)
    outer = model.graph.node[0]
    outer.name = "outer"
    other = next(a.g for a in outer.attribute if a.name == "else_branch")
    other.node[0].name = "named"
    assert sorted(find_unobserved(model)) == [
        "c in If 'outer' then_branch/If '' then_branch",
        "d in If 'outer' then_branch/If '' else_branch",
        "named in If 'outer' else_branch",
    ]


def test_outputs_are_equal_in_as_many_cases_as_were_compared() -> None:
    model = parse(MASKED)
    result = verify_models(model, rewrite_model(model).model)
    assert [(o.name, o.cases, o.equal) for o in result.outputs] == [
        ("y", len(result.cases), len(result.cases))
    ]


def test_broken_nodes_are_no_masks() -> None:
    model = parse("g (float[n] x) => (int64[1, k] i) { i = NonZero(x) }")
    for inputs, outputs in (([], ["a"]), (["x"], []), (["x"], [""])):
        broken = onnx.helper.make_node("NonZero", inputs, outputs)
        model.graph.node.append(broken)
    assert [mask.indices for mask in find_masks(model)] == ["i"]


def test_a_mask_varies_with_what_it_is_computed_from() -> None:
    model = parse(
        """g (float[n] x) => (int64[1, k] i, int64[1, l] j) {
            a = Abs(x)
            b = Neg(a)
            i = NonZero(b)
            c = Shape(x)
            d = ConstantOfShape(c)
            j = NonZero(d)
        }"""
    )
    assert fixed_masks(model, find_masks(model)) == {1}


def test_what_the_search_for_inputs_noticed_is_told() -> None:
    model = parse(
        """g (float[n] x) => (int64[1, k] i, float y) {
            i = NonZero(x)
            zero = Constant<value_int = 0>()
            y = Gather(x, zero)
        }"""
    )
    result = verify_models(model, rewrite_model(model).model)
    assert result.ok
    assert result.notes == ("the original does not run with n = 0 (refused)",)


def test_an_output_tells_its_first_difference_and_the_case() -> None:
    model = parse("g (float[n] x) => (int64[1, k] i, float[n] y) { i = NonZero(x) y = Abs(x) }")
    other = rewrite_model(model).model
    next(node for node in other.graph.node if node.op_type == "Abs").op_type = "Relu"
    result = verify_models(model, other)
    first, second = result.outputs
    assert (first.difference, first.equal) == ("", first.cases)
    found = [each for each in result.differences if each.tensor == "y"]
    assert second.equal == second.cases - len(found) > 0
    assert second.difference == f"{found[0].text} (case {found[0].case!r})"
    assert result.reason == f"'y' in case {found[0].case!r}: {found[0].text}"


def test_a_where_that_a_rule_wrote_into_a_branch_is_found_too() -> None:
    text = """g (float[n] x, bool go) => (float[n] y) {
        y = If(go) <
            then_branch = t () => (float[n] a) { c = Cast<to = 9>(x) a = Where(c, x, x) },
            else_branch = e () => (float[n] b) { b = Abs(x) }
        >
    }"""
    model, written = parse(text), parse(text)
    where = written.graph.node[0].attribute[0].g.node[1]
    where.metadata_props.add(key=RULE_KEY, value="masked-write")
    for patched, is_said in ((model, False), (written, True)):
        notes = verify_models(model, patched).notes
        assert any("0.0 and -0.0 count as equal" in note for note in notes) is is_said


def test_the_count_of_rows_is_told_beside_that_of_the_original() -> None:
    model = parse(
        "g (float[n, 4] x) => (int64[k, 2] p) { i = NonZero(x) p = Transpose<perm = [1, 0]>(i) }"
    )
    result = verify_models(model, rewrite_model(model).model)
    assert len({each.selected for each in result.selected}) > 2
    assert [each.patched for each in result.selected] == [s.selected for s in result.selected]


def test_the_first_wrong_index_is_named_with_its_place() -> None:
    node = Mask("n", "x", "i")
    (found,) = compare_masks(
        np.array([[0, 1, 2], [4, 5, 6]]), np.array([[0, 1, 2], [4, 7, 6]]), node
    )
    assert found.text == "indices differ: 5 at [1, 1] in the original, 7 in the patched"
    assert (found.index, found.differing, found.items) == ((1, 1), 1, 6)


@pytest.mark.parametrize("rank_last", [True, False])
def test_indices_of_another_rank_have_another_shape(rank_last: bool) -> None:
    node = Mask("n", "x", "i", rank_last=rank_last)
    (found,) = compare_masks(np.array([[0, 1]]), np.array([0, 1]), node)
    assert found.kind is DifferenceKind.SHAPE


def test_a_mask_is_known_by_what_it_looks_at_where_the_indices_have_another_name() -> None:
    here, there = Mask("", "m", "i"), Mask("", "m", "renamed")
    other = Mask("", "m", "second")
    assert match_masks((here,), (there, other)) == {"i": there}, "the first that looks at it"
    assert match_masks((here,), (Mask("", "another", "renamed"),)) == {}


def test_what_cannot_be_watched_in_a_branch_of_a_function_is_named() -> None:
    model = parse("g (float[n] x) => (float[n] y) { y = Abs(x) }")
    function = model.functions.add(domain="local", name="F")
    function.node.append(parse(NESTED).graph.node[0])
    assert sorted(find_unobserved(model)) == [
        "b in function local::F/If '' else_branch",
        "c in function local::F/If '' then_branch/If '' then_branch",
        "d in function local::F/If '' then_branch/If '' else_branch",
    ]


def test_only_what_a_node_makes_and_no_output_holds_is_added_as_an_output() -> None:
    model = parse("g (float[n] x) => (int64[1, k] i) { m = Abs(x) i = NonZero(m) }")
    assert observable_names(model, ["x", "m", "i", "m", "nowhere"]) == ["m"]


def said_of(left: str, right: str) -> list[str]:
    return [each.text for each in interface_differences(parse(left), parse(right))]


def test_interfaces_are_told_apart_by_kind_type_and_dims() -> None:
    tensor = "g (float[n, 2] x) => (float[n, 2] y) { y = Abs(x) }"
    assert said_of(tensor, tensor) == []
    assert said_of(tensor, tensor.replace("float[n, 2] y", "seq(float[n, 2]) y")) == [
        "graph output 'y' is tensor_type in the original, sequence_type in the patched"
    ]
    assert said_of(tensor, tensor.replace("float[n, 2] x", "double[n, 2] x")) == [
        "graph input 'x' has type FLOAT in the original, DOUBLE in the patched"
    ]
    assert said_of(tensor, tensor.replace("[n, 2] y", "[n, 3] y")) == [
        "graph output 'y' is declared [n, 2] in the original, [n, 3] in the patched"
    ]


def test_an_initializer_may_be_an_output_and_a_default_is_no_input() -> None:
    model = parse("g (float[2] x, float[2] w) => (float[2] y, float[2] w) { y = Add(x, w) }")
    model.graph.initializer.add(name="w", data_type=1, dims=[2], float_data=[0, 1])
    other = onnx.ModelProto()
    other.CopyFrom(model)
    other.graph.input.pop()
    assert interface_differences(model, other) == []
    other.graph.output.pop()
    (found,) = interface_differences(model, other)
    assert found.text == "graph outputs are ['y', 'w'] in the original, ['y'] in the patched"
