"""Registers the plugin's creators with TensorRT: the one call an application needs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from nonzero_plugin._tensorrt import load_tensorrt
from nonzero_plugin.adapter import UNPATCHED_NAME, make_classes
from nonzero_plugin.contract import (
    DEFAULT_BACKEND,
    PLUGIN_NAME,
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
)
from nonzero_plugin.errors import PluginRegistrationError

_lock = threading.Lock()
_here: set[tuple[Any, Any]] = set()
"""(module, triple) of what this process registered."""


@dataclass(frozen=True, order=True)
class PluginTriple:
    """What TensorRT finds a plugin by; all three must match to the letter."""

    name: str
    version: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.name}, version {self.version}, namespace {self.namespace!r}"


OURS = PluginTriple(PLUGIN_NAME, PLUGIN_VERSION, PLUGIN_NAMESPACE)
UNPATCHED = PluginTriple(UNPATCHED_NAME, "1", "")


def register(
    trt_module: str | ModuleType | None = None,
    *,
    unpatched: bool = False,
    backend: str = DEFAULT_BACKEND,
) -> Any:
    """Makes TensorRT know ``NonZeroPlugin``; call it before parsing a model or loading an engine.

    Safe to call again, from any thread.

    Args:
        trt_module: ``tensorrt``, ``tensorrt_rtx`` or ``tensorrt_lean`` (the module or, for the
            first two, its name); None takes the one that :func:`load_tensorrt` picks.
        unpatched: also register ``NonZero``/``1``/empty namespace, which lets TensorRT for RTX 1.6
            and newer build models that still hold ONNX NonZero.
        backend: the backend of unpatched nodes, which cannot name one.

    Returns:
        The TensorRT module.

    Raises:
        PluginRegistrationError: another plugin is registered under the same name, version and
            namespace; nothing was registered then.
        TensorRTUnavailableError: there is no TensorRT, or it is too old.
    """
    trt = load_tensorrt(trt_module)
    classes = make_classes(trt)
    wanted: list[tuple[PluginTriple, type[Any], tuple[str, ...]]] = [(OURS, classes.creator, ())]
    if unpatched:
        wanted.append((UNPATCHED, classes.unpatched_creator, (backend,)))
    registry = trt.get_plugin_registry()
    with _lock:
        present = registered(trt)
        for triple, kind, arguments in wanted:
            other = present.get(triple)
            if other is not None and not _is_ours(trt, triple, other, kind):
                raise PluginRegistrationError(
                    f"{type(other).__module__}.{type(other).__qualname__} is already registered "
                    f"as {triple}; TensorRT would run it instead: deregister it, or start a "
                    "process that does not load it"
                )
            if other is not None and arguments and other.config.backend != backend:
                raise PluginRegistrationError(
                    f"{triple} is already registered with backend {other.config.backend!r}, "
                    f"not {backend!r}; a process can use one"
                )
        done: list[Any] = []
        for triple, kind, arguments in wanted:
            if triple in present:
                continue
            creator = kind(*arguments)
            if not registry.register_creator(creator, triple.namespace):
                for earlier in done:
                    registry.deregister_creator(earlier)
                raise PluginRegistrationError(
                    f"TensorRT refused to register {triple}; its log says why"
                )
            done.append(creator)
            _here.add((trt, triple))
    return trt


def unregister(trt_module: str | ModuleType | None = None) -> None:
    """Takes our creators out of the registry again; without effect where there are none."""
    trt = load_tensorrt(trt_module)
    classes = make_classes(trt)
    registry = trt.get_plugin_registry()
    with _lock:
        for creator in registered(trt).values():
            if isinstance(creator, (classes.creator, classes.unpatched_creator)):
                registry.deregister_creator(creator)
        _here.difference_update({(trt, OURS), (trt, UNPATCHED)})


def _is_ours(trt: Any, triple: PluginTriple, creator: Any, kind: type[Any]) -> bool:
    if isinstance(creator, kind):
        return True
    # Bindings that hand out a plain interface object for a creator written in Python.
    return type(creator) is trt.IPluginCreatorV3One and (trt, triple) in _here


def registered(trt: Any) -> dict[PluginTriple, Any]:
    """All creators in TensorRT's registry by what they are found by."""
    registry = trt.get_plugin_registry()
    creators = getattr(registry, "all_creators_recursive", None)
    if creators is None:
        creators = registry.all_creators
    return {
        PluginTriple(creator.name, creator.plugin_version, creator.plugin_namespace): creator
        for creator in creators
        if hasattr(creator, "name")  # an interface these bindings do not know
    }


def load_standard_plugins(trt: Any, logger: Any) -> None:
    """Registers TensorRT's own plugins, which other nodes of a model may need."""
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(logger, "")
