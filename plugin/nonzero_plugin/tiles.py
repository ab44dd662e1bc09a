"""How the kernels divide the items among blocks: spans, tiles and bursts.

Words, as the kernel uses them: a *span* is 1024 consecutive items, 32 bits of flags for each lane
of one warp. A *tile* is what one block of the one-pass kernel takes at a time, a *burst* the tiles
it loads before it writes any, a *segment* the run of spans that one block of the flag kernel takes.
"""

from __future__ import annotations

from nonzero_plugin.dtypes import DType

BLOCK_THREADS = 256
WARPS = BLOCK_THREADS // 32
SPAN_ITEMS = 1024
ALIGNMENT = 16
"""Bytes of the vector loads of 1- and 2-byte items. The kernel starts at the aligned address at or
below the input's, so that a few more positions than there are items may have to be covered."""
LARGE_TILE_SPANS = {1: 64, 2: 32, 4: 32, 8: 32}
"""Spans of a tile in a burst of several, by bytes an item."""
MAX_TILE_SPANS = 64
"""Positions in a tile fit 16 bits."""
MAX_BURST = 16
LARGE_TILE_BLOCKS = {1: 2, 2: 3, 4: 3, 8: 2}
"""Blocks of the large one-pass kernel that a processor should hold: bounds registers and bursts."""
LARGE_STATIC_BYTES = 18 << 10
"""Shared memory such a block takes beside its burst, what the system takes for itself included."""
TILE_SPAN_BYTES = SPAN_ITEMS // 8 + 4
"""Shared memory of a span in a burst: its flags and its first row."""


def covering(items: int, dtype: DType, size: int) -> int:
    """Tiles of ``size`` items that cover ``items`` wherever the input is aligned."""
    before = ALIGNMENT // dtype.itemsize - 1 if dtype.itemsize < 4 else 0
    return -(-(items + before) // size)


def step_spans(dtype: DType) -> int:
    """Spans a block loads at a time."""
    return WARPS * max(1, 4 // dtype.itemsize)


def max_burst_bytes(dtype: DType, shared_bytes: int) -> int:
    """Shared memory for the burst of a block.

    Args:
        dtype: the input's element type.
        shared_bytes: the shared memory of one of the device's multiprocessors.
    """
    room = shared_bytes // LARGE_TILE_BLOCKS[dtype.itemsize] - LARGE_STATIC_BYTES
    step = step_spans(dtype)
    return max(1, room // (step * TILE_SPAN_BYTES)) * step * TILE_SPAN_BYTES


def bursts(items: int, dtype: DType, processors: int, shared_bytes: int) -> tuple[int, int, int]:
    """Blocks of the large one-pass kernel, tiles of a burst and spans of a tile.

    All blocks take equal shares in equal bursts, so that they read together and write together.
    """
    blocks = processors * LARGE_TILE_BLOCKS[dtype.itemsize]
    most = max_burst_bytes(dtype, shared_bytes) // TILE_SPAN_BYTES
    most = min(most, MAX_BURST * LARGE_TILE_SPANS[dtype.itemsize])
    share = -(-covering(items, dtype, SPAN_ITEMS) // blocks)
    share = -(-share // -(-share // most))
    burst = 1 if share <= MAX_TILE_SPANS else -(-share // LARGE_TILE_SPANS[dtype.itemsize])
    step = step_spans(dtype)
    spans = step * -(-share // (burst * step))
    return blocks, max(1, min(burst, most // spans)), spans
