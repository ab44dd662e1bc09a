"""Output memory for shapes that only the data decides.

TensorRT asks for memory once it knows how much, then tells the shape; both may happen on every run.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from nonzero_plugin.callbacks import record
from nonzero_plugin.cudart import DeviceMemory


class OutputBuffer:
    """One output's device memory, kept from run to run and only ever replaced by more.

    Attributes:
        address: of the memory TensorRT wrote to last; 0 before the first run.
        shape: as TensorRT told it in this run; None until it has.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self.address = 0
        self.size = 0
        self.shape: tuple[int, ...] | None = None

    def start_run(self) -> None:
        """Forgets the last run's shape, so that a stale one is never read."""
        self.shape = None

    def reallocate(self, size: int) -> int:
        """Address of at least ``size`` bytes (TensorRT asks for at least 1 even when empty)."""
        if size > self.size or not self.address:
            self.release()
            self.address = self._memory.allocate(max(size, 1))
            self.size = max(size, 1)
        return self.address

    def notify(self, shape: Sequence[int]) -> None:
        """Keeps the shape of this run."""
        self.shape = tuple(int(dim) for dim in shape)

    def release(self) -> None:
        """Gives the memory back."""
        if self.address:
            self._memory.free(self.address)
        self.address = self.size = 0


@functools.cache
def allocator_class(trt: Any) -> Any:
    """The ``IOutputAllocator`` of one TensorRT module, over an :class:`OutputBuffer`."""

    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc]
        """Delegates; an error becomes the null address that TensorRT understands."""

        def __init__(self, buffer: OutputBuffer) -> None:
            trt.IOutputAllocator.__init__(self)
            self.buffer = buffer

        def reallocate_output(
            self, tensor_name: str, memory: int | None, size: int, alignment: int
        ) -> int:
            """The form of TensorRT 10.0, which later ones may still call."""
            try:
                return self.buffer.reallocate(size)
            except Exception as error:
                record("reallocate_output", error)
                return 0

        def reallocate_output_async(
            self, tensor_name: str, memory: int | None, size: int, alignment: int, stream: int
        ) -> int:
            """Memory for the output, known to be free: the last run was waited for."""
            return int(self.reallocate_output(tensor_name, memory, size, alignment))

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            """The output's true shape."""
            try:
                self.buffer.notify(tuple(shape))
            except Exception as error:
                record("notify_shape", error)

    return OutputAllocator
