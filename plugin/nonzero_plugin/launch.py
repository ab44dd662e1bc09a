"""From a shape to a launch: path, tiles, grid, workspace bytes and kernel arguments.

Pure integer arithmetic of any size, no CUDA: what is wrong here is wrong on every machine, and
tests show it on any. The constants are handed to ``kernels/nonzero.cu`` as ``-D`` defines, so both
sides count with the same numbers.

Words, as the kernel uses them: a *span* is 1024 consecutive items, 32 bits of flags for each lane
of one warp. A *tile* is what one block of the one-pass kernel takes, a *segment* the run of spans
that one block of the flag kernel takes.
"""

from __future__ import annotations

import ctypes
import math
import struct
from dataclasses import dataclass
from typing import Literal

from nonzero_plugin.contract import INDEX_INT32, MAX_RANK, MIN_RANK, NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import ContractError

BLOCK_THREADS = 256
WARPS = BLOCK_THREADS // 32
SPAN_ITEMS = 1024
SMALL_TILE_ITEMS = WARPS * SPAN_ITEMS
SMALL_TILES = 4
"""Up to this many tiles every block recounts what comes before it: one launch, no workspace."""
LARGE_TILE_SPANS = {1: 16, 2: 8, 4: 8, 8: 4}
"""Spans each warp takes of a large tile, by bytes an item: whole groups of four."""
LARGE_FROM_BYTES = 1 << 26
"""Inputs of at least this size use the larger tile in the one-pass kernel."""
LARGE_TILE_BLOCKS = {1: 4, 2: 5, 4: 6, 8: 6}
"""Blocks of the large one-pass kernel that a processor should hold: bounds its registers."""
FLAG_BLOCKS = 6
"""The same for the flag kernel."""
WRITE_BLOCKS = 5
"""The same for the two-pass writer."""
SPANS_MULTIPLE = 32
"""The two-pass kernels work on a multiple of so many spans, whatever a step of theirs is."""
MAX_SEGMENTS = 2048
ALIGNMENT = 16
"""Bytes of the vector loads of 1- and 2-byte items. The kernel starts at the aligned address at or
below the input's, so that a few more positions than there are items may have to be covered."""

MAX_ITEMS = 1 << 40
"""Beyond any device's memory; keeps tiles and spans within 31 bits."""

_WIDE_FROM_ITEMS = (1 << 31) - (1 << 20)
"""From here on, item positions (with alignment and tile padding) may not fit 31 bits."""

Path = Literal["empty", "small", "select", "flag_write"]


def num_items(dims: tuple[int, ...]) -> int:
    """Product of the extents.

    Raises:
        ContractError: for a rank outside 1 to 8, a negative extent or more than 2**40 items.
    """
    if not MIN_RANK <= len(dims) <= MAX_RANK:
        raise ContractError(
            f"NonZeroPlugin takes ranks {MIN_RANK} to {MAX_RANK}, not rank {len(dims)} {dims}"
        )
    if any(extent < 0 for extent in dims):
        raise ContractError(f"NonZeroPlugin needs known extents, not {dims}")
    items = math.prod(dims)
    if items > MAX_ITEMS:
        raise ContractError(f"NonZeroPlugin takes up to 2**40 items, not {items} {dims}")
    return items


def large_tile_items(dtype: DType) -> int:
    """Items of a large tile of the one-pass kernel."""
    return WARPS * LARGE_TILE_SPANS[dtype.itemsize] * SPAN_ITEMS


def is_one_pass(rank: int, config: NonZeroConfig) -> bool:
    """Whether a row's place depends on the items before it only, so that one pass is enough.

    In the ``[rank, num_nonzero]`` layout the second row starts where the whole count says.
    """
    return config.rank_last or rank == 1


