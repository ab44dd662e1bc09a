"""The NonZeroPlugin operator: what the rewriter writes and the plugin reads.

    (indices, count) = nonzero_rewrite::NonZeroPlugin(x)

* ``x``: any supported dtype, rank 1 to 8.
* ``indices``: INT64 (INT32 with ``index_type``), row-major order as in ONNX NonZero-13.
  ``perm == (0, 1)`` gives ``[rank, num_nonzero]``, ``perm == (1, 0)`` ``[num_nonzero, rank]``.
* ``count``: INT64 scalar, ``num_nonzero``.

The namespace equals the node's domain on purpose: TensorRT's published sample registers another
plugin, with another contract, as ``NonZeroPlugin``/``1`` in the empty namespace.

Imports nothing heavy: both ``nonzero_rewrite`` and every part of ``nonzero_plugin`` depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nonzero_plugin.errors import ContractError

DOMAIN = "nonzero_rewrite"
DOMAIN_VERSION = 1
OP_TYPE = "NonZeroPlugin"

PLUGIN_NAME = OP_TYPE
PLUGIN_VERSION = "1"
PLUGIN_NAMESPACE = DOMAIN

# Attributes TensorRT's ONNX parser itself reads to look a plugin up.
ATTR_PLUGIN_VERSION = "plugin_version"
ATTR_PLUGIN_NAMESPACE = "plugin_namespace"
# Attributes that reach the plugin as fields. INT attributes arrive as INT32 there.
ATTR_BACKEND = "backend"
ATTR_PERM = "perm"
ATTR_INDEX_TYPE = "index_type"
ATTR_MAX_NONZERO = "max_nonzero"

BACKENDS = ("cuda_python", "cupy", "torch")
DEFAULT_BACKEND = "cuda_python"

PERM_RANK_FIRST = (0, 1)
"""ONNX NonZero's own layout, ``[rank, num_nonzero]``."""
PERM_RANK_LAST = (1, 0)
"""The layout after ``Transpose(perm=[1, 0])``, ``[num_nonzero, rank]``."""

# onnx.TensorProto.DataType values, spelled out so that nothing heavy is imported here.
INDEX_INT32 = 6
INDEX_INT64 = 7

MIN_RANK = 1
MAX_RANK = 8
MAX_MAX_NONZERO = 2**31 - 1
"""The parser hands INT attributes over as INT32 and truncates larger ones without a word."""


@dataclass(frozen=True)
class NonZeroConfig:
    """One node's settings, validated on construction.

    Raises:
        ContractError: for an unknown backend, perm or index type, or a ``max_nonzero`` outside
            ``1..2**31 - 1``.
    """

    backend: str = DEFAULT_BACKEND
    perm: tuple[int, int] = PERM_RANK_FIRST
    index_type: int = INDEX_INT64
    max_nonzero: int | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ContractError(
                f"backend {self.backend!r} is unknown; choose one of {', '.join(BACKENDS)}"
            )
        if self.perm not in (PERM_RANK_FIRST, PERM_RANK_LAST):
            raise ContractError(f"perm {self.perm!r} is neither (0, 1) nor (1, 0)")
        if self.index_type not in (INDEX_INT32, INDEX_INT64):
            raise ContractError(
                f"index_type {self.index_type!r} is neither {INDEX_INT64} (INT64) "
                f"nor {INDEX_INT32} (INT32)"
            )
        if self.max_nonzero is not None and not 1 <= self.max_nonzero <= MAX_MAX_NONZERO:
            raise ContractError(
                f"max_nonzero {self.max_nonzero!r} is outside 1 to {MAX_MAX_NONZERO}"
            )

    @property
    def rank_last(self) -> bool:
        """True for the ``[num_nonzero, rank]`` layout."""
        return self.perm == PERM_RANK_LAST
