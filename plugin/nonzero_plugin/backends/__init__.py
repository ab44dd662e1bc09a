"""The three ways to run NonZero on memory and a stream that TensorRT owns, behind one interface.

Pick one by name with :func:`get_backend`; nothing is imported before that.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from nonzero_plugin.contract import BACKENDS, NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import BackendUnavailableError, ContractError

# What a user installs when the import fails: the package, then this project's extra for it.
_NEEDS = {
    "cuda_python": ("cuda-python", "cuda13 (or cuda12)"),
    "cupy": ("cupy", "cuda13 (or cuda12)"),
    "torch": ("torch", "torch"),
}


class Launch(Protocol):
    """One prepared problem: fixed shape, type and settings, any addresses.

    A launch belongs to the CUDA context it was prepared in and to one caller at a time: two
    threads may not call the same object, and two enqueues in flight may not share a workspace.
    A CUDA graph that captured a call is valid as long as the launch is alive.
    """

    def __call__(
        self, d_in: int, d_indices: int, d_count: int, d_workspace: int, stream: int
    ) -> None:
        """Put the work on ``stream`` and return: no allocation, synchronisation or compile.

        Args:
            d_in: device address of the input, aligned to its element.
            d_indices: device address of the indices; room for ``min(items, max_nonzero)`` rows.
            d_count: device address of the INT64 count.
            d_workspace: device address of ``launch.workspace_bytes`` bytes, 16-byte aligned.
            stream: the ``CUstream`` handle as an integer, of the current context.

        Raises:
            CudaError: when the driver refuses the launch.
        """
        ...

    def overflowed(self) -> bool:
        """Whether ``max_nonzero`` cut a result short since the last time this was asked.

        Reads and clears a word in pinned host memory, without touching the device: valid for the
        enqueues (and graph replays) whose stream the caller has synchronised with since. Always
        False when the node has no ``max_nonzero``.
        """
        ...


class Backend(Protocol):
    """A way to run the operator."""

    name: str

    def compile(self, dtype: DType, config: NonZeroConfig) -> None:
        """Compile and load for the current device, so that nothing later has to.

        Returns quietly where there is no usable device: an engine may be built on a machine
        without one, and compiles when a context first attaches.

        Raises:
            KernelCompileError: when the compiler refuses the kernel.
        """
        ...

    def prepare(self, dims: tuple[int, ...], dtype: DType, config: NonZeroConfig) -> Launch:
        """Do all that one shape needs before its launches, on the current CUDA context.

        Raises:
            ContractError: for a rank outside 1 to 8 or a negative extent.
            CudaError: when the driver fails.
            KernelCompileError: when the compiler refuses the kernel.
        """
        ...


_loaded: dict[str, Backend] = {}


def get_backend(name: str) -> Backend:
    """The backend of that name, importing what it needs on first use.

    Raises:
        ContractError: for a name that is none of ``contract.BACKENDS``.
        BackendUnavailableError: when a package it needs is missing or cannot be loaded; the text
            names the package and the extra to install.
    """
    if name not in BACKENDS:
        raise ContractError(f"backend {name!r} is unknown; choose one of {', '.join(BACKENDS)}")
    if name not in _loaded:
        package, extra = _NEEDS[name]
        try:
            module = import_module(f"nonzero_plugin.backends.{name}")
            _loaded[name] = module.create()
        except ImportError as err:
            raise BackendUnavailableError(
                f"backend {name!r} needs the package {package}, which cannot be imported ({err}); "
                f"install it with: pip install 'nonzero-rewrite[{extra.split()[0]}]'"
            ) from err
    return _loaded[name]
