"""From a shape to a launch: path, tiles, grid, workspace bytes and kernel arguments.

Pure integer arithmetic of any size, no CUDA: what is wrong here is wrong on every machine, and
tests show it on any. The constants are handed to ``kernels/nonzero.cu`` as ``-D`` defines, so both
sides count with the same numbers.

Words, as the kernel uses them: a *span* is 1024 consecutive items, 32 bits of flags for each lane
of one warp. A *tile* is what one block of the one-pass kernel takes, a *unit* what one block of
the two-pass writer takes, a *segment* the run of units that one block of the flag kernel takes.
"""

from __future__ import annotations

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
SMALL_TILES = 8
"""Up to this many tiles every block recounts what comes before it: one launch, no workspace."""
LARGE_TILE_BYTES = 65536
LARGE_FROM_BYTES = 1 << 26
"""Inputs of at least this size use the larger tile in the one-pass kernel."""
LARGE_UNIT_SPANS = 32
SMALL_UNIT_SPANS = WARPS
LARGE_UNITS_FROM_ITEMS = 1 << 22
MAX_SEGMENTS = 2048
ALIGNMENT = 16
"""Bytes of a vector load. The kernel starts at the aligned address at or below the input's, so up
to ``ALIGNMENT - 1`` more item positions than items may have to be covered."""

_WIDE_FROM_ITEMS = (1 << 32) - (1 << 20)
"""From here on, item positions (with alignment and tile padding) may not fit 32 bits."""

Path = Literal["empty", "small", "select", "flag_write"]


def num_items(dims: tuple[int, ...]) -> int:
    """Product of the extents.

    Raises:
        ContractError: for a rank outside 1 to 8 or a negative extent.
    """
    if not MIN_RANK <= len(dims) <= MAX_RANK:
        raise ContractError(
            f"NonZeroPlugin takes ranks {MIN_RANK} to {MAX_RANK}, not rank {len(dims)} {dims}"
        )
    if any(extent < 0 for extent in dims):
        raise ContractError(f"NonZeroPlugin needs known extents, not {dims}")
    return math.prod(dims)


def large_tile_items(dtype: DType) -> int:
    """Items of a large tile: 64 KiB of input, at least one span a warp."""
    return LARGE_TILE_BYTES // dtype.itemsize


def is_one_pass(rank: int, config: NonZeroConfig) -> bool:
    """Whether a row's place depends on the items before it only, so that one pass is enough.

    In the ``[rank, num_nonzero]`` layout the second row starts where the whole count says.
    """
    return config.rank_last or rank == 1


def _path(items: int, rank: int, config: NonZeroConfig) -> Path:
    if items == 0:
        return "empty"
    if items + ALIGNMENT - 1 <= SMALL_TILES * SMALL_TILE_ITEMS:
        return "small"
    return "select" if is_one_pass(rank, config) else "flag_write"


def _covering(items: int, size: int) -> int:
    """Tiles of ``size`` items that cover ``items`` wherever the input is aligned."""
    return -(-(items + ALIGNMENT - 1) // size)


def _select_tile_items(items: int, dtype: DType) -> int:
    large = items * dtype.itemsize >= LARGE_FROM_BYTES
    return large_tile_items(dtype) if large else SMALL_TILE_ITEMS


def _select_bytes(items: int, dtype: DType) -> int:
    """The ticket and one 64-bit status a tile."""
    return 8 + 8 * _covering(items, _select_tile_items(items, dtype))


def _unit_spans(items: int) -> int:
    return LARGE_UNIT_SPANS if items >= LARGE_UNITS_FROM_ITEMS else SMALL_UNIT_SPANS


def _flag_bytes(items: int) -> int:
    """One bit an item, 16 bits a span and 32 bits a segment."""
    spans = _covering(items, _unit_spans(items) * SPAN_ITEMS) * _unit_spans(items)
    return spans * (SPAN_ITEMS // 8) + spans * 2 + MAX_SEGMENTS * 4


def workspace_bytes(dims: tuple[int, ...], dtype: DType, config: NonZeroConfig) -> int:
    """Device bytes one enqueue needs for a shape; never less for a larger one.

    The same for every backend, so that an engine does not depend on which one runs it.

    Raises:
        ContractError: for a rank outside 1 to 8 or a negative extent.
    """
    items = num_items(dims)
    path = _path(items, len(dims), config)
    if path in ("empty", "small"):
        return 0
    if path == "flag_write":
        smaller = min(items, LARGE_UNITS_FROM_ITEMS - 1)
        return max(_flag_bytes(items), _flag_bytes(smaller))
    smaller = min(items, LARGE_FROM_BYTES // dtype.itemsize - 1)
    return max(_select_bytes(items, dtype), _select_bytes(smaller, dtype))
