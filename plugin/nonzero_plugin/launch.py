"""From a shape to a launch: path, tiles, grid, workspace bytes and kernel arguments.

Pure integer arithmetic of any size, no CUDA: what is wrong here is wrong on every machine, and
tests show it on any. The constants are handed to ``kernels/nonzero.cu`` as ``-D`` defines, so both
sides count with the same numbers. Words as in ``tiles``.
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
from nonzero_plugin.tiles import (
    ALIGNMENT,
    BLOCK_THREADS,
    LARGE_TILE_BLOCKS,
    MAX_BURST,
    SPAN_ITEMS,
    TILE_SPAN_BYTES,
    WARPS,
    bursts,
    covering,
    step_spans,
)

SMALL_THREADS = 1024
SMALL_SPANS = SMALL_THREADS // 32
"""Up to this many spans every block recounts what is before its own: one launch, no workspace."""
SMALL_TILE_ITEMS = WARPS * SPAN_ITEMS
LARGE_FROM_BYTES = 1 << 26
"""Inputs of at least this size use larger tiles, in bursts, in the one-pass kernel."""
FLAG_BLOCKS = 6
"""Blocks of the flag kernel that a processor should hold."""
WRITE_BLOCKS = 4
"""The same for the two-pass writer."""
SPANS_MULTIPLE = 64
"""The two-pass kernels work on a multiple of so many spans, whatever a step of theirs is."""
STREAM_FROM_BYTES = 1 << 29
"""One-pass inputs of at least this size get stores that leave L2 first."""
STREAM_FROM_ITEMS = 1 << 27
"""The same for two passes, where what should stay in L2, the flags, grows with the items."""
MAX_SEGMENTS = 2048

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


def is_one_pass(rank: int, config: NonZeroConfig) -> bool:
    """Whether a row's place depends on the items before it only, so that one pass is enough.

    In the ``[rank, num_nonzero]`` layout the second row starts where the whole count says.
    """
    return config.rank_last or rank == 1


def _path(items: int, dtype: DType, rank: int, config: NonZeroConfig) -> Path:
    if items == 0:
        return "empty"
    if covering(items, dtype, SPAN_ITEMS) <= SMALL_SPANS:
        return "small"
    return "select" if is_one_pass(rank, config) else "flag_write"


def _select_bytes(items: int, dtype: DType) -> int:
    """The ticket and one 64-bit status a tile, as many tiles as there can be."""
    return 8 + 8 * covering(items, dtype, SMALL_TILE_ITEMS)


def _flag_spans(items: int, dtype: DType) -> int:
    return covering(items, dtype, SPANS_MULTIPLE * SPAN_ITEMS) * SPANS_MULTIPLE


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
    return _flag_bytes(items, dtype) if path == "flag_write" else _select_bytes(items, dtype)


def kernel_defines(dtype: DType, config: NonZeroConfig, *, wide: bool) -> dict[str, int]:
    """The ``-D`` defines of the compilation that serves this type, index type and size."""
    return {
        "WORD_BYTES": dtype.itemsize,
        "INDEX_BYTES": 4 if config.index_type == INDEX_INT32 else 8,
        "WIDE": int(wide),
        "BLOCK_THREADS": BLOCK_THREADS,
        "SMALL_THREADS": SMALL_THREADS,
        "SPAN_ITEMS": SPAN_ITEMS,
        "ALIGNMENT": ALIGNMENT,
        "MAX_SEGMENTS": MAX_SEGMENTS,
        "MAX_BURST": MAX_BURST,
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
    """One kernel of a plan: blocks, threads of each, and bytes of shared memory for its burst."""

    kernel: str
    grid: int
    threads: int = BLOCK_THREADS
    shared_bytes: int = 0


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


_PARAMETERS = struct.Struct("=5Q3Q11I4x8Q8Q8I")


def _write_blocks(spans: int, processors: int) -> int:
    return max(1, min(WRITE_BLOCKS * processors, spans // WARPS))


def plan_launch(
    dims: tuple[int, ...],
    dtype: DType,
    config: NonZeroConfig,
    processors: int,
    shared_bytes: int,
) -> LaunchPlan:
    """Plan one enqueue.

    Args:
        dims: extents of the input, rank 1 to 8.
        dtype: its element type.
        config: the node's settings.
        processors: the device's multiprocessors; a hint for balance.
        shared_bytes: the shared memory of each, which bounds what a block may take.

    Raises:
        ContractError: for a rank outside 1 to 8 or a negative extent.
    """
    items = num_items(dims)
    rank = len(dims)
    path = _path(items, dtype, rank, config)
    wide = is_wide(items)
    zeroed_words = num_tiles = tile_spans = burst = spans = num_segments = segment_spans = 0
    streaming = False
    segment_division = (0, 0)
    steps: tuple[Step, ...]
    if path == "empty":
        return LaunchPlan(path, False, 0, (), bytes(_PARAMETERS.size))
    if path == "small":
        num_tiles = covering(items, dtype, SPAN_ITEMS)
        steps = (Step("nonzero_small", num_tiles, SMALL_THREADS),)
    elif path == "select":
        if items * dtype.itemsize < LARGE_FROM_BYTES:
            num_tiles = covering(items, dtype, SMALL_TILE_ITEMS)
            steps = (Step("nonzero_select_small", num_tiles),)
        else:
            blocks, burst, tile_spans = bursts(items, dtype, processors, shared_bytes)
            num_tiles = covering(items, dtype, tile_spans * SPAN_ITEMS)
            burst_bytes = burst * tile_spans * TILE_SPAN_BYTES
            grid = min(blocks, num_tiles)
            steps = (Step("nonzero_select_large", grid, BLOCK_THREADS, burst_bytes),)
            streaming = items * dtype.itemsize >= STREAM_FROM_BYTES
        zeroed_words = 2 + 2 * num_tiles
    else:
        spans = _flag_spans(items, dtype)
        # Two segments for each block that fits the device, of whole steps of the flag kernel.
        step = step_spans(dtype)
        most = max(1, min(2 * FLAG_BLOCKS * processors, MAX_SEGMENTS))
        segment_spans = step * -(-spans // (step * most))
        segment_division = magic(segment_spans, 32)
        num_segments = -(-spans // segment_spans)
        streaming = items >= STREAM_FROM_ITEMS
        steps = (
            Step("nonzero_flag", num_segments),
            Step("nonzero_write", _write_blocks(spans, processors)),
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
        *(rank, int(is_one_pass(rank, config)), int(streaming)),
        *(num_tiles, tile_spans, burst, spans),
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
