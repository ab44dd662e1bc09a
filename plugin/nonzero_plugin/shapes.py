"""Output dimensions and size-tensor bounds, over an abstract algebra of dimensions.

The adapter passes TensorRT's expression builder, tests pass integers; the formulas stand once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from nonzero_plugin.contract import MAX_RANK, MIN_RANK, NonZeroConfig
from nonzero_plugin.errors import ContractError

COUNT_OUTPUT = 1
"""Index of the output that holds ``num_nonzero``, the size tensor."""

D = TypeVar("D")


class DimAlgebra(Protocol[D]):
    """What the formulas need of a dimension."""

    def constant(self, value: int) -> D:
        """The dimension ``value``."""
        ...

    def product(self, left: D, right: D) -> D:
        """``left * right``."""
        ...

    def minimum(self, left: D, right: D) -> D:
        """``min(left, right)``."""
        ...

    def maximum(self, left: D, right: D) -> D:
        """``max(left, right)``."""
        ...

    def floor_div(self, left: D, right: D) -> D:
        """``left // right``."""
        ...

    def size_tensor(self, output: int, opt: D, upper: D) -> D:
        """The value of scalar output ``output``: ``opt`` to tune for, ``upper`` at most."""
        ...


def output_dims(
    dims: Sequence[D], config: NonZeroConfig, algebra: DimAlgebra[D]
) -> tuple[tuple[D, D], tuple[()]]:
    """Dimensions of ``indices`` and ``count`` for an input of dimensions ``dims``.

    ``indices`` is ``[rank, num_nonzero]``, or ``[num_nonzero, rank]`` with ``perm == (1, 0)``, as
    in ONNX NonZero-13 and the Transpose that follows it; ``count`` is a scalar.

    Raises:
        ContractError: when the rank is outside 1 to 8. (Rank 0 has no single meaning: the ONNX
            text gives ``[0, n]``, onnxruntime ``[1, n]``.)
    """
    rank = len(dims)
    if not MIN_RANK <= rank <= MAX_RANK:
        raise ContractError(
            f"the input has rank {rank}; NonZeroPlugin takes ranks {MIN_RANK} to {MAX_RANK}"
        )
    upper = upper_bound(dims, config, algebra)
    half = algebra.floor_div(upper, algebra.constant(2))
    opt = algebra.maximum(algebra.constant(1), half)
    num_nonzero = algebra.size_tensor(COUNT_OUTPUT, opt, upper)
    extent = algebra.constant(rank)
    return ((num_nonzero, extent) if config.rank_last else (extent, num_nonzero)), ()


def upper_bound(dims: Sequence[D], config: NonZeroConfig, algebra: DimAlgebra[D]) -> D:
    """The most elements that can be non-zero: all of them, or ``max_nonzero`` if that is less."""
    upper = algebra.constant(1)
    for dim in dims:
        upper = algebra.product(upper, dim)
    if config.max_nonzero is not None:
        upper = algebra.minimum(upper, algebra.constant(config.max_nonzero))
    return upper


class ExprAlgebra:
    """The algebra over TensorRT's ``IExprBuilder``; the expressions die with the callback."""

    def __init__(self, trt: Any, builder: Any) -> None:
        self._builder = builder
        self._operation = trt.DimensionOperation

    def constant(self, value: int) -> Any:
        """A constant expression."""
        return self._builder.constant(value)

    def product(self, left: Any, right: Any) -> Any:
        """``PROD``."""
        return self._builder.operation(self._operation.PROD, left, right)

    def minimum(self, left: Any, right: Any) -> Any:
        """``MIN``."""
        return self._builder.operation(self._operation.MIN, left, right)

    def maximum(self, left: Any, right: Any) -> Any:
        """``MAX``."""
        return self._builder.operation(self._operation.MAX, left, right)

    def floor_div(self, left: Any, right: Any) -> Any:
        """``FLOOR_DIV``."""
        return self._builder.operation(self._operation.FLOOR_DIV, left, right)

    def size_tensor(self, output: int, opt: Any, upper: Any) -> Any:
        """``declare_size_tensor``; its result may stand in dimensions, not in operations."""
        return self._builder.declare_size_tensor(output, opt, upper)
