"""The extension of ``polygraphy run``, and what lets other Polygraphy commands find the plugin.

Polygraphy calls ``export_argument_groups`` at the start of each of its commands, so nothing is
imported here but Polygraphy's own argument groups, which it has loaded by then. TensorRT is loaded
only for a command that is about to use it on a file that holds our operator; see ``needs_plugin``.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from nonzero_plugin.contract import BACKENDS, DEFAULT_BACKEND
from polygraphy.logger import G_LOGGER
from polygraphy.tools.args import ModelArgs, OnnxLoadArgs, TrtRunnerArgs
from polygraphy.tools.args import util as args_util
from polygraphy.tools.args.base import BaseArgs, BaseRunnerArgs
from polygraphy.tools.script import make_invocable

from nonzero_rewrite.polygraphy_gate import needs_plugin

LOADERS = "nonzero_rewrite.polygraphy_loaders"


class NonZeroRewriteArgs(BaseArgs):  # type: ignore[misc]
    """
    NonZero Rewriting: rewriting NonZero for TensorRT (used by --trt-nonzero).

    Depends on:

        - OnnxLoadArgs
    """

    def add_parser_args_impl(self) -> None:
        """Adds the options; names of rules are checked when they are used."""
        self.group.add_argument(
            "--nonzero-backend",
            help=f"What computes NonZero on the GPU. Defaults to {DEFAULT_BACKEND}.",
            choices=BACKENDS,
            default=None,
        )
        self.group.add_argument(
            "--nonzero-rules",
            help="Run only these rewrite rules; `nonzero-rewrite scan --help` lists them. "
            "For example: --nonzero-rules plugin transpose",
            nargs="+",
            metavar="RULE",
            default=None,
        )
        self.group.add_argument(
            "--nonzero-max",
            help="Promise that at most N items are non-zero, for all NonZero nodes or for one. "
            "Format: --nonzero-max [<node_name>:]<N>. More are cut off at N, in row-major order. "
            "For example: --nonzero-max 1000 mask_nonzero:200",
            nargs="+",
            metavar="N",
            default=None,
        )

    def parse_impl(self, args: Any) -> None:
        """Populates ``backend``, ``rules``, ``max_nonzero`` and ``max_nonzero_of``."""
        self.backend = args_util.get(args, "nonzero_backend")
        self.rules = args_util.get(args, "nonzero_rules")
        self.max_nonzero: int | None = None
        self.max_nonzero_of: list[tuple[str, int]] = []
        for text in args_util.get(args, "nonzero_max") or ():
            name, _, number = text.rpartition(":")
            if not number.isdecimal():
                G_LOGGER.critical(f"--nonzero-max: {text!r} is neither N nor NODE:N")
            if name:
                self.max_nonzero_of.append((name, int(number)))
            else:
                self.max_nonzero = int(number)

    def add_to_script_impl(self, script: Any, onnx_loader: Any) -> Any:
        """Adds the rewrite of what ``onnx_loader`` returns; the name of the new loader."""
        script.add_import(imports=["RewriteNonZero"], frm=LOADERS)
        return script.add_loader(
            make_invocable(
                "RewriteNonZero",
                onnx_loader,
                backend=self.backend,
                rules=self.rules,
                max_nonzero=self.max_nonzero,
                max_nonzero_of=self.max_nonzero_of or None,
            ),
            "rewrite_nonzero",
        )


class NonZeroTrtRunnerArgs(BaseRunnerArgs):  # type: ignore[misc]
    """
    TensorRT with NonZero Rewritten: running the rewritten model with TensorRT.

    Takes every option of --trt.

    Depends on:

        - ModelArgs
        - NonZeroRewriteArgs
        - OnnxLoadArgs
        - TrtRunnerArgs
    """

    def get_name_opt_impl(self) -> tuple[str, str]:
        """``--trt-nonzero``."""
        return "TensorRT with NonZero rewritten", "trt-nonzero"

    def add_to_script_impl(self, script: Any) -> None:
        """Adds what ``--trt`` would, on the rewritten model and with the plugin registered.

        Polygraphy's own groups write the script, so that all their options count; for that time,
        what they load is the rewritten model.
        """
        model_type = self.arg_groups[ModelArgs].model_type
        if not model_type.is_onnx() and not model_type.is_tf():
            G_LOGGER.critical(
                f"--trt-nonzero rewrites ONNX models, and this is of type {model_type}; --trt "
                "takes a patched model or an engine and finds the plugin by itself"
            )
        _warn_of_missing_tensorrt()  # no error: --gen-script may be for another machine
        original = self.arg_groups[OnnxLoadArgs]
        self.arg_groups[OnnxLoadArgs] = _RewrittenOnnx(original, self.arg_groups)
        try:
            self.arg_groups[TrtRunnerArgs].add_to_script(script)
        finally:
            self.arg_groups[OnnxLoadArgs] = original


class _RewrittenOnnx(OnnxLoadArgs):  # type: ignore[misc]
    """Stands in for OnnxLoadArgs: loads what it loads, rewritten, and registers the plugin."""

    def __init__(self, original: Any, arg_groups: Any) -> None:
        self.__dict__.update(copy.copy(original.__dict__))
        self._original = original
        self._groups = arg_groups

    def must_use_onnx_loader(self, *args: Any, **kwargs: Any) -> bool:
        """Always: the model differs from the file."""
        return True

    def add_to_script_impl(self, script: Any, *args: Any, **kwargs: Any) -> Any:
        """The bytes of the rewritten model; the network loader asks for nothing else."""
        kwargs.pop("serialize_model", None)
        loader = self._original.add_to_script(script, *args, **kwargs)
        loader = self._groups[NonZeroRewriteArgs].add_to_script(script, loader)
        script.add_import(imports=["BytesFromOnnx"], frm="polygraphy.backend.onnx")
        loader = script.add_loader(make_invocable("BytesFromOnnx", loader), "serialize_onnx")
        script.add_import(imports=["RegisterNonZeroPlugin"], frm=LOADERS)
        return script.add_loader(
            make_invocable("RegisterNonZeroPlugin", loader), "register_nonzero_plugin"
        )


def export_argument_groups() -> list[BaseArgs]:
    """Polygraphy's entry point (``polygraphy.run.plugins``)."""
    if needs_plugin(sys.argv[1:]):
        _register()
    return [NonZeroRewriteArgs(), NonZeroTrtRunnerArgs()]


