"""The proof itself is on trial: each wrong rewrite must be noticed on the default inputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import wrong_rewrites as wrong
from onnx import TensorProto, helper

from nonzero_rewrite.compare import DifferenceKind
from nonzero_rewrite.verification import Outcome
from nonzero_rewrite.verify import verify_models

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
# Where a mutant is wrong at all: element types and ranks.
APPLIES = {
    "negative_zero_counts": (FLOATS, (1, 2, 3)),
    "nan_is_zero": (FLOATS, (1, 2, 3)),
    # A subnormal of FLOAT16 is a normal FLOAT, which is what that mutant looks at.
    "subnormal_is_zero": ((TensorProto.FLOAT,), (1, 2, 3)),
    "column_major_order": ((*FLOATS, TensorProto.BOOL), (2,)),
    "swapped_when_square": ((*FLOATS, TensorProto.BOOL), (2, 3)),
}
EVERYWHERE = ((*FLOATS, TensorProto.BOOL), (1, 2, 3))
MUTANTS = [
    (name, elem_type, rank, hide_order)
    for name in wrong.BODIES
    for types, ranks in [APPLIES.get(name, EVERYWHERE)]
    for elem_type in types
    for rank in ranks
    for hide_order in ([False, True] if rank == 2 else [False])
]
INDICES_KIND = {
    "unsorted_order": DifferenceKind.INDICES,
    "column_major_order": DifferenceKind.INDICES,
    "swapped_when_square": DifferenceKind.INDICES,
    "last_one_missing": DifferenceKind.COUNT,
    "last_one_twice": DifferenceKind.COUNT,
    "count_off_by_one": DifferenceKind.COUNT,
    "negative_zero_counts": DifferenceKind.COUNT,
    "nan_is_zero": DifferenceKind.COUNT,
    "subnormal_is_zero": DifferenceKind.COUNT,
}


@pytest.mark.parametrize(
    ("rank", "hide_order"), [(1, False), (2, False), (2, True), (3, False), (4, False)]
)
@pytest.mark.parametrize(
    "elem_type", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL]
)
def test_the_right_rewrite_is_equal(elem_type: int, rank: int, hide_order: bool) -> None:
    model = wrong.original(elem_type, rank, hide_order)
    result = verify_models(model, wrong.patched(model))
    assert result.outcome is Outcome.EQUAL, result.reason
    assert all(c.none and c.some and c.all for c in result.coverage), result.coverage
    assert all(s.patched == s.selected for s in result.selected)


@pytest.mark.parametrize(("mutant", "elem_type", "rank", "hide_order"), MUTANTS)
def test_a_wrong_body_is_noticed(mutant: str, elem_type: int, rank: int, hide_order: bool) -> None:
    model = wrong.original(elem_type, rank, hide_order)
    result = verify_models(model, wrong.patched(model, wrong.BODIES[mutant]()))
    assert result.outcome is Outcome.DIFFERENT, (mutant, result.coverage)
    assert result.reason
    if mutant in INDICES_KIND:
        # Indices that lead outside of a table end the run before they can be compared.
        kinds = {d.kind for d in result.differences if d.kind is not DifferenceKind.FAILS}
        assert INDICES_KIND[mutant] in kinds or not kinds, result.differences


def test_indices_of_another_mask_are_noticed() -> None:
    model = wrong.original(TensorProto.BOOL)
    bad = wrong.patched(model)
    for node in bad.graph.node:
        if node.name == "n_x_pairs":
            node.input[0] = "y_mask"
    result = verify_models(model, bad)
    assert result.outcome is Outcome.DIFFERENT
    assert {d.node for d in result.differences if d.node} == {"n_x_indices"}


def test_a_dropped_consumer_is_noticed() -> None:
    model = wrong.original()
    bad = wrong.patched(model)
    keep = [n for n in bad.graph.node if n.name != "n_y_picked"]
    del bad.graph.node[:]
    bad.graph.node.extend(keep)
    result = verify_models(model, bad)
    assert result.outcome is Outcome.DIFFERENT
    assert result.differences[0].kind is DifferenceKind.FAILS


def test_a_dropped_output_is_noticed() -> None:
    model = wrong.original()
    bad = wrong.patched(model)
    del bad.graph.output[1]
    result = verify_models(model, bad)
    assert result.outcome is Outcome.DIFFERENT
    assert result.differences[0].kind is DifferenceKind.INTERFACE


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_value"),
        lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", TensorProto.DOUBLE),
        lambda m: setattr(m.graph.input[0], "name", "renamed"),
        lambda m: m.graph.output[0].type.tensor_type.ClearField("shape"),
    ],
)
def test_a_changed_interface_is_noticed(change) -> None:
    model = wrong.original()
    bad = wrong.patched(model)
    change(bad)
    result = verify_models(model, bad)
    assert result.outcome is Outcome.DIFFERENT
    assert result.differences[0].kind is DifferenceKind.INTERFACE


def test_one_wrong_bit_of_one_output_is_noticed() -> None:
    """A float that differs in its last bit, and a zero of the other sign."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n"])

    def model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
        return wrong._model(helper.make_graph(list(nodes), "g", [x], [out]))

    plain = model(wrong.node("Identity", ["x"], "out"))
    one_ulp = model(
        wrong.const("scale", np.nextafter(np.float32(1), np.float32(2)), np.float32),
        wrong.node("Mul", ["x", "scale"], "out"),
    )
    no_sign = model(wrong.const("zero", 0, np.float32), wrong.node("Add", ["x", "zero"], "out"))
    assert not verify_models(plain, one_ulp).ok
    assert verify_models(plain, one_ulp, rtol=1e-6).ok
    given = {"x": np.array([1.0, -0.0], dtype=np.float32)}
    assert not verify_models(plain, no_sign, inputs=[given]).ok
