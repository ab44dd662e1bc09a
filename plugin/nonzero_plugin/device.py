"""Loads the compiled kernel into the caller's CUDA context and launches it on the caller's stream.

Only the driver API, through ``cuda.bindings`` (cuda-python >= 12.6). Which device and context: the
one that is current on the calling thread.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver

from nonzero_plugin.compile import compile_kernel, target_for
from nonzero_plugin.contract import NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import BackendUnavailableError, CudaError
from nonzero_plugin.launch import (
    ArgumentBlock,
    LaunchPlan,
    is_wide,
    kernel_defines,
    num_items,
    plan_launch,
)
from nonzero_plugin.tiles import max_burst_bytes

_KERNELS = (
    "nonzero_small",
    "nonzero_select_small",
    "nonzero_select_large",
    "nonzero_flag",
    "nonzero_write",
)


def raise_for(code: Any, api: str) -> None:
    """Raise what a driver call's status means, unless it means success.

    Raises:
        CudaError: with the function, the code, its name and its explanation.
    """
    if int(code) == 0:
        return
    _, name = driver.cuGetErrorName(code)
    _, text = driver.cuGetErrorString(code)
    raise CudaError(
        api,
        int(code),
        name.decode() if name else "an unknown error",
        text.decode() if text else "the driver has no explanation",
    )


def call(function: Any, *arguments: Any) -> Any:
    """A driver call whose failure raises; returns its one result, or the tuple of several."""
    code, *results = function(*arguments)
    raise_for(code, function.__name__)
    return results[0] if len(results) == 1 else tuple(results)


def device_present() -> bool:
    """Whether a driver and at least one device are there to be used."""
    try:
        return int(driver.cuInit(0)[0]) == 0 and int(driver.cuDeviceGetCount()[1]) > 0
    except RuntimeError:  # cuda-python finds no driver library
        return False


def current_context() -> Any:
    """The calling thread's current context.

    Where there is none, what the CUDA runtime would do: the primary context of the first visible
    device is made current.

    Raises:
        BackendUnavailableError: when there is no NVIDIA driver.
        CudaError: when the driver fails.
    """
    try:
        call(driver.cuInit, 0)
    except RuntimeError as err:
        raise BackendUnavailableError(
            f"no NVIDIA driver can be loaded ({str(err).splitlines()[0]}); "
            "install the display driver of the GPU"
        ) from err
    context = call(driver.cuCtxGetCurrent)
    if int(context) == 0:
        context = call(driver.cuDevicePrimaryCtxRetain, call(driver.cuDeviceGet, 0))
        call(driver.cuCtxSetCurrent, context)
    return context


def device_attribute(name: str, device: Any) -> int:
    """The ``CU_DEVICE_ATTRIBUTE_<name>`` of a device."""
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call(driver.cuDeviceGetAttribute, attribute, device))


def compute_capability(device: Any) -> int:
    """90 for 9.0."""
    return 10 * device_attribute("COMPUTE_CAPABILITY_MAJOR", device) + device_attribute(
        "COMPUTE_CAPABILITY_MINOR", device
    )


@dataclass(frozen=True)
class Kernels:
    """The kernel file loaded into one context."""

    image: bytes
    module: Any
    functions: dict[str, Any]
    processors: int
    shared_bytes: int


_loaded: dict[tuple[int, tuple[tuple[str, int], ...]], Kernels] = {}
_lock = threading.Lock()


def load_kernels(dtype: DType, config: NonZeroConfig, *, wide: bool) -> Kernels:
    """The kernels for a type, index type and size in the current context, loaded at most once.

    Raises:
        CudaError: when the driver fails.
        KernelCompileError: when NVRTC refuses the kernel.
    """
    # The id is never used again, unlike the address of a context that was destroyed.
    context = int(call(driver.cuCtxGetId, current_context()))
    defines = kernel_defines(dtype, config, wide=wide)
    key = (context, tuple(defines.items()))
    with _lock:
        if key not in _loaded:
            _loaded[key] = _load(dtype, defines)
        return _loaded[key]


def _load(dtype: DType, defines: dict[str, int]) -> Kernels:
    device = call(driver.cuCtxGetDevice)
    image = compile_kernel(target_for(compute_capability(device)), defines)
    module = call(driver.cuModuleLoadData, image)
    functions = {name: call(driver.cuModuleGetFunction, module, name.encode()) for name in _KERNELS}
    processors = device_attribute("MULTIPROCESSOR_COUNT", device)
    shared_bytes = device_attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", device)
    call(
        driver.cuFuncSetAttribute,
        functions["nonzero_select_large"],
        driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        max_burst_bytes(dtype, shared_bytes),
    )
    return Kernels(image, module, functions, processors, shared_bytes)


class OverflowWord:
    """A 64-bit word in pinned host memory where a kernel leaves how many rows it would have needed.

    The device writes it over the bus, so reading costs the host nothing and no stream is touched.
    It outlives a launch in flight because the driver frees pinned memory only when idle.
    """

    def __init__(self) -> None:
        flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
        host = call(driver.cuMemHostAlloc, 8, flags)
        self._word = ctypes.c_uint64.from_address(int(host))
        self._word.value = 0
        self.address = int(call(driver.cuMemHostGetDevicePointer, host, 0))
        weakref.finalize(self, driver.cuMemFreeHost, host)

    def take(self) -> int:
        """The non-zeros of an input that had more than ``max_nonzero``, or 0; then clears it."""
        needed = self._word.value
        if needed:
            self._word.value = 0
        return int(needed)


class DriverLaunch:
    """One prepared problem, launched through the driver API (the ``Launch`` protocol).

    The parameter block lives here; a call fills in four addresses and hands it to the driver,
    which copies it before the call returns.
    """

    def __init__(self, dims: tuple[int, ...], dtype: DType, config: NonZeroConfig) -> None:
        """Load what the shape needs into the current context.

        Raises:
            ContractError: for a rank outside 1 to 8 or a negative extent.
            CudaError: when the driver fails.
            KernelCompileError: when NVRTC refuses the kernel.
        """
        items = num_items(dims)
        kernels = load_kernels(dtype, config, wide=is_wide(items))
        self.plan: LaunchPlan = plan_launch(
            dims, dtype, config, kernels.processors, kernels.shared_bytes
        )
        self._overflow = (
            OverflowWord() if config.max_nonzero and config.max_nonzero < items else None
        )
        self._arguments = ArgumentBlock(self.plan, self._overflow.address if self._overflow else 0)
        self._kernel_params = self._arguments.address
        self._fill = self._arguments.fill
        self._steps = tuple(
            (kernels.functions[step.kernel], step.grid, step.threads, step.shared_bytes)
            for step in self.plan.steps
        )
        self._zeroed_words = self.plan.zeroed_words
        self._stream, self._stream_object = 0, driver.CUstream(0)

    def __call__(
        self, d_in: int, d_indices: int, d_count: int, d_workspace: int, stream: int
    ) -> None:
        """See ``backends.Launch``."""
        if stream != self._stream:  # making the binding's object costs as much as a small call
            self._stream, self._stream_object = stream, driver.CUstream(stream)
        on = self._stream_object
        if not self._steps:
            (code,) = driver.cuMemsetD32Async(d_count, 0, 2, on)
            if code:
                raise_for(code, "cuMemsetD32Async")
            return
        self._fill(d_in, d_indices, d_count, d_workspace)
        if self._zeroed_words:
            (code,) = driver.cuMemsetD32Async(d_workspace, 0, self._zeroed_words, on)
            if code:
                raise_for(code, "cuMemsetD32Async")
        for function, grid, threads, shared in self._steps:
            (code,) = driver.cuLaunchKernel(
                function, grid, 1, 1, threads, 1, 1, shared, on, self._kernel_params, 0
            )
            if code:
                raise_for(code, "cuLaunchKernel")

    def overflowed(self) -> bool:
        """See ``backends.Launch``."""
        return self._overflow is not None and self._overflow.take() > 0
