"""NonZero for networks that are built by hand, through TensorRT's network API."""

from __future__ import annotations

import sys
from typing import Any, Literal

from nonzero_plugin._tensorrt import flavour_of
from nonzero_plugin.adapter import make_classes
from nonzero_plugin.callbacks import raise_recorded
from nonzero_plugin.contract import (
    DEFAULT_BACKEND,
    INDEX_INT64,
    PERM_RANK_FIRST,
    PERM_RANK_LAST,
    NonZeroConfig,
)
from nonzero_plugin.errors import ContractError, TensorRTUnavailableError
from nonzero_plugin.registry import register

Layout = Literal["rank_first", "rank_last"]
_PERMS = {"rank_first": PERM_RANK_FIRST, "rank_last": PERM_RANK_LAST}


def add_nonzero(
    network: Any,
    tensor: Any,
    *,
    layout: Layout = "rank_first",
    backend: str = DEFAULT_BACKEND,
    index_type: int = INDEX_INT64,
    max_nonzero: int | None = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Adds a NonZeroPlugin layer (``add_plugin_v3``) and registers the plugin if need be.

    Args:
        network: a TensorRT ``INetworkDefinition``.
        tensor: ``ITensor`` of rank 1 to 8, any type NonZeroPlugin takes.
        layout: ``rank_first`` is ONNX NonZero's ``[rank, num_nonzero]``, ``rank_last`` its
            transpose ``[num_nonzero, rank]``; both in row-major order of the elements.
        backend: ``cuda_python``, ``cupy`` or ``torch``.
        index_type: 7 for INT64 indices, 6 for INT32 (``onnx.TensorProto`` numbers).
        max_nonzero: the caller's promise about the most non-zero elements.
        name: the layer's name; TensorRT's choice without.

    Returns:
        ``(indices, count)``; ``count`` is an INT64 scalar.

    Raises:
        ContractError: an argument is out of range, or TensorRT refused the layer.
        TensorRTUnavailableError: the network's TensorRT has no ``add_plugin_v3`` in Python; that
            is so for TensorRT for RTX, where the ONNX parser is the only way in.
    """
    if layout not in _PERMS:
        raise ContractError(f"layout {layout!r} is neither 'rank_first' nor 'rank_last'")
    config = NonZeroConfig(backend, _PERMS[layout], index_type, max_nonzero)
    trt = _module_of(network)
    if not hasattr(network, "add_plugin_v3"):
        raise TensorRTUnavailableError(
            f"{flavour_of(trt)} {trt.__version__} has no INetworkDefinition.add_plugin_v3 in its "
            "Python bindings, so a plugin cannot be added by hand there; put the NonZero into an "
            "ONNX model, rewrite it with nonzero-rewrite and parse that"
        )
    register(trt)
    layer = network.add_plugin_v3([tensor], [], make_classes(trt).plugin(config, name or ""))
    raise_recorded()
    if layer is None:
        raise ContractError("TensorRT refused the NonZeroPlugin layer; its log says why")
    if name is not None:
        layer.name = name
    return layer.get_output(0), layer.get_output(1)


def _module_of(network: Any) -> Any:
    """The TensorRT module whose types the network has."""
    package = type(network).__module__.partition(".")[0]
    module = sys.modules.get(package.removesuffix("_bindings")) or sys.modules.get(package)
    if module is None or not hasattr(module, "INetworkDefinition"):
        raise ContractError(f"{type(network).__qualname__} is not a TensorRT network")
    return module
