from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nonzero_plugin.contract import NonZeroConfig
from nonzero_plugin.errors import ContractError
from nonzero_plugin.shapes import output_dims


class Integers:
    """The algebra over plain integers; keeps what the size tensor was declared with."""

    def __init__(self, num_nonzero: int) -> None:
        self.num_nonzero = num_nonzero
        self.declared: list[tuple[int, int, int]] = []

    def constant(self, value: int) -> int:
        return value

    def product(self, left: int, right: int) -> int:
        return left * right

    def minimum(self, left: int, right: int) -> int:
        return min(left, right)

    def maximum(self, left: int, right: int) -> int:
        return max(left, right)

    def floor_div(self, left: int, right: int) -> int:
        return left // right

    def size_tensor(self, output: int, opt: int, upper: int) -> int:
        self.declared.append((output, opt, upper))
        return self.num_nonzero


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=8), st.integers(0, 2**40))
def test_both_layouts(dims: list[int], num_nonzero: int) -> None:
    for perm, expected in (((0, 1), (len(dims), num_nonzero)), ((1, 0), (num_nonzero, len(dims)))):
        algebra = Integers(num_nonzero)
        assert output_dims(dims, NonZeroConfig(perm=perm), algebra) == (expected, ())
        ((output, opt, upper),) = algebra.declared
        assert output == 1 and upper == math.prod(dims) and 1 <= opt <= max(upper, 1)


@given(st.lists(st.integers(0, 2**10), min_size=1, max_size=8), st.integers(1, 2**31 - 1))
def test_max_nonzero_caps_the_bound(dims: list[int], maximum: int) -> None:
    algebra = Integers(0)
    output_dims(dims, NonZeroConfig(max_nonzero=maximum), algebra)
    assert algebra.declared[0][2] == min(math.prod(dims), maximum)


@pytest.mark.parametrize("rank", [0, 9])
def test_other_ranks_are_refused(rank: int) -> None:
    with pytest.raises(ContractError, match=f"rank {rank}; NonZeroPlugin takes ranks 1 to 8"):
        output_dims([2] * rank, NonZeroConfig(), Integers(0))
