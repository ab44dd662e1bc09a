"""Compares two values of one tensor: type, then shape, then every item.

Integers, booleans and strings are compared exactly. Floats are bit-equal by default: a NaN equals
only a NaN of the same bits, and 0.0 differs from -0.0, since both sides run the same operators.
With a tolerance, ``|original - patched| <= atol + rtol * |original|`` is asked instead, NaN equals
NaN, and infinities must be equal; integers stay exact.
"""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np


class Words(str, enum.Enum):
    """Members that print as their text (``enum.StrEnum``, which Python 3.10 lacks)."""

    def __str__(self) -> str:
        return str(self.value)


class DifferenceKind(Words):
    """What differs first; later properties are not looked at."""

    INTERFACE = "interface differs"
    COUNT = "count differs"
    INDICES = "indices differ"
    TYPE = "type differs"
    SHAPE = "shape differs"
    VALUES = "values differ"
    FAILS = "patched model does not run"


@dataclass(frozen=True)
class Tolerance:
    """Allowed absolute and relative deviation of floats; both zero means bit-equal.

    Without ``signed_zero``, 0.0 and -0.0 are equal all the same.
    """

    rtol: float = 0.0
    atol: float = 0.0
    signed_zero: bool = True

    @property
    def exact(self) -> bool:
        """True when floats must be bit-equal."""
        return self.rtol == 0.0 and self.atol == 0.0


@dataclass(frozen=True)
class ValueDifference:
    """The first difference between two values.

    ``index`` is the position of the first differing item in row-major order, ``original`` and
    ``patched`` are what stands there (or the types, or the shapes); ``differing`` counts items.
    """

    kind: DifferenceKind
    original: str
    patched: str
    index: tuple[int, ...] | None = None
    differing: int = 0
    items: int = 0

    @property
    def text(self) -> str:
        """One sentence."""
        if self.kind is not DifferenceKind.VALUES:
            return f"{self.kind}: {self.original} in the original, {self.patched} in the patched"
        where = f"[{', '.join(map(str, self.index or ()))}]"
        return (
            f"{self.kind} in {self.differing} of {self.items} items, first at {where}: "
            f"{self.original} in the original, {self.patched} in the patched"
        )


def compare_values(
    original: Any, patched: Any, tolerance: Tolerance | None = None
) -> ValueDifference | None:
    """The first difference of two values of one tensor, None when they are equal.

    Takes arrays of any shape and type, lists of them (sequences), None (empty optionals) and
    plain Python values.
    """
    tolerance = tolerance or Tolerance()
    if isinstance(original, list) or isinstance(patched, list):
        return _compare_lists(original, patched, tolerance)
    if not isinstance(original, np.ndarray | np.generic):
        if type(original) is type(patched) and original == patched:
            return None
        return ValueDifference(DifferenceKind.VALUES, repr(original), repr(patched), (), 1, 1)
    left, right = np.asarray(original), np.asarray(patched)
    if left.dtype != right.dtype:
        return ValueDifference(DifferenceKind.TYPE, str(left.dtype), str(right.dtype))
    if left.shape != right.shape:
        return ValueDifference(DifferenceKind.SHAPE, _dims(left.shape), _dims(right.shape))
    differs = _differing(left, right, tolerance)
    count = int(np.count_nonzero(differs))
    if not count:
        return None
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(differs)), left.shape))
    said = _said(left[index]), _said(right[index])
    if said[0] == said[1]:  # two NaN, say
        said = _said_with_bits(left[index]), _said_with_bits(right[index])
    return ValueDifference(DifferenceKind.VALUES, *said, index, count, left.size)


def _said(item: Any) -> str:
    return repr(str(item)) if isinstance(item, str | bytes) else str(item)


def _said_with_bits(item: Any) -> str:
    return f"{item} ({int.from_bytes(np.asarray(item).tobytes(), sys.byteorder):#x})"


def _differing(left: np.ndarray, right: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    if left.dtype.kind in "OUS":
        return np.asarray(left != right, dtype=bool)
    if left.dtype.kind in "biu" or tolerance.exact:
        differs = np.asarray(_bits(left) != _bits(right))
        return differs if tolerance.signed_zero else differs & ((left != 0) | (right != 0))
    wide = np.result_type(np.float32, left.dtype) if left.dtype.kind in "fc" else np.float32
    a, b = left.astype(wide), right.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(a - b) <= tolerance.atol + tolerance.rtol * np.abs(a)
    return np.asarray(~(close & np.isfinite(a) | (a == b) | (np.isnan(a) & np.isnan(b))))


def _bits(array: np.ndarray) -> np.ndarray:
    """Unsigned words of the items, so that NaN and -0.0 compare by their bits."""
    if array.dtype.kind in "biu":
        return array
    array = np.ascontiguousarray(array)
    if array.dtype.itemsize in (1, 2, 4, 8):
        return np.asarray(array.view(f"u{array.dtype.itemsize}")).reshape(array.shape)
    words: np.ndarray = array.view(np.dtype((np.void, array.dtype.itemsize)))
    return words


def _compare_lists(original: Any, patched: Any, tolerance: Tolerance) -> ValueDifference | None:
    if not (isinstance(original, list) and isinstance(patched, list)):
        names = type(original).__name__, type(patched).__name__
        return ValueDifference(DifferenceKind.TYPE, *names)
    if len(original) != len(patched):
        lengths = f"{len(original)} elements", f"{len(patched)} elements"
        return ValueDifference(DifferenceKind.SHAPE, *lengths)
    for left, right in zip(original, patched, strict=True):
        if difference := compare_values(left, right, tolerance):
            return difference
    return None


def _dims(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
