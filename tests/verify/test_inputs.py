"""Inputs that exercise every mask: searched, bound from files, honest about what is missing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import build
from onnx import TensorProto, helper, numpy_helper

from nonzero_rewrite.errors import VerificationError
from nonzero_rewrite.input_specs import read_spec
from nonzero_rewrite.inputs import bind_inputs, load_inputs, make_inputs

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def node(op, inputs, *outputs, **attributes):
    return helper.make_node(op, list(inputs), list(outputs), name=f"n_{outputs[0]}", **attributes)


def constant(name, value, dtype):
    return numpy_helper.from_array(np.asarray(value, dtype=dtype), name)


def masked(op, bound, dtype=np.float32, elem_type=FLOAT, dims=("n", 4)):
    """NonZero(op(x, bound))."""
    return build.model(
        [node(op, ["x", "bound"], "mask"), node("NonZero", ["mask"], "indices")],
        {"x": (elem_type, dims)},
        {"indices": (INT64, [len(dims), None])},
        initializers=[constant("bound", bound, dtype)],
    )


REACHABLE = {
    "score threshold": masked("Greater", 0.99),
    "tiny threshold": masked("Less", 1e-6),
    "large threshold": masked("Greater", 1000.0),
    "negative large": masked("Less", -1000.0),
    "float itself": build.nonzero(FLOAT),
    "float16 itself": build.nonzero(TensorProto.FLOAT16),
    "double itself": build.nonzero(TensorProto.DOUBLE),
    "bool itself": build.nonzero(BOOL, ("n",)),
    "int64 itself": build.nonzero(INT64, ("n", "m", 2)),
    "int32 itself": build.nonzero(TensorProto.INT32, (3, 4)),
    "uint8 itself": build.nonzero(TensorProto.UINT8, (3, 4)),
    "int8 itself": build.nonzero(TensorProto.INT8, (3, 4)),
    "bfloat16 itself": build.nonzero(TensorProto.BFLOAT16, (3, 4)),
    "token id": masked("Equal", 12345, np.int64, INT64),
    "equal to one float": masked("Equal", 0.625),
    "five dims": build.nonzero(FLOAT, (2, 1, "a", 3, "b")),
}


@pytest.mark.parametrize("name", REACHABLE)
def test_none_some_and_all_are_reached(name: str) -> None:
    found = make_inputs(REACHABLE[name])
    (cover,) = found.coverage
    assert (cover.none, cover.some, cover.all) == (True, True, True), found
    assert not cover.note
    assert {"random", "empty", "full"} <= {case.name for case in found.cases}


def test_masks_that_exclude_each_other_are_both_reached() -> None:
    model = build.model(
        [
            node("Greater", ["x", "high"], "above"),
            node("Less", ["x", "low"], "below"),
            node("NonZero", ["above"], "a"),
            node("NonZero", ["below"], "b"),
        ],
        {"x": (FLOAT, ["n"])},
        {"a": (INT64, [1, None]), "b": (INT64, [1, None])},
        initializers=[constant("high", 5.0, np.float32), constant("low", -5.0, np.float32)],
    )
    assert all(c.none and c.some and c.all for c in make_inputs(model).coverage)


def test_a_mask_of_the_sum_is_reached_by_mixing_extremes() -> None:
    """Rows whose sum lies in a narrow band: no distribution of the list does that by itself."""
    model = build.model(
        [
            node("ReduceMean", ["x"], "mean", axes=[1], keepdims=0),
            node("Greater", ["mean", "low"], "mask"),
            node("NonZero", ["mask"], "indices"),
        ],
        {"x": (FLOAT, ["n", 64])},
        {"indices": (INT64, [1, None])},
        initializers=[constant("low", 7.0, np.float32)],
    )
    (cover,) = make_inputs(model).coverage
    assert cover.some


def test_indices_stay_inside_their_table() -> None:
    """ids -> Cast -> Gather of a table of 11 rows: no searched input leads outside."""
    model = build.model(
        [
            node("Cast", ["ids"], "wide", to=INT64),
            node("Unsqueeze", ["wide", "axes"], "column"),
            node("Gather", ["table", "column"], "rows"),
            node("NonZero", ["rows"], "indices"),
        ],
        {"ids": (TensorProto.INT32, ["n"])},
        {"indices": (INT64, [3, None])},
        initializers=[
            constant("axes", [1], np.int64),
            constant("table", np.eye(11, 3), np.float32),
        ],
    )
    (spec,) = read_spec(model).inputs
    assert spec.limit == 11
    for case in make_inputs(model).cases:
        assert np.all((case.feeds["ids"] >= 0) & (case.feeds["ids"] < 11))


def test_equal_symbols_get_equal_sizes_and_other_axes_other_sizes() -> None:
    model = build.model(
        [node("Add", ["x", "y"], "z"), node("NonZero", ["z"], "indices")],
        {"x": (FLOAT, ["rows", "columns"]), "y": (FLOAT, ["rows", "columns"])},
        {"indices": (INT64, [2, None])},
    )
    case = make_inputs(model).cases[0]
    assert case.feeds["x"].shape == case.feeds["y"].shape
    assert case.feeds["x"].shape[0] != case.feeds["x"].shape[1]


def test_symbols_that_must_agree_without_saying_so() -> None:
    """Exporters name the dims of each input apart: x_d0 and mask_d0 must be equal all the same."""
    model = build.model(
        [
            node("NonZero", ["mask"], "nz"),
            node("Transpose", ["nz"], "pairs", perm=[1, 0]),
            node("GatherND", ["x", "pairs"], "picked"),
        ],
        {"x": (FLOAT, ["x_d0", 4]), "mask": (BOOL, ["mask_d0"])},
        {"picked": (FLOAT, [None, 4])},
    )
    case = make_inputs(model).cases[0]
    assert case.feeds["x"].shape[0] == case.feeds["mask"].shape[0]


def test_edge_dims_are_cases_where_the_original_runs_with_them() -> None:
    found = make_inputs(build.nonzero(FLOAT, ("n", "m")))
    edges = {case.name: case.feeds["x"].shape for case in found.cases if case.origin == "edge"}
    assert edges["n = 0"][0] == 0
    assert edges["m = 1"][1] == 1
    assert edges["every dynamic dim = 0"] == (0, 0)


def test_a_dim_the_original_refuses_is_a_note() -> None:
    model = build.model(
        [node("Reshape", ["x", "shape"], "y"), node("NonZero", ["y"], "indices")],
        {"x": (FLOAT, ["n"])},
        {"indices": (INT64, [2, None])},
        initializers=[constant("shape", [-1, 2], np.int64)],
    )
    found = make_inputs(model)
    assert any("n = 1" in note for note in found.notes), found.notes


def test_a_mask_no_value_can_change_is_said_to_be_so() -> None:
    model = build.model(
        [
            node("Shape", ["x"], "shape"),
            node("ConstantOfShape", ["shape"], "ones", value=constant("v", [1], np.int64)),
            node("NonZero", ["ones"], "indices"),
        ],
        {"x": (FLOAT, ["n"])},
        {"indices": (INT64, [1, None])},
    )
    (cover,) = make_inputs(model).coverage
    assert not cover.some
    assert "whatever the inputs' values are" in cover.note


def test_an_unreachable_mask_is_said_to_be_so() -> None:
    model = build.model(
        [
            node("Abs", ["x"], "size"),
            node("Less", ["size", "zero"], "mask"),
            node("NonZero", ["mask"], "indices"),
        ],
        {"x": (FLOAT, ["n"])},
        {"indices": (INT64, [1, None])},
        initializers=[constant("zero", 0.0, np.float32)],
    )
    (cover,) = make_inputs(model).coverage
    assert (cover.none, cover.some, cover.all) == (True, False, False)
    assert "selects none of its items on each of" in cover.note


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others() -> None:
    model = REACHABLE["score threshold"]
    first, second, other = (make_inputs(model, seed=seed) for seed in (1, 1, 2))
    assert [c.name for c in first.cases] == [c.name for c in second.cases]
    for one, two in zip(first.cases, second.cases, strict=True):
        np.testing.assert_array_equal(one.feeds["x"], two.feeds["x"])
    assert any(
        one.feeds["x"].shape != two.feeds["x"].shape or np.any(one.feeds["x"] != two.feeds["x"])
        for one, two in zip(first.cases, other.cases, strict=False)
    )


def test_a_spent_time_budget_is_said() -> None:
    found = make_inputs(REACHABLE["score threshold"], time_budget=0.0)
    assert found.cases
    assert any("time budget" in note for note in found.notes)


def test_strings_are_drawn_from_what_the_model_knows() -> None:
    model = build.model(
        [
            node("Equal", ["words", "word"], "mask"),
            node("NonZero", ["mask"], "indices"),
        ],
        {"words": (TensorProto.STRING, ["n"])},
        {"indices": (INT64, [1, None])},
        initializers=[helper.make_tensor("word", TensorProto.STRING, [1], [b"sil"])],
        opset=19,
    )
    (cover,) = make_inputs(model).coverage
    assert cover.all


def sequence_model() -> onnx.ModelProto:
    model = build.model(
        [
            node("ConcatFromSequence", ["xs"], "x", axis=0),
            node("NonZero", ["x"], "indices"),
        ],
        {},
        {"indices": (INT64, [2, None])},
    )
    info = helper.make_tensor_sequence_value_info("xs", FLOAT, ["n", 3])
    model.graph.input.append(info)
    return model


def test_sequences_are_made() -> None:
    found = make_inputs(sequence_model())
    (cover,) = found.coverage
    assert cover.some
    assert isinstance(found.cases[0].feeds["xs"], list)


def test_inputs_that_cannot_be_made_are_named() -> None:
    model = build.nonzero(FLOAT)
    info = onnx.ValueInfoProto(name="odd")
    info.type.map_type.key_type = INT64
    info.type.map_type.value_type.tensor_type.elem_type = FLOAT
    model.graph.input.append(info)
    with pytest.raises(VerificationError, match="no inputs can be made for 'odd' \\(map\\)"):
        make_inputs(model)


def test_inputs_without_a_shape() -> None:
    model = build.model(
        [node("NonZero", ["x"], "indices")], {"x": (FLOAT, None)}, {"indices": (INT64, None)}
    )
    assert make_inputs(model).coverage[0].some


def test_initializers_that_are_inputs_keep_their_default() -> None:
    model = masked("Greater", 0.5)
    model.graph.input.append(build.value("bound", FLOAT, []))
    assert [spec.name for spec in read_spec(model).inputs] == ["x"]
    assert set(make_inputs(model).cases[0].feeds) == {"x"}


def test_files_bind_by_name_or_by_number() -> None:
    spec = read_spec(REACHABLE["score threshold"])
    array = np.zeros((2, 4), np.float32)
    assert bind_inputs(spec, {"x": array}).keys() == {"x"}
    assert bind_inputs(spec, {"i0": array, "o0": array}).keys() == {"x"}


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, "no value for 'x'"),
        ({"y": 1}, "'y' is no input of the model; its inputs are 'x'"),
        ({"x": 1, "i1": 2}, "'i1' is no input"),
    ],
)
def test_files_that_do_not_fit_say_why(feeds, words: str) -> None:
    with pytest.raises(VerificationError, match=words):
        bind_inputs(read_spec(REACHABLE["score threshold"]), feeds, "inputs")


def test_load_inputs(tmp_path) -> None:
    good = tmp_path / "good.npz"
    np.savez(good, x=np.ones(3))
    assert load_inputs(good).keys() == {"x"}
    single, text, pickled = tmp_path / "a.npy", tmp_path / "b.npz", tmp_path / "c.npz"
    np.save(single, np.ones(3))
    text.write_text("not an archive")
    np.savez(pickled, x=np.array([{}], dtype=object))
    for path in (single, text, pickled, tmp_path / "missing.npz"):
        with pytest.raises(VerificationError, match=path.name):
            load_inputs(path)
    damaged = tmp_path / "d.npz"
    damaged.write_bytes(good.read_bytes()[:60])
    with pytest.raises(VerificationError, match=r"d\.npz"):
        load_inputs(damaged)