def _register() -> None:
    """Register the plugin with the TensorRT that Polygraphy uses, or warn in one sentence."""
    from nonzero_plugin import NonZeroPluginError, register

    from nonzero_rewrite.polygraphy_gate import polygraphy_flavour

    try:
        register(polygraphy_flavour())
    except NonZeroPluginError as err:
        G_LOGGER.warning(f"NonZeroPlugin is not registered: {err}{_other_flavour()}")


def _warn_of_missing_tensorrt() -> None:
    from importlib.util import find_spec

    from nonzero_plugin import NonZeroPluginError

    from nonzero_rewrite.polygraphy_gate import polygraphy_flavour

    try:
        name = polygraphy_flavour()
    except NonZeroPluginError as err:
        G_LOGGER.warning(str(err))
        return
    if find_spec(name) is None:
        how = "pip install 'nonzero-rewrite[rtx]'" if name == "tensorrt_rtx" else "install TensorRT"
        G_LOGGER.warning(f"{name} is not installed: {how}{_other_flavour()}")


def _other_flavour() -> str:
    """What to do when only the TensorRT is installed that Polygraphy was not told to use."""
    from importlib.util import find_spec

    from nonzero_plugin._tensorrt import wants_rtx

    if not wants_rtx() and not find_spec("tensorrt") and find_spec("tensorrt_rtx"):
        return "; for TensorRT for RTX, which is installed, set POLYGRAPHY_USE_TENSORRT_RTX=1"
    return ""
