"""The same kernel file through CuPy: its compiler, cache and driver bindings, TensorRT's stream.

CuPy works in the primary context of the current device, which is TensorRT's own unless the caller
made another one current. It keeps compiled kernels in its own folder (``CUPY_CACHE_DIR``).
"""

from __future__ import annotations

import ctypes
from typing import Any

import cupy

from nonzero_plugin.compile import kernel_source
from nonzero_plugin.contract import NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import CudaError, KernelCompileError
from nonzero_plugin.launch import (
    ArgumentBlock,
    is_wide,
    kernel_defines,
    num_items,
    plan_launch,
)
from nonzero_plugin.tiles import max_burst_bytes

_driver = cupy.cuda.driver
_runtime = cupy.cuda.runtime
_CUDA_ERRORS = (_driver.CUDADriverError, _runtime.CUDARuntimeError)


def _cuda_error(api: str, err: Any) -> CudaError:
    name, _, explanation = str(err).partition(": ")
    return CudaError(api, int(err.status), name, explanation)


def _module(dtype: DType, config: NonZeroConfig, *, wide: bool) -> Any:
    """The kernel file as a module of the current device; CuPy keeps it per device."""
    defines = kernel_defines(dtype, config, wide=wide)
    options = ("--std=c++17", *(f"-D{name}={value}" for name, value in sorted(defines.items())))
    module = cupy.RawModule(code=kernel_source().decode(), options=options, backend="nvrtc")
    try:
        module.compile()
    except cupy.cuda.compiler.CompileException as err:
        log = str(err)
        raise KernelCompileError(
            f"CuPy cannot compile nonzero.cu: {log.splitlines()[0] if log else repr(err)}",
            options=options,
            log=log,
        ) from err
    except _CUDA_ERRORS as err:
        raise _cuda_error("cupy.RawModule", err) from err
    return module


class CupyLaunch:
    """See ``backends.Launch``."""

    def __init__(self, dims: tuple[int, ...], dtype: DType, config: NonZeroConfig) -> None:
        """Compile and load what the shape needs; see ``backends.Backend.prepare``."""
        items = num_items(dims)
        self._module = _module(dtype, config, wide=is_wide(items))
        attributes = cupy.cuda.Device().attributes
        shared_bytes = attributes["MaxSharedMemoryPerMultiprocessor"]
        self.plan = plan_launch(
            dims, dtype, config, attributes["MultiProcessorCount"], shared_bytes
        )
        bursting = self._module.get_function("nonzero_select_large")
        bursting.max_dynamic_shared_size_bytes = max_burst_bytes(dtype, shared_bytes)
        self._steps = tuple(
            (
                self._module.get_function(step.kernel).kernel.ptr,
                step.grid,
                step.threads,
                step.shared_bytes,
            )
            for step in self.plan.steps
        )
        # Pinned host memory has one address for host and device.
        self._pinned = None
        if config.max_nonzero and config.max_nonzero < items:
            self._pinned = cupy.cuda.alloc_pinned_memory(8)
            self._needed = ctypes.c_uint64.from_address(self._pinned.ptr)
            self._needed.value = 0
        self._arguments = ArgumentBlock(self.plan, self._pinned.ptr if self._pinned else 0)

    def __call__(
        self, d_in: int, d_indices: int, d_count: int, d_workspace: int, stream: int
    ) -> None:
        """See ``backends.Launch``."""
        try:
            if not self._steps:
                _runtime.memsetAsync(d_count, 0, 8, stream)
                return
            self._arguments.fill(d_in, d_indices, d_count, d_workspace)
            if self.plan.zeroed_words:
                _runtime.memsetAsync(d_workspace, 0, 4 * self.plan.zeroed_words, stream)
            for function, grid, threads, shared in self._steps:
                _driver.launchKernel(
                    *(function, grid, 1, 1, threads, 1, 1, shared, stream),
                    *(self._arguments.address, 0),
                )
        except _CUDA_ERRORS as err:
            raise _cuda_error("the launch through CuPy", err) from err

    def overflowed(self) -> bool:
        """See ``backends.Launch``."""
        if self._pinned is None or not self._needed.value:
            return False
        self._needed.value = 0
        return True


class CupyBackend:
    """See ``backends.Backend``."""

    name = "cupy"

    def compile(self, dtype: DType, config: NonZeroConfig) -> None:
        """See ``backends.Backend``."""
        if cupy.cuda.is_available():
            _module(dtype, config, wide=False)

    def prepare(self, dims: tuple[int, ...], dtype: DType, config: NonZeroConfig) -> CupyLaunch:
        """See ``backends.Backend``."""
        return CupyLaunch(dims, dtype, config)


def create() -> CupyBackend:
    """The backend object."""
    return CupyBackend()
