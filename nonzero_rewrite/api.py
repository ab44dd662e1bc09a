"""The Python entry points: a model or a path in, a typed result out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from onnx import ModelProto

from nonzero_rewrite.load import about, load_model
from nonzero_rewrite.options import Options, OptionSettings, chosen_options
from nonzero_rewrite.rewrite import RewriteResult, rewrite

if TYPE_CHECKING:  # in typing from Python 3.11 on
    from typing_extensions import Unpack


def rewrite_model(
    model: ModelProto | str | os.PathLike[str],
    options: Options | None = None,
    **settings: Unpack[OptionSettings],
) -> RewriteResult:
    """Rewrite a model in memory.

    Args:
        model: a path (external data stays unread and named as it is), or a protobuf, which is
            copied first and not changed.
        options: what to do; by default every exact rule, for the ``cuda_python`` backend.
        settings: fields of ``Options`` instead of ``options``, for example ``backend="torch"``.

    Raises:
        NonZeroRewriteError: see ``load_model`` and ``rewrite``.
        TypeError: when both ``options`` and ``settings`` are given, or a setting is misspelled.
    """
    options = chosen_options(options, settings)
    if isinstance(model, ModelProto):
        copy = ModelProto()
        copy.CopyFrom(model)
        return rewrite(copy, options)
    source = load_model(model)
    with about(model):
        return rewrite(source.complete(), options)


def scan_model(
    model: ModelProto | str | os.PathLike[str], options: Options | None = None
) -> RewriteResult:
    """What ``rewrite_model`` would do: the same run, whose model is of no interest.

    ``result.sites`` are the NonZero nodes, ``result.plan`` what would become of each, and
    ``result.blockers`` the other operators that TensorRT or TensorRT-RTX will not build.
    """
    return rewrite_model(model, options)
