"""What an engine takes, and whether arrays fit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nonzero_plugin.errors import ContractError

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorInfo:
    """An input or output: ``shape`` has -1 where the size is dynamic or decided by data."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_input: bool
    on_host: bool


class TakesInputs(Protocol):
    """The part of an engine that says what it takes."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Its inputs."""
        ...

    def profile_range(self, name: str, profile: int) -> list[tuple[int, ...]] | None:
        """Smallest, tuned-for and largest shape of an input, None where there is no such limit."""
        ...


def check_inputs(
    engine: TakesInputs, inputs: Mapping[str, Array], profile: int
) -> dict[str, Array]:
    """The arrays as the engine takes them: contiguous, of its types, within the profile.

    A type is converted only where no value changes.

    Raises:
        ContractError: says which input, what is wrong, and what the engine takes.
    """
    wanted = {tensor.name: tensor for tensor in engine.inputs}
    unknown = [name for name in inputs if name not in wanted]
    missing = [name for name in wanted if name not in inputs]
    if unknown or missing:
        texts = [f"has no input {name!r}" for name in unknown]
        texts += [f"needs input {name!r}" for name in missing]
        raise ContractError(
            f"the engine {' and '.join(texts)}; its inputs are " + ", ".join(map(repr, wanted))
        )
    arrays = {}
    for name, tensor in wanted.items():
        array = np.asarray(inputs[name])
        if array.dtype != tensor.dtype:
            with np.errstate(all="ignore"):
                converted = array.astype(tensor.dtype)
                back = converted.astype(array.dtype)
            if back.tobytes() != array.tobytes():
                raise ContractError(
                    f"input {name!r} has type {array.dtype}; the engine takes {tensor.dtype}, "
                    "which cannot hold these values"
                )
            array = converted
        if len(array.shape) != len(tensor.shape):
            raise ContractError(
                f"input {name!r} has shape {array.shape}; the engine takes rank "
                f"{len(tensor.shape)}, {tensor.shape}"
            )
        limits = engine.profile_range(name, profile)
        if limits is not None:
            low, _, high = limits
            if any(not a <= n <= b for a, n, b in zip(low, array.shape, high, strict=True)):
                raise ContractError(
                    f"input {name!r} has shape {array.shape}, outside {low} to {high} of the "
                    f"engine's profile {profile}; build with --profile for larger ones"
                )
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
    return arrays
