"""The default backend: the kernel through NVRTC and the driver API of cuda-python."""

from __future__ import annotations

from nonzero_plugin import device
from nonzero_plugin.contract import NonZeroConfig
from nonzero_plugin.dtypes import DType


class CudaPythonBackend:
    """See ``backends.Backend``."""

    name = "cuda_python"

    def compile(self, dtype: DType, config: NonZeroConfig) -> None:
        """See ``backends.Backend``."""
        if device.device_present():
            device.load_kernels(dtype, config, wide=False)

    def prepare(
        self, dims: tuple[int, ...], dtype: DType, config: NonZeroConfig
    ) -> device.DriverLaunch:
        """See ``backends.Backend``."""
        return device.DriverLaunch(dims, dtype, config)


def create() -> CudaPythonBackend:
    """The backend object."""
    return CudaPythonBackend()
