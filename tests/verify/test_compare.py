"""Values of one tensor: type, shape, then every item, bits included."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nonzero_rewrite.compare import DifferenceKind, Tolerance, compare_values

NAN = float("nan")
OTHER_NAN = np.array([0x7FC00001], dtype=np.uint32).view(np.float32)

EQUAL = [
    (np.array([1, 2]), np.array([1, 2])),
    (np.array([NAN, -0.0, np.inf]), np.array([NAN, -0.0, np.inf])),
    (np.array(["a", ""], dtype=object), np.array(["a", ""], dtype=object)),
    (np.zeros((0, 3)), np.zeros((0, 3))),
    (np.array(5), np.array(5)),
    (np.array([1.5], dtype=ml_dtypes.bfloat16), np.array([1.5], dtype=ml_dtypes.bfloat16)),
    ([np.array([1]), np.array([2])], [np.array([1]), np.array([2])]),
    ([], []),
    (None, None),
    ({"a": 1}, {"a": 1}),
    (np.array([1 + 2j]), np.array([1 + 2j])),
]

DIFFERENT = [
    (np.array([1, 2]), np.array([1, 3]), DifferenceKind.VALUES),
    (np.array([1, 2]), np.array([1, 2], dtype=np.int32), DifferenceKind.TYPE),
    (np.array([[0, 1]]), np.array([[0], [1]]), DifferenceKind.SHAPE),
    (np.zeros((2, 0)), np.zeros((0, 2)), DifferenceKind.SHAPE),
    (np.array([0.0]), np.array([-0.0]), DifferenceKind.VALUES),
    (np.array([NAN], dtype=np.float32), OTHER_NAN, DifferenceKind.VALUES),
    (np.array([NAN]), np.array([0.0]), DifferenceKind.VALUES),
    (np.array([1.0], dtype=np.float16), np.array([1.001], dtype=np.float16), DifferenceKind.VALUES),
    (
        np.array([1.5], dtype=ml_dtypes.bfloat16),
        np.array([1.6], dtype=ml_dtypes.bfloat16),
        DifferenceKind.VALUES,
    ),
    (np.array(["a"], dtype=object), np.array(["b"], dtype=object), DifferenceKind.VALUES),
    ([np.array([1])], [np.array([1]), np.array([2])], DifferenceKind.SHAPE),
    ([np.array([1])], [np.array([2])], DifferenceKind.VALUES),
    ([np.array([1])], np.array([1]), DifferenceKind.TYPE),
    (None, np.array([1]), DifferenceKind.VALUES),
    (np.array([True]), np.array([False]), DifferenceKind.VALUES),
    (np.array([1 + 2j]), np.array([1 - 2j]), DifferenceKind.VALUES),
]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_equal(left, right) -> None:
    assert compare_values(left, right) is None
    assert compare_values(left, right, Tolerance(1e-3, 1e-3)) is None


@pytest.mark.parametrize(("left", "right", "kind"), DIFFERENT)
def test_different(left, right, kind) -> None:
    found = compare_values(left, right)
    assert found is not None
    assert found.kind is kind
    assert found.text


def test_the_first_differing_item_is_named_in_row_major_order() -> None:
    left = np.arange(6).reshape(2, 3)
    right = left.copy()
    right[0, 2], right[1, 0] = 70, 80
    found = compare_values(left, right)
    assert found is not None
    assert (found.index, found.differing, found.items) == ((0, 2), 2, 6)
    assert "first at [0, 2]" in found.text
    assert "2" in found.original
    assert "70" in found.patched


def test_tolerance_is_for_floats_alone() -> None:
    loose = Tolerance(rtol=0.1, atol=1.0)
    assert compare_values(np.array([10, 20]), np.array([10, 21]), loose) is not None
    assert compare_values(np.array([10.0]), np.array([10.5]), loose) is None
    assert compare_values(np.array([10.0]), np.array([13.0]), loose) is not None
    assert compare_values(np.array([np.inf]), np.array([1.0]), loose) is not None
    assert compare_values(np.array([np.inf]), np.array([-np.inf]), loose) is not None
    assert compare_values(np.array([1.0]), np.array([NAN]), loose) is not None
    assert compare_values(np.array([NAN]), np.array([1.0]), loose) is not None
    halves = np.array([1, 1.25], dtype=np.float16)
    assert compare_values(halves[:1], halves[1:], Tolerance(rtol=0.3)) is None


FLOATS = hnp.arrays(
    np.float32, hnp.array_shapes(max_dims=3, max_side=4), elements=st.floats(width=32)
)


@given(FLOATS)
def test_every_array_equals_itself_and_one_changed_bit_differs(array: np.ndarray) -> None:
    assert compare_values(array, array.copy()) is None
    if array.size:
        words = array.copy().view(np.uint32)
        words.reshape(-1)[array.size // 2] ^= 1
        found = compare_values(array, words.view(np.float32))
        assert found is not None
        assert found.differing == 1


def test_without_signed_zero_only_zeros_become_equal() -> None:
    loose = Tolerance(signed_zero=False)
    for left, right in [(0.0, -0.0), (-0.0, 0.0), (3.0, 3.0), (NAN, NAN)]:
        assert compare_values(np.array([left]), np.array([right]), loose) is None
    for left, right in [(0.0, 5.0), (5.0, 0.0), (1.0, 2.0), (1.0, -1.0), (NAN, 0.0)]:
        assert compare_values(np.array([left]), np.array([right]), loose) is not None
    nan = np.array([NAN], dtype=np.float32)
    assert compare_values(nan, OTHER_NAN, loose) is not None


def test_a_deviation_of_just_the_tolerance_is_allowed() -> None:
    assert compare_values(np.array([10.0]), np.array([11.0]), Tolerance(atol=1.0)) is None
    assert compare_values(np.array([10.0]), np.array([11.0]), Tolerance(rtol=0.1)) is None
    assert compare_values(np.array([10.0]), np.array([11.0]), Tolerance(atol=0.99)) is not None


def test_doubles_are_compared_as_doubles() -> None:
    left, right = np.array([1.0]), np.array([1.0 + 1e-12])
    assert compare_values(left, right, Tolerance(rtol=1e-13)) is not None
    assert compare_values(left, right, Tolerance(rtol=1e-11)) is None


def test_plain_values_need_type_and_value() -> None:
    assert compare_values({"a": 1}, {"a": 2}) is not None
    found = compare_values(1, 1.0)
    assert found is not None
    assert "in 1 of 1 items" in found.text


def test_only_values_count_items() -> None:
    found = compare_values(np.zeros(2), np.zeros(3))
    assert found is not None
    assert (found.differing, found.items, found.index) == (0, 0, None)


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        (np.array([5], np.int64), np.array([7], np.int64), ("5", "7")),
        (np.array([0.1], np.float32), np.array([0.2], np.float32), ("0.1", "0.2")),
        (np.array([0.0], np.float32), np.array([-0.0], np.float32), ("0.0", "-0.0")),
        (np.array([True]), np.array([False]), ("True", "False")),
        (np.array(["a"], object), np.array(["b"], object), ("'a'", "'b'")),
        (
            np.array([0x7FC00000], np.uint32).view(np.float32),
            np.array([0x7FC00001], np.uint32).view(np.float32),
            ("nan (0x7fc00000)", "nan (0x7fc00001)"),
        ),
    ],
)
def test_items_are_said_as_numbers(left: np.ndarray, right: np.ndarray, said: tuple) -> None:
    found = compare_values(left, right)
    assert found is not None
    assert (found.original, found.patched) == said