def _covering(items: int, dtype: DType, size: int) -> int:
    """Tiles of ``size`` items that cover ``items`` wherever the input is aligned."""
    before = ALIGNMENT // dtype.itemsize - 1 if dtype.itemsize < 4 else 0
    return -(-(items + before) // size)


def _path(items: int, dtype: DType, rank: int, config: NonZeroConfig) -> Path:
    if items == 0:
        return "empty"
    if _covering(items, dtype, SMALL_TILE_ITEMS) <= SMALL_TILES:
        return "small"
    return "select" if is_one_pass(rank, config) else "flag_write"


def _select_tile_items(items: int, dtype: DType) -> int:
    large = items * dtype.itemsize >= LARGE_FROM_BYTES
    return large_tile_items(dtype) if large else SMALL_TILE_ITEMS


def _select_bytes(items: int, dtype: DType) -> int:
    """The ticket and one 64-bit status a tile."""
    return 8 + 8 * _covering(items, dtype, _select_tile_items(items, dtype))


def _flag_spans(items: int, dtype: DType) -> int:
    return _covering(items, dtype, SPANS_MULTIPLE * SPAN_ITEMS) * SPANS_MULTIPLE


def _flag_bytes(items: int, dtype: DType) -> int:
    """One bit an item, 16 bits a span, 32 bits a segment and a ticket."""
    spans = _flag_spans(items, dtype)
    return spans * (SPAN_ITEMS // 8) + spans * 2 + MAX_SEGMENTS * 4 + 16


def workspace_bytes(dims: tuple[int, ...], dtype: DType, config: NonZeroConfig) -> int:
    """Device bytes one enqueue needs for a shape; never less for a larger one.

    The same for every backend, so that an engine does not depend on which one runs it.

    Raises:
        ContractError: for a rank outside 1 to 8 or a negative extent.
    """
    items = num_items(dims)
    path = _path(items, dtype, len(dims), config)
    if path in ("empty", "small"):
        return 0
    if path == "flag_write":
        return _flag_bytes(items, dtype)
    smaller = min(items, LARGE_FROM_BYTES // dtype.itemsize - 1)
    return max(_select_bytes(items, dtype), _select_bytes(smaller, dtype))


def kernel_defines(dtype: DType, config: NonZeroConfig, *, wide: bool) -> dict[str, int]:
    """The ``-D`` defines of the compilation that serves this type, index type and size."""
    return {
        "WORD_BYTES": dtype.itemsize,
        "INDEX_BYTES": 4 if config.index_type == INDEX_INT32 else 8,
        "WIDE": int(wide),
        "BLOCK_THREADS": BLOCK_THREADS,
        "SPAN_ITEMS": SPAN_ITEMS,
        "ALIGNMENT": ALIGNMENT,
        "MAX_SEGMENTS": MAX_SEGMENTS,
        "LARGE_TILE_SPANS": LARGE_TILE_SPANS[dtype.itemsize],
        "LARGE_TILE_BLOCKS": LARGE_TILE_BLOCKS[dtype.itemsize],
        "FLAG_BLOCKS": FLAG_BLOCKS,
        "WRITE_BLOCKS": WRITE_BLOCKS,
    }


def is_wide(items: int) -> bool:
    """Whether item positions need 64-bit arithmetic."""
    return items >= _WIDE_FROM_ITEMS


def magic(divisor: int, bits: int) -> tuple[int, int]:
    """Multiplier m and shift s with ``x // divisor == (2 * x * m >> bits) >> s``.

    For any ``0 <= x < 2**(bits - 1)`` and ``1 <= divisor <= 2**(bits - 1)``; m fits ``bits`` bits
    (Granlund & Montgomery, "Division by Invariant Integers using Multiplication", 1994).
    """
    shift = (divisor - 1).bit_length()
    return (1 << (bits - 1 + shift)) // divisor + 1, shift


@dataclass(frozen=True)
class Step:
    """One kernel of a plan and its number of blocks, each of ``BLOCK_THREADS`` threads."""

    kernel: str
    grid: int


@dataclass(frozen=True)
class LaunchPlan:
    """All that one enqueue does for one shape, addresses aside.

    Attributes:
        path: which of the kernel file's paths runs.
        wide: whether the 64-bit compilation is needed.
        zeroed_words: 32-bit words at the start of the workspace to zero before the first step.
        steps: the kernels, in stream order; empty for an input without items, whose count is 0.
        parameters: the kernels' parameter block, whose first five 64-bit words are the addresses
            of input, indices, count, workspace and overflow word, left 0 here.
    """

    path: Path
    wide: bool
    zeroed_words: int
    steps: tuple[Step, ...]
    parameters: bytes


_PARAMETERS = struct.Struct("=5Q3Q8I8Q8Q8I")


def plan_launch(
    dims: tuple[int, ...],
    dtype: DType,
    config: NonZeroConfig,
    flag_blocks: int,
    write_blocks: int,
) -> LaunchPlan:
    """Plan one enqueue.

    Args:
        dims: extents of the input, rank 1 to 8.
        dtype: its element type.
        config: the node's settings.
        flag_blocks: blocks of ``nonzero_flag`` the device runs at once; a hint for balance.
        write_blocks: the same for ``nonzero_write``.

    Raises:
        ContractError: for a rank outside 1 to 8 or a negative extent.
    """
    items = num_items(dims)
    rank = len(dims)
    path = _path(items, dtype, rank, config)
    wide = is_wide(items)
    zeroed_words = num_tiles = spans = num_segments = segment_spans = 0
    segment_division = (0, 0)
    steps: tuple[Step, ...]
    if path == "empty":
        return LaunchPlan(path, False, 0, (), bytes(_PARAMETERS.size))
    if path == "small":
        num_tiles = _covering(items, dtype, SMALL_TILE_ITEMS)
        steps = (Step("nonzero_small", num_tiles),)
    elif path == "select":
        tile_items = _select_tile_items(items, dtype)
        num_tiles = _covering(items, dtype, tile_items)
        zeroed_words = _select_bytes(items, dtype) // 4
        size = "small" if tile_items == SMALL_TILE_ITEMS else "large"
        steps = (Step(f"nonzero_select_{size}", num_tiles),)
    else:
        spans = _flag_spans(items, dtype)
        # Two segments for each block that fits the device, of whole steps of the flag kernel.
        step_spans = WARPS * max(1, 4 // dtype.itemsize)
        most = max(1, min(2 * flag_blocks, MAX_SEGMENTS))
        segment_spans = step_spans * -(-spans // (step_spans * most))
        segment_division = magic(segment_spans, 32)
        num_segments = -(-spans // segment_spans)
        steps = (
            Step("nonzero_flag", num_segments),
            Step("nonzero_write", max(1, min(write_blocks, spans // WARPS))),
        )

    bits = 64 if wide else 32
    multipliers, shifts = [0] * MAX_RANK, [0] * MAX_RANK
    stride = 1
    for axis in reversed(range(rank)):
        multipliers[axis], shifts[axis] = magic(stride, bits)
        stride *= dims[axis]
    extents = [0, *dims[1:], *[0] * (MAX_RANK - rank)]
    word_mask = dtype.magnitude_mask
    for width in (8, 16):  # repeated over the 32-bit words the kernel looks at
        if dtype.itemsize * 8 == width or (width == 16 and dtype.itemsize == 1):
            word_mask |= word_mask << width
    parameters = _PARAMETERS.pack(
        *(0, 0, 0, 0, 0),
        *(items, min(items, config.max_nonzero or items), word_mask),
        *(rank, int(is_one_pass(rank, config)), num_tiles, spans),
        *(num_segments, segment_spans, *segment_division),
        *multipliers,
        *extents,
        *shifts,
    )
    return LaunchPlan(path, wide, zeroed_words, steps, parameters)


class ArgumentBlock:
    """A plan's parameter block in host memory, as ``cuLaunchKernel`` wants it.

    Only the addresses change between enqueues; the driver copies the block before it returns.
    """

    def __init__(self, plan: LaunchPlan, overflow_address: int) -> None:
        self._block = ctypes.create_string_buffer(plan.parameters, len(plan.parameters))
        struct.pack_into("=Q", self._block, 32, overflow_address)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._block))
        self.address = ctypes.addressof(self._pointer)
        """Address of the array of one pointer that is ``kernelParams``."""
        self._pack = struct.Struct("=4Q").pack_into

    def fill(self, d_in: int, d_indices: int, d_count: int, d_workspace: int) -> None:
        """Set the device addresses of the next launch."""
        self._pack(self._block, 0, d_in, d_indices, d_count, d_workspace)
