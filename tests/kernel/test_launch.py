"""The launch arithmetic as laws, for sizes that fit no memory."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nonzero_plugin import launch, tiles
from nonzero_plugin.contract import NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import ContractError

DTYPES = st.sampled_from(list(DType))
CONFIGS = st.builds(
    NonZeroConfig,
    perm=st.sampled_from([(0, 1), (1, 0)]),
    index_type=st.sampled_from([6, 7]),
    max_nonzero=st.none() | st.integers(1, 2**31 - 1),
)
EXTENTS = st.integers(0, 9) | st.integers(0, 70_000) | st.sampled_from([2**16, 2**31, 2**32 + 5])
DIMS = st.lists(EXTENTS, min_size=1, max_size=8).map(tuple).filter(lambda d: math.prod(d) <= 2**40)
FIELDS = struct.Struct("=5Q3Q11I4x8Q8Q8I")
PROCESSORS = st.integers(1, 300)
SHARED = st.integers(48 << 10, 256 << 10)


@given(st.integers(1, 2**31), st.integers(0, 2**31 - 1), st.booleans())
@example(1, 2**31 - 1, False)
@example(2**31, 2**31 - 1, False)
@example(3, 2**31 - 1, False)
def test_multiply_and_shift_divides_exactly(divisor: int, x: int, wide: bool) -> None:
    bits = 64 if wide else 32
    if wide:
        divisor, x = divisor * 2**31 - 1 or 1, x * 2**32 + 7
    multiplier, shift = launch.magic(divisor, bits)
    assert 0 <= multiplier < 1 << bits and 0 <= shift < bits
    assert (2 * x * multiplier >> bits) >> shift == x // divisor


def test_multiply_and_shift_divides_exactly_at_every_edge() -> None:
    for divisor in [*range(1, 3000), *(2**k + d for k in range(2, 31) for d in (-1, 0, 1))]:
        multiplier, shift = launch.magic(divisor, 32)
        top = 2**31 - 1
        for x in {0, divisor - 1, divisor, top // divisor * divisor - 1, top // divisor * divisor}:
            if 0 <= x <= top:
                assert (2 * x * multiplier >> 32) >> shift == x // divisor, (x, divisor)


@given(DIMS, DTYPES, CONFIGS, PROCESSORS, SHARED)
@example((2**32 + 5,), DType.BOOL, NonZeroConfig(), 132, 228 << 10)
@example((2**16, 2**16), DType.BOOL, NonZeroConfig(), 132, 228 << 10)
@example((2**14, 2**14), DType.FLOAT, NonZeroConfig(perm=(1, 0)), 132, 228 << 10)
@example((2**14, 2**14), DType.FLOAT, NonZeroConfig(perm=(1, 0)), 1, 48 << 10)
@example((4 * 8192,), DType.FLOAT, NonZeroConfig(), 1, 48 << 10)
@example((4 * 8192 + 1,), DType.FLOAT, NonZeroConfig(), 1, 48 << 10)
def test_a_plan_covers_every_item_once_within_its_workspace(
    dims: tuple[int, ...], dtype: DType, config: NonZeroConfig, processors: int, shared: int
) -> None:
    plan = launch.plan_launch(dims, dtype, config, processors, shared)
    items = math.prod(dims)
    size = launch.workspace_bytes(dims, dtype, config)
    assert len(plan.parameters) == FIELDS.size
    if not items:
        assert plan.path == "empty" and not plan.steps and size == 0
        return
    values = FIELDS.unpack(plan.parameters)
    assert values[:5] == (0, 0, 0, 0, 0)
    num_items, max_rows, mask, rank, rank_last, _ = values[5:11]
    num_tiles, tile_spans, burst, spans, segments, segment_spans = values[11:17]
    assert (num_items, rank) == (items, len(dims))
    assert max_rows == min(items, config.max_nonzero or items)
    assert mask % 2 ** (8 * dtype.itemsize) == dtype.magnitude_mask
    assert rank_last == int(config.rank_last or rank == 1)
    # The kernel's positions start up to a vector before the input.
    head = 16 // dtype.itemsize - 1 if dtype.itemsize < 4 else 0
    assert plan.wide or items + head + 2**20 <= 2**31
    if plan.path == "small":
        assert (
            num_tiles - 1
        ) * 1024 < items + head <= num_tiles * 1024 and num_tiles <= launch.SMALL_SPANS
        assert size == 0 and plan.steps == (launch.Step("nonzero_small", num_tiles, 32 * 32),)
    elif plan.path == "select":
        (step,) = plan.steps
        large = step.kernel == "nonzero_select_large"
        tile = (tile_spans if large else 8) * 1024
        assert (num_tiles - 1) * tile < items + head <= num_tiles * tile
        assert 4 * plan.zeroed_words == 8 + 8 * num_tiles <= size
        if not large:
            assert step.grid == num_tiles and step.shared_bytes == 0
            return
        blocks = tiles.LARGE_TILE_BLOCKS[dtype.itemsize]
        assert 1 <= step.grid <= min(num_tiles, processors * blocks)
        assert tile_spans % (8 * max(1, 4 // dtype.itemsize)) == 0 < tile_spans <= 64
        assert 1 <= burst <= tiles.MAX_BURST
        # Flags and one row a span, within what the kernel is allowed and, but for the smallest
        # burst, within the block's part of the processor.
        assert step.shared_bytes == burst * tile_spans * (128 + 4)
        assert step.shared_bytes <= tiles.max_burst_bytes(dtype, shared)
        if step.shared_bytes > tile_spans * 132:
            assert blocks * (step.shared_bytes + tiles.LARGE_STATIC_BYTES) <= shared
    else:
        assert items + head <= spans * 1024 < items + head + 64 * 1024
        assert (segments - 1) * segment_spans < spans <= segments * segment_spans
        assert segments <= launch.MAX_SEGMENTS and spans % 64 == 0
        step = 8 * max(1, 4 // dtype.itemsize)
        assert spans % step == 0 and segment_spans % step == 0
        assert spans * 128 + spans * 2 + launch.MAX_SEGMENTS * 4 + 4 <= size
        assert plan.steps[0].grid == segments and 1 <= plan.steps[1].grid <= spans // 8
        if spans < 2**31:
            multiplier, shift = values[17:19]
            for span in (0, 1, segment_spans - 1, segment_spans, spans - 1):
                assert (2 * span * multiplier >> 32) >> shift == span // segment_spans


@given(DIMS, DTYPES, CONFIGS, st.integers(1, 5000))
def test_the_constants_turn_positions_into_coordinates(
    dims: tuple[int, ...], dtype: DType, config: NonZeroConfig, seed: int
) -> None:
    items = math.prod(dims)
    if not items:
        return
    plan = launch.plan_launch(dims, dtype, config, 1, 48 << 10)
    values = FIELDS.unpack(plan.parameters)
    multipliers, extents, shifts = values[19:27], values[27:35], values[35:43]
    bits = 64 if plan.wide else 32
    for flat in {0, items - 1, items // 2, seed % items, items * seed // 5001}:
        rest, want = flat, []
        for extent in reversed(dims):
            want.insert(0, rest % extent)
            rest //= extent
        got, outer = [], 0
        for d in range(len(dims)):
            inner = (2 * flat * multipliers[d] >> bits) >> shifts[d]
            got.append(inner - outer * extents[d])
            outer = inner
        assert got == want


@given(DIMS, DTYPES, CONFIGS, st.integers(0, 7), st.integers(0, 1000))
def test_a_larger_shape_never_needs_less_workspace(
    dims: tuple[int, ...], dtype: DType, config: NonZeroConfig, axis: int, more: int
) -> None:
    grown = list(dims)
    grown[axis % len(dims)] += more
    if math.prod(grown) > launch.MAX_ITEMS:
        return
    assert launch.workspace_bytes(tuple(grown), dtype, config) >= launch.workspace_bytes(
        dims, dtype, config
    )


@pytest.mark.parametrize("rank_last", [True, False])
@pytest.mark.parametrize("dtype", [DType.BOOL, DType.FLOAT])
def test_workspace_is_what_the_documentation_says(rank_last: bool, dtype: DType) -> None:
    config = NonZeroConfig(perm=(1, 0) if rank_last else (0, 1))
    size = launch.workspace_bytes((2**14, 2**14), dtype, config)
    tiles = 2**28 / 8192
    assert size <= (8 * tiles + 64 if rank_last else 2**28 / 8 + 16 * tiles + 2**15)


def test_a_rank_or_extent_that_cannot_be_is_refused() -> None:
    with pytest.raises(ContractError, match="ranks 1 to 8, not rank 0"):
        launch.workspace_bytes((), DType.BOOL, NonZeroConfig())
    with pytest.raises(ContractError, match="ranks 1 to 8, not rank 9"):
        launch.plan_launch((1,) * 9, DType.BOOL, NonZeroConfig(), 1, 48 << 10)
    with pytest.raises(ContractError, match="needs known extents"):
        launch.workspace_bytes((3, -1), DType.BOOL, NonZeroConfig())
    with pytest.raises(ContractError, match=r"up to 2\*\*40 items, not 1099511627777"):
        launch.workspace_bytes((2**40 + 1,), DType.BOOL, NonZeroConfig())
