"""The few CUDA runtime calls that running an engine needs, checked, on the caller's device."""

from __future__ import annotations

from typing import Any, Protocol

from nonzero_plugin.errors import BackendUnavailableError, CudaError


class DeviceMemory(Protocol):
    """Gives and takes device memory; the allocator is tested against one that only counts."""

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes (at least 1)."""
        ...

    def free(self, address: int) -> None:
        """Gives the bytes back; nothing that uses them may be in flight."""
        ...


class Cuda:
    """``cuda.bindings.runtime`` with codes turned into :class:`CudaError`.

    Raises:
        BackendUnavailableError: cuda-python is not installed.
    """

    def __init__(self) -> None:
        try:
            from cuda.bindings import runtime
        except ImportError as error:
            raise BackendUnavailableError(
                f"running an engine needs the package cuda-python, which cannot be imported "
                f"({error}); install it with: pip install 'nonzero-rewrite[cuda13]' (or cuda12)"
            ) from error
        self._runtime = runtime

    def call(self, name: str, *arguments: Any) -> Any:
        """The call's result: None, one value or a tuple.

        Raises:
            CudaError: with the API's own name and explanation of the code.
        """
        code, *values = getattr(self._runtime, name)(*arguments)
        if int(code) != 0:
            text = [
                getattr(self._runtime, f"cudaGetError{kind}")(code)[1].decode()
                for kind in ("Name", "String")
            ]
            raise CudaError(name, int(code), *text)
        return None if not values else values[0] if len(values) == 1 else tuple(values)

    def require_device(self) -> int:
        """Number of CUDA devices, at least 1.

        Raises:
            CudaError: in CUDA's words, where there is no driver or no device.
        """
        count = int(self.call("cudaGetDeviceCount"))
        if count == 0:
            raise CudaError("cudaGetDeviceCount", 100, "cudaErrorNoDevice", "no CUDA device")
        return count

    def allocate(self, size: int) -> int:
        """``cudaMalloc``."""
        return int(self.call("cudaMalloc", max(size, 1)))

    def free(self, address: int) -> None:
        """``cudaFree``."""
        self.call("cudaFree", address)

    def to_device(self, device: int, host: int, size: int, stream: int) -> None:
        """Copies ``size`` bytes up, in stream order."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self.call("cudaMemcpyAsync", device, host, size, kind, stream)

    def to_host(self, host: int, device: int, size: int, stream: int) -> None:
        """Copies ``size`` bytes down, in stream order."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self.call("cudaMemcpyAsync", host, device, size, kind, stream)

    def create_stream(self) -> int:
        """A stream that does not wait for the default stream."""
        return int(self.call("cudaStreamCreateWithFlags", 1))

    def synchronize(self, stream: int) -> None:
        """Waits for the stream; errors of everything before on it surface here."""
        self.call("cudaStreamSynchronize", stream)

    def device_name(self) -> str:
        """Name and compute capability of the current device."""
        properties = self.call("cudaGetDeviceProperties", self.call("cudaGetDevice"))
        name = properties.name.decode().rstrip("\0")
        return f"{name} (compute capability {properties.major}.{properties.minor})"
