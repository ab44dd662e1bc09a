"""Real device memory, streams and contexts for the kernel tests, and the laws each result obeys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from nonzero_plugin.backends import Launch, get_backend
from nonzero_plugin.contract import INDEX_INT32, NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.launch import workspace_bytes

POISON = 0xA5
GUARD = 256
"""Bytes behind every buffer that nothing may touch."""
Array = np.ndarray[Any, Any]


def call(function: Any, *arguments: Any) -> Any:
    code, *results = function(*arguments)
    assert int(code) == 0, (function.__name__, code)
    return results[0] if len(results) == 1 else tuple(results)


class Device:
    """Allocation, copies and streams through the driver API, in the current context.

    ``pooled`` keeps freed blocks for later ones of the same power of two; memory checkers want
    each block to be an allocation of its exact size instead.
    """

    def __init__(self, *, pooled: bool = True) -> None:
        from cuda.bindings import driver
        from nonzero_plugin.device import current_context

        self.driver = driver
        self.pooled = pooled
        self._classes: dict[int, int] = {}
        self._unused: dict[int, list[int]] = {}
        current_context()

    def allocate(self, size: int) -> int:
        if not self.pooled or size > 1 << 22:
            return int(call(self.driver.cuMemAlloc, max(size, 1)))
        rounded = 1 << max(9, (size - 1).bit_length())
        unused = self._unused.setdefault(rounded, [])
        address = unused.pop() if unused else int(call(self.driver.cuMemAlloc, rounded))
        self._classes[address] = rounded
        return address

    def free(self, address: int) -> None:
        rounded = self._classes.pop(address, None)
        if rounded:
            self._unused[rounded].append(address)
        else:
            call(self.driver.cuMemFree, address)

    def upload(self, address: int, data: Array) -> None:
        if data.nbytes:
            call(self.driver.cuMemcpyHtoD, address, data.ctypes.data, data.nbytes)

    def download(self, address: int, size: int) -> Array:
        data = np.empty(size, np.uint8)
        if size:
            call(self.driver.cuMemcpyDtoH, data.ctypes.data, address, size)
        return data

    def poison(self, address: int, size: int) -> None:
        call(self.driver.cuMemsetD8, address, POISON, size)

    def stream(self) -> int:
        flag = self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(call(self.driver.cuStreamCreate, int(flag)))

    def synchronize(self, stream: int | None = None) -> None:
        if stream is None:
            call(self.driver.cuCtxSynchronize)
        else:
            call(self.driver.cuStreamSynchronize, stream)

    @contextmanager
    def memory(self, *sizes: int) -> Iterator[list[int]]:
        addresses = [self.allocate(size) for size in sizes]
        try:
            yield addresses
        finally:
            for address in addresses:
                self.free(address)


def words_of(dtype: DType, values: Array) -> Array:
    """The same bits as unsigned words."""
    return np.ascontiguousarray(values).view(f"u{dtype.itemsize}")


def draw(rng: np.random.Generator, dtype: DType, items: int, density: float) -> Array:
    """Words of which about ``density`` are non-zero, with the type's odd values among them."""
    bits = 8 * dtype.itemsize
    sign = 1 << (bits - 1)
    odd = [1, sign | 1, sign - 1, (1 << bits) - 1, dtype.magnitude_mask]  # subnormals, NaNs, ...
    odd += {
        DType.FLOAT: [0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000],
        DType.FLOAT16: [0x7C00, 0xFC00, 0x7E00],
        DType.BFLOAT16: [0x7F80, 0xFF80, 0x7FC0],
        DType.DOUBLE: [0x7FF0000000000000, 0x7FF8000000000000],
    }.get(dtype, [])
    if dtype is DType.BOOL:
        odd = [1]
    nonzero = np.array([w for w in odd if w & dtype.magnitude_mask], dtype=f"u{dtype.itemsize}")
    # Zeros of both signs where the type has a negative one.
    zeros = np.array([0, ((1 << bits) - 1) & ~dtype.magnitude_mask], dtype=nonzero.dtype)
    words = zeros[rng.integers(0, 2, items)]
    chosen = rng.random(items) < density
    words[chosen] = nonzero[rng.integers(0, len(nonzero), int(chosen.sum()))]
    return words


