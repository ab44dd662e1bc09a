"""Inputs, timing and the memory floor for ``python -m nonzero_plugin.bench``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.resources import files
from types import TracebackType
from typing import Any

from cuda.bindings import driver

from nonzero_plugin.compile import compile_source, target_for
from nonzero_plugin.device import call, compute_capability, current_context
from nonzero_plugin.dtypes import DType

Enqueue = Callable[[], None]
# One, as an ordinary number: CuPy's own comparisons take a subnormal for zero.
ONE = {DType.FLOAT16: 0x3C00, DType.BFLOAT16: 0x3F80, DType.FLOAT: 0x3F800000}


def compile_peers(target: str) -> bytes:
    """Machine code of ``kernels/peers.cu``, not cached."""
    source = (files("nonzero_plugin") / "kernels" / "peers.cu").read_bytes()
    options = (f"--gpu-architecture={target}", "--std=c++17")
    return compile_source(source, "peers.cu", target, options)


class Bench:
    """A stream of its own on the current device, and clocks on it."""

    def __init__(self, repeats: int) -> None:
        """Compile the helper kernels and measure the copy rate."""
        self.repeats = repeats
        current_context()
        self.device = call(driver.cuCtxGetDevice)
        self.target = target_for(compute_capability(self.device))
        self._module = call(driver.cuModuleLoadData, compile_peers(self.target))
        self.stream = int(call(driver.cuStreamCreate, 1))
        self._start, self._end = call(driver.cuEventCreate, 0), call(driver.cuEventCreate, 0)
        self.copy_bytes_per_s = self._copy_rate()

    def function(self, name: str) -> Any:
        """A kernel of ``kernels/peers.cu``."""
        return call(driver.cuModuleGetFunction, self._module, name.encode())

    def free_bytes(self) -> int:
        """Device memory that is not taken."""
        return int(call(driver.cuMemGetInfo)[0])

    def _copy_rate(self) -> float:
        size = min(1 << 30, self.free_bytes() // 4)
        with Memory(size) as source, Memory(size) as target:
            call(driver.cuMemsetD8, source.address, 1, size)
            copy = driver.cuMemcpyDtoDAsync
            time_us = self.gpu_us(
                lambda: call(copy, target.address, source.address, size, self.stream)
            )
        return 2 * size / time_us * 1e6

    def fill(self, address: int, items: int, dtype: DType, density: float) -> None:
        """Random non-zero items of that density, the same ones each time."""
        import ctypes

        threshold = min(2**32 - 1, round(density * 2**32))
        arguments = (
            (address, items, dtype.itemsize, threshold, ONE.get(dtype, 1)),
            (ctypes.c_void_p, ctypes.c_uint64, *[ctypes.c_uint32] * 2, ctypes.c_uint64),
        )
        function = self.function("fill_words")
        call(driver.cuLaunchKernel, function, 4096, 1, 1, 256, 1, 1, 0, self.stream, arguments, 0)
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for the stream."""
        call(driver.cuStreamSynchronize, self.stream)

    def warm_up(self, enqueue: Enqueue, seconds: float) -> None:
        """Keep the device busy until its clocks have risen to what the work gets."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(5):
                enqueue()
            self.synchronize()

    def _hold(self, microseconds: int) -> None:
        import ctypes

        arguments = ((microseconds * 1000,), (ctypes.c_uint64,))
        spin = self.function("spin")
        call(driver.cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, self.stream, arguments, 0)

    def _timed(self, enqueue: Enqueue, stream: int, *, held: bool, repeats: int) -> float:
        times: list[float] = []
        for turn in range(repeats + 3):
            if held:
                self._hold(100)
            call(driver.cuEventRecord, self._start, stream)
            enqueue()
            call(driver.cuEventRecord, self._end, stream)
            call(driver.cuEventSynchronize, self._end)
            if turn >= 3:
                times.append(1e3 * call(driver.cuEventElapsedTime, self._start, self._end))
        return statistics.median(times)

    def gpu_us(self, enqueue: Enqueue) -> float:
        """What the GPU takes: the host is done enqueueing before the first event passes."""
        return self._timed(enqueue, self.stream, held=True, repeats=self.repeats)

    def call_us(self, enqueue: Enqueue, stream: int | None = None, repeats: int = 0) -> float:
        """What a caller with an idle stream sees between two events, the host's part included."""
        return self._timed(
            enqueue,
            self.stream if stream is None else stream,
            held=False,
            repeats=repeats or self.repeats,
        )

    def host_us(self, enqueue: Enqueue) -> float:
        """The host's own time for one enqueue."""
        times = []
        for _ in range(min(self.repeats, 9)):
            start = time.perf_counter()
            for _ in range(20):
                enqueue()
            times.append((time.perf_counter() - start) / 20 * 1e6)
            self.synchronize()
        return statistics.median(times)

    def graph_us(self, enqueue: Enqueue) -> float:
        """One replay of a graph that captured the enqueue, in a row of fifty."""
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(driver.cuStreamBeginCapture, self.stream, mode)
        enqueue()
        graph = call(driver.cuStreamEndCapture, self.stream)
        executable = call(driver.cuGraphInstantiate, graph, 0)

        def replay() -> None:
            for _ in range(50):
                driver.cuGraphLaunch(executable, self.stream)

        try:
            return self.gpu_us(replay) / 50
        finally:
            call(driver.cuGraphExecDestroy, executable)
            call(driver.cuGraphDestroy, graph)


class Memory(AbstractContextManager["Memory"]):
    """A plain device allocation."""

    def __init__(self, size: int) -> None:
        """Allocate ``size`` bytes."""
        self.size = size
        self.address = int(call(driver.cuMemAlloc, max(size, 256)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free it."""
        call(driver.cuMemFree, self.address)


def count_of(address: int) -> int:
    """The INT64 at a device address."""
    import ctypes

    value = ctypes.c_int64()
    call(driver.cuMemcpyDtoH, ctypes.addressof(value), address, 8)
    return value.value
