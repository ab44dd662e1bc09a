"""A FAKE TensorRT runtime over host memory: one engine, ``indices = NonZero(x)`` of a float matrix.

It plays the calls of ``execute_async_v3`` on an output whose size the data decides, in the order
the real library documents: reallocate, notify, return. It proves nothing about TensorRT.
"""

from __future__ import annotations

import ctypes
import enum
from types import SimpleNamespace
from typing import Any

import numpy as np
from helpers.fake_tensorrt import make_fake_tensorrt


class FakeCuda:
    """The calls of ``nonzero_plugin.cudart.Cuda`` on host memory; counts what is alive."""

    def __init__(self) -> None:
        self.alive: dict[int, Any] = {}
        self.allocations = 0

    def require_device(self) -> int:
        return 1

    def device_name(self) -> str:
        return "no card (compute capability 0.0)"

    def allocate(self, size: int) -> int:
        buffer = ctypes.create_string_buffer(b"\xcd" * size, size)
        self.alive[ctypes.addressof(buffer)] = buffer
        self.allocations += 1
        return ctypes.addressof(buffer)

    def free(self, address: int) -> None:
        del self.alive[address]

    def to_device(self, device: int, host: int, size: int, stream: int) -> None:
        ctypes.memmove(device, host, size)

    def to_host(self, host: int, device: int, size: int, stream: int) -> None:
        ctypes.memmove(host, device, size)

    def create_stream(self) -> int:
        return 7

    def synchronize(self, stream: int) -> None:
        assert stream == 7

    def call(self, name: str, *arguments: Any) -> Any:
        return 0.5 if name == "cudaEventElapsedTime" else 1


def make_fake_runtime() -> Any:
    """A fake module whose Runtime loads the one engine from ``b"engine"`` and nothing else."""
    trt = make_fake_tensorrt("tensorrt")
    trt.TensorIOMode = enum.Enum("TensorIOMode", "INPUT OUTPUT")
    trt.TensorLocation = enum.Enum("TensorLocation", "DEVICE HOST")
    trt.ILogger = type("ILogger", (), {"Severity": enum.Enum("S", "INTERNAL_ERROR ERROR WARNING")})
    trt.IOutputAllocator = type("IOutputAllocator", (), {})
    trt.fail = None  # called inside execute_async_v3
    trt.log_on_load = []
    trt.tells_shapes, trt.shape_of_output = True, (-1, 2)

    class Runtime:
        def __init__(self, logger: Any) -> None:
            self.logger = logger

        def deserialize_cuda_engine(self, plan: bytes) -> Any:
            for text in trt.log_on_load:
                self.logger.log(trt.ILogger.Severity.ERROR, text)
            return _engine(trt, self.logger) if plan == b"engine" else None

    trt.Runtime = Runtime
    return trt


def _engine(trt: Any, logger: Any) -> Any:
    names = ["x", "indices"]
    return SimpleNamespace(
        num_io_tensors=2,
        num_optimization_profiles=1,
        get_tensor_name=lambda index: names[index],
        get_tensor_shape={"x": (-1, 8), "indices": (-1, 2)}.get,
        get_tensor_dtype={"x": trt.DataType.FLOAT, "indices": trt.DataType.INT64}.get,
        get_tensor_mode={
            "x": trt.TensorIOMode.INPUT,
            "indices": trt.TensorIOMode.OUTPUT,
        }.get,
        get_tensor_location=lambda name: trt.TensorLocation.DEVICE,
        get_tensor_profile_shape=lambda name, profile: [(0, 8), (8, 8), (64, 8)],
        create_execution_context=lambda: _Context(trt, logger),
    )


class _Context:
    def __init__(self, trt: Any, logger: Any) -> None:
        self.trt, self.logger = trt, logger
        self.shape: tuple[int, ...] = ()
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return True

    def set_tensor_address(self, name: str, address: int) -> None:
        self.addresses[name] = address

    def set_output_allocator(self, name: str, allocator: Any) -> None:
        self.allocators[name] = allocator

    def execute_async_v3(self, stream: int) -> bool:
        if self.trt.fail is not None:
            self.trt.fail()
            self.logger.log(self.trt.ILogger.Severity.ERROR, "enqueue reported -1")
            return False
        size = int(np.prod(self.shape)) * 4
        x = np.frombuffer(ctypes.string_at(self.addresses["x"], size), np.float32)
        found = np.ascontiguousarray(np.argwhere(x.reshape(self.shape)), np.int64)
        allocator = self.allocators["indices"]
        address = allocator.reallocate_output_async("indices", None, max(found.nbytes, 1), 256, 7)
        if not address:
            return False
        ctypes.memmove(address, found.ctypes.data, found.nbytes)
        if self.trt.tells_shapes:
            allocator.notify_shape("indices", found.shape)
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.trt.shape_of_output