def expected(words: Array, dims: tuple[int, ...], dtype: DType, config: NonZeroConfig) -> Array:
    """``numpy.nonzero`` in the layout and type that the settings ask for."""
    values = words.view(dtype.numpy).reshape(dims)
    rows = np.stack(np.nonzero(values)).astype(
        np.int32 if config.index_type == INDEX_INT32 else np.int64
    )
    rows = rows[:, : config.max_nonzero]
    return np.ascontiguousarray(rows.T if config.rank_last else rows)


class Problem:
    """One input on the device with guarded, poisoned outputs of exactly the size it needs.

    ``shift`` moves the input off alignment by so many items; what lies around it is non-zero, so
    that reading outside would be seen. ``to_the_bound`` makes room for every row there could be, as
    TensorRT does and the torch backend needs.
    """

    def __init__(
        self,
        device: Device,
        words: Array,
        dims: tuple[int, ...],
        dtype: DType,
        config: NonZeroConfig,
        *,
        shift: int = 0,
        to_the_bound: bool = False,
    ) -> None:
        self.device, self.dims, self.dtype, self.config = device, dims, dtype, config
        self.want = expected(words, dims, dtype, config)
        self.cap = min(words.size, config.max_nonzero or words.size)
        self.workspace = workspace_bytes(dims, dtype, config)
        self.in_size = words.nbytes
        index_bytes = len(dims) * self.want.itemsize
        self.rows_size = self.cap * index_bytes if to_the_bound else self.want.nbytes
        before = shift * dtype.itemsize
        self.addresses = [
            device.allocate(size + GUARD)
            for size in (before + words.nbytes, self.rows_size, 8, self.workspace)
        ]
        call(device.driver.cuMemsetD8, self.addresses[0], 0xFF, before + words.nbytes + GUARD)
        self.d_in = self.addresses[0] + before
        self.replace_input(words)
        self.poison()

    def replace_input(self, words: Array) -> None:
        self.words = words
        self.want = expected(words, self.dims, self.dtype, self.config)
        self.device.upload(self.d_in, words)
        self.device.synchronize()

    def poison(self) -> None:
        sizes = (self.rows_size, 8, self.workspace)
        for address, size in zip(self.addresses[1:], sizes, strict=True):
            self.device.poison(address, size + GUARD)
        self.device.synchronize()

    def prepare(self, backend: str) -> Launch:
        return get_backend(backend).prepare(self.dims, self.dtype, self.config)

    def enqueue(self, launch: Launch, stream: int) -> None:
        launch(self.d_in, *self.addresses[1:], stream)

    def check(self, *, workspace_guarded: bool = True) -> None:
        """Exact rows in order, the count, and nothing written where nothing belongs."""
        what = (self.dims, self.dtype.name, self.config)
        rows, count, workspace = (
            self.device.download(address, size + GUARD)
            for address, size in zip(
                self.addresses[1:], (self.rows_size, 8, self.workspace), strict=True
            )
        )
        num_rows = self.want.shape[0 if self.config.rank_last else 1]
        assert int(count[:8].view(np.int64)[0]) == num_rows, what
        got = rows[: self.want.nbytes].view(self.want.dtype).reshape(self.want.shape)
        assert np.array_equal(got, self.want), what
        assert (rows[self.want.nbytes :] == POISON).all(), ("rows past the count", what)
        assert (count[8:] == POISON).all(), ("past the count's word", what)
        if workspace_guarded:
            assert (workspace[self.workspace :] == POISON).all(), ("past the workspace", what)
        assert np.array_equal(
            self.device.download(self.d_in, self.in_size).view(self.words.dtype), self.words
        ), ("the input changed", what)

    def free(self) -> None:
        for address in self.addresses:
            self.device.free(address)


def run(
    device: Device,
    backend: str,
    words: Array,
    dims: tuple[int, ...],
    dtype: DType,
    config: NonZeroConfig,
    *,
    shift: int = 0,
    stream: int = 0,
) -> None:
    """One enqueue from nothing to checked."""
    torch = backend == "torch"
    problem = Problem(device, words, dims, dtype, config, shift=shift, to_the_bound=torch)
    try:
        launch = problem.prepare(backend)
        problem.enqueue(launch, stream)
        device.synchronize(stream or None)
        problem.check()
        overflow = (
            config.max_nonzero is not None
            and np.count_nonzero(words & np.array(dtype.magnitude_mask, words.dtype))
            > config.max_nonzero
        )
        assert launch.overflowed() == overflow
        assert not launch.overflowed()
    finally:
        problem.free()
