"""What stands between a selection and a masked write: cuts, layouts, and how long it may be."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import pytest
from helpers import graphs
from helpers.graphs import misses, outcomes, parse

rewritten = functools.partial(graphs.rewritten, zero_signs=False)

CONSTANTS = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1}, int64[1] far = {9}"
LETTERS: Mapping[str, str] = {"z": "zero", "o": "one", "l": "last", "f": "far", "k": "k", "-": ""}


def write(chain: str, x: str = "float[n,4]", m: str = "bool[n,4]", more: str = "") -> str:
    return f"""g ({x} x, {m} m) => ({x} y) <{CONSTANTS}{more}> {{
        i = NonZero(m) t = Transpose(i) s = Shape(t) k = Slice(s, zero, one)
        p = GatherND(x, t) {chain} y = ScatterND(x, t, u) }}"""


def slice_of(letters: str) -> str:
    """Starts, ends, axes and steps, one letter each; ``-`` leaves one out."""
    return f"d = Neg(p) u = Slice(d, {', '.join(LETTERS[each] for each in letters)})"


@pytest.mark.parametrize("letters", ["zk", "zf", "zkz", "zk-", "zkzo", "zk-o", "zfz-"])
def test_a_cut_from_the_start_changes_no_update(letters: str) -> None:
    result = rewritten(parse(write(slice_of(letters))), ran=10)
    assert result.plan.decisions[0].rules[:1] == ("elementwise",), misses(result)


@pytest.mark.parametrize("letters", ["ok", "of", "okz", "lk", "kf", "zkl", "zkzk", "zkkk"])
def test_a_cut_that_may_move_items_is_no_copy(letters: str) -> None:
    """Such a model runs only on inputs where the cut happens to leave as many items."""
    result = rewritten(parse(write(slice_of(letters))), ran=0)
    assert outcomes(result) == {"i": "plugin"}
    assert misses(result)["elementwise"] == "Slice is not exact item by item"


def test_every_second_item() -> None:
    chain = "d = Concat <axis = 0> (p, p) u = Slice(d, zero, far, zero, two)"
    text = write(chain, more=", int64[1] two = {2}")
    mask = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1]], bool)
    assert outcomes(rewritten(parse(text), given={"m": mask})) == {"i": "plugin"}


# -- the selection is another one -----------------------------------------------------------------


def test_items_picked_by_the_indices_turned_round() -> None:
    text = """g (float[2,2] x, bool[2,2] m) => (float[2,2] y) {
        i = NonZero(m) t = Transpose(i) p = GatherND(x, i) u = Neg(p) y = ScatterND(x, t, u) }"""
    result = rewritten(parse(text), given={"m": np.array([[1, 0], [1, 0]], bool)}, ran=12)
    assert outcomes(result) == {"i": "plugin"}


def test_items_picked_batch_by_batch() -> None:
    text = """g (float[4,4] x, bool[4] m) => (float[4,4] y) {
        i = NonZero(m) t = Transpose(i) p = GatherND(x, t) q = GatherND <batch_dims = 1> (x, t)
        u = Add(p, q) y = ScatterND(x, t, u) }"""
    result = rewritten(parse(text), given={"m": np.ones(4, bool)}, ran=12)
    assert misses(result)["elementwise"] == "GatherND uses the indices in another way"


# -- long ways ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "outcome"), [(33, "removed"), (34, "plugin")])
def test_how_long_a_computation_may_be(length: int, outcome: str) -> None:
    names = ["p", *(f"v{number}" for number in range(length - 1)), "u"]
    chain = " ".join(f"{name} = Neg({names[n]})" for n, name in enumerate(names[1:]))
    result = rewritten(parse(write(chain)))
    assert outcomes(result) == {"i": outcome}, misses(result)
