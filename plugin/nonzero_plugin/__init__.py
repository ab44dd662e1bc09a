"""The NonZeroPlugin operator for TensorRT and TensorRT for RTX.

Importing this package imports neither TensorRT nor CUDA and changes no registry; ``register`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nonzero_plugin.contract import NonZeroConfig
from nonzero_plugin.errors import NonZeroPluginError

if TYPE_CHECKING:
    from nonzero_plugin.network import add_nonzero
    from nonzero_plugin.registry import register

__all__ = ["NonZeroConfig", "NonZeroPluginError", "add_nonzero", "register"]

_LAZY = {"register": "nonzero_plugin.registry", "add_nonzero": "nonzero_plugin.network"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
