"""NonZero in PyTorch's own operations, on TensorRT's memory and stream, with no wait on the host.

``torch.nonzero`` waits for the count, so this uses ``nonzero_static`` with room for every item and
a count that stays on the device. What follows from that:

* Temporary memory beside TensorRT's workspace: 8 bytes an item and about 200 MB, from PyTorch's
  allocator, so a first enqueue may allocate.
* The rows past the count, up to the bound TensorRT allocates by, are written with what they held.
* At most 2**31 - 1 items.
* In a CUDA graph only when captured through ``torch.cuda.graph``, which gives the temporary memory
  a pool of its own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from nonzero_plugin.contract import INDEX_INT32, NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import BackendUnavailableError, ContractError
from nonzero_plugin.launch import num_items

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TYPESTR = {torch.int8: "|i1", torch.int16: "<i2", torch.int32: "<i4", torch.int64: "<i8"}
_CHUNK = 1 << 22
"""Output elements a step: bounds the temporary memory of the coordinate arithmetic."""


class _Memory:
    """Device memory that PyTorch reads through the CUDA Array Interface, version 2: no waiting."""

    def __init__(self, address: int, length: int, dtype: torch.dtype) -> None:
        self.__cuda_array_interface__ = {
            "shape": (length,),
            "typestr": _TYPESTR[dtype],
            "data": (address, False),
            "version": 2,
        }


def _signed(mask: int, itemsize: int) -> int:
    bits = 8 * itemsize
    return mask - (1 << bits) if mask >> (bits - 1) else mask


class TorchLaunch:
    """See ``backends.Launch``."""

    def __init__(self, dims: tuple[int, ...], dtype: DType, config: NonZeroConfig) -> None:
        """Prepare the constants of the shape; see ``backends.Backend.prepare``."""
        items = num_items(dims)
        if items >= 1 << 31:
            raise ContractError(
                f"backend 'torch' takes fewer than 2**31 items, not {items}; "
                "use backend 'cuda_python'"
            )
        self._items = items
        self._rank = len(dims)
        self._rank_last = config.rank_last
        self._most = min(items, config.max_nonzero or items)
        self._word = _WORDS[dtype.itemsize]
        self._mask = _signed(dtype.magnitude_mask, dtype.itemsize)
        self._index = torch.int32 if config.index_type == INDEX_INT32 else torch.int64
        self._device = torch.device("cuda", torch.cuda.current_device())
        strides = [1]
        for extent in reversed(dims[1:]):
            strides.insert(0, strides[0] * extent)
        self._strides = torch.tensor(strides, dtype=torch.int64, device=self._device)
        self._extents = torch.tensor(
            [max(items, 1), *dims[1:]], dtype=torch.int64, device=self._device
        ).clamp_(min=1)
        self._needed = (
            torch.zeros(1, dtype=torch.int64, pin_memory=True) if self._most < items else None
        )
        torch.cuda.current_stream(self._device).synchronize()  # the constants are on the device

    def _tensor(self, address: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(_Memory(address, length, dtype), device=self._device)

    def __call__(
        self, d_in: int, d_indices: int, d_count: int, d_workspace: int, stream: int
    ) -> None:
        """See ``backends.Launch``; what TensorRT calls workspace is not used."""
        external: AbstractContextManager[Any] = torch.cuda.stream(
            torch.cuda.ExternalStream(stream, device=self._device)
        )
        with external, torch.inference_mode():
            count = self._tensor(d_count, 1, torch.int64)
            if self._items == 0:
                count.zero_()
                return
            words = self._tensor(d_in, self._items, self._word)
            flags = words != 0 if self._mask == -1 else (words & self._mask) != 0
            nonzeros = flags.sum(dtype=torch.int64).reshape(1)
            num_rows = nonzeros.clamp(max=self._most)
            count.copy_(num_rows)
            if self._needed is not None:
                needed = self._tensor(self._needed.data_ptr(), 1, torch.int64)
                torch.maximum(needed, torch.where(nonzeros > self._most, nonzeros, 0), out=needed)
            flat = torch.nonzero_static(flags, size=self._most, fill_value=0).reshape(-1)
            self._write(flat, num_rows, d_indices)

    def _write(self, flat: torch.Tensor, num_rows: torch.Tensor, d_indices: int) -> None:
        """Element j of the first num_rows * rank gets its coordinate, the others what they hold."""
        length = self._most * self._rank
        out = self._tensor(d_indices, length, self._index)
        divisor = num_rows.clamp(min=1)
        written = num_rows * self._rank
        for start in range(0, length, _CHUNK):
            j = torch.arange(start, min(start + _CHUNK, length), device=self._device)
            if self._rank_last:
                row, axis = j // self._rank, j % self._rank
            else:
                # Elements past the count have no axis; any will do, they are not used.
                axis = torch.div(j, divisor, rounding_mode="floor").clamp_(max=self._rank - 1)
                row = j % divisor
            value = flat[row] // self._strides[axis] % self._extents[axis]
            part = out[start : start + _CHUNK]
            torch.where(j < written, value.to(self._index), part, out=part)

    def overflowed(self) -> bool:
        """See ``backends.Launch``."""
        if self._needed is None or not int(self._needed):
            return False
        self._needed.zero_()
        return True


class TorchBackend:
    """See ``backends.Backend``."""

    name = "torch"

    def compile(self, dtype: DType, config: NonZeroConfig) -> None:
        """Nothing to compile."""

    def prepare(self, dims: tuple[int, ...], dtype: DType, config: NonZeroConfig) -> TorchLaunch:
        """See ``backends.Backend``."""
        return TorchLaunch(dims, dtype, config)


def create() -> TorchBackend:
    """The backend object.

    Raises:
        BackendUnavailableError: for a PyTorch without CUDA or older than ``nonzero_static`` on it.
    """
    if torch.version.cuda is None or not hasattr(torch, "nonzero_static"):
        raise BackendUnavailableError(
            f"backend 'torch' needs PyTorch 2.7 or newer built for CUDA, this is "
            f"{torch.__version__}; install it with: pip install 'nonzero-rewrite[torch]'"
        )
    return TorchBackend()
