"""Polygraphy loaders that rewrite a model and register the plugin.

    NetworkFromOnnxBytes(RegisterNonZeroPlugin(BytesFromOnnx(RewriteNonZero(OnnxFromPath("m.onnx")))))

Import this before anything that imports TensorRT for RTX: its Linux wheel has to be loaded from a
folder with one more name in it (see ``nonzero_plugin._tensorrt``), which importing this does when
``POLYGRAPHY_USE_TENSORRT_RTX`` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from nonzero_plugin import NonZeroPluginError
from nonzero_plugin._tensorrt import prepare_rtx_libraries, wants_rtx
from polygraphy import util
from polygraphy.backend.base import BaseLoader
from polygraphy.logger import G_LOGGER

from nonzero_rewrite.errors import NonZeroRewriteError
from nonzero_rewrite.polygraphy_gate import polygraphy_flavour

if TYPE_CHECKING:
    from onnx import ModelProto

    from nonzero_rewrite.options import OptionSettings
    from nonzero_rewrite.plan import RewritePlan

__all__ = ["RegisterNonZeroPlugin", "RewriteNonZero"]

if wants_rtx():
    prepare_rtx_libraries()


class RewriteNonZero(BaseLoader):  # type: ignore[misc]
    """Functor that rewrites the NonZero nodes of an ONNX model."""

    def __init__(
        self,
        model: ModelProto | Callable[[], ModelProto],
        backend: str | None = None,
        rules: Sequence[str] | None = None,
        max_nonzero: int | None = None,
        max_nonzero_of: Iterable[tuple[str, int]] | None = None,
    ) -> None:
        """
        Args:
            model: an ONNX model or a callable that returns one.
            backend: what computes NonZero on the GPU. Defaults to ``cuda_python``.
            rules: names of the rules that may run; with a leading ``+``, in addition to the
                default ones. Defaults to every exact rule.
            max_nonzero: promise of how many items are non-zero at most.
            max_nonzero_of: such promises by the name of the NonZero node.
        """
        self._model = model
        self._backend = backend
        self._rules = rules
        self._max_nonzero = max_nonzero
        self._max_nonzero_of = tuple(max_nonzero_of or ())

    @util.check_called_by("__call__")  # type: ignore[untyped-decorator]
    def call_impl(self) -> ModelProto:
        """
        Returns:
            onnx.ModelProto: the rewritten model; the one that was given stays as it is.
        """
        from nonzero_rewrite.api import rewrite_model

        model, _ = util.invoke_if_callable(self._model)
        settings: OptionSettings = {
            "max_nonzero": self._max_nonzero,
            "max_nonzero_of": self._max_nonzero_of,
        }
        if self._backend is not None:
            settings["backend"] = self._backend
        if self._rules is not None:
            settings["rules"] = _rule_names(self._rules)
        try:
            result = rewrite_model(model, **settings)
        except NonZeroRewriteError as err:
            _stop(err)
        _log(result.plan)
        return result.model


class RegisterNonZeroPlugin(BaseLoader):  # type: ignore[misc]
    """Functor that registers the plugin with the TensorRT that Polygraphy uses.

    Put it before what parses a model or loads an engine. The object is passed through.
    """

    def __init__(self, obj: Any = None) -> None:
        """
        Args:
            obj: an object to return, or a callable whose result is returned.
        """
        self._obj = obj

    @util.check_called_by("__call__")  # type: ignore[untyped-decorator]
    def call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """
        Returns:
            object: what was given, or what it returns when it is called with the arguments.
        """
        from nonzero_plugin import register

        try:
            register(polygraphy_flavour())
        except NonZeroPluginError as err:
            _stop(err)
        return util.invoke_if_callable(self._obj, *args, **kwargs)[0]


def _rule_names(names: Sequence[str]) -> frozenset[str]:
    from nonzero_rewrite.rules import DEFAULT_RULES

    added = {name[1:] for name in names if name.startswith("+")}
    only = {name for name in names if not name.startswith("+")}
    return frozenset(only | added) if only else DEFAULT_RULES | added


def _log(plan: RewritePlan) -> None:
    total = len(plan.decisions)
    if not total:
        G_LOGGER.info("No NonZero found: nothing to rewrite")
        return
    parts = (("plugin", "to NonZeroPlugin"), ("removed", "not needed any more"), ("left", "left"))
    counts = ", ".join(f"{plan.count(key)} {text}" for key, text in parts if plan.count(key))
    G_LOGGER.info(f"{total} NonZero found: {counts}")
    for decision in plan.decisions:
        if decision.outcome == "left":
            G_LOGGER.warning(f"NonZero {decision.site.id!r} is left: {decision.summary}")


def _stop(err: Exception) -> NoReturn:
    """Polygraphy's way to end with a sentence."""
    G_LOGGER.critical(str(err))
    raise AssertionError("unreachable: critical raises")
