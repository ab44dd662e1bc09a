"""Rewrite ONNX NonZero so that TensorRT and TensorRT for RTX build it, and prove the result equal.

    from nonzero_rewrite import rewrite_model, verify_models

    result = rewrite_model("model.onnx")
    onnx.save(result.model, "patched.onnx")
    assert verify_models("model.onnx", "patched.onnx").ok

Importing this package imports neither onnx nor onnxruntime, TensorRT or CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nonzero_plugin.engine import build_engine

    from nonzero_rewrite.api import rewrite_model, scan_model
    from nonzero_rewrite.errors import NonZeroRewriteError
    from nonzero_rewrite.find import Site
    from nonzero_rewrite.options import Options
    from nonzero_rewrite.plan import Decision, RewritePlan
    from nonzero_rewrite.restore import restore_model
    from nonzero_rewrite.rewrite import RewriteResult
    from nonzero_rewrite.verify import verify_models

__version__ = "0.1.0"

__all__ = [
    "Decision",
    "NonZeroRewriteError",
    "Options",
    "RewritePlan",
    "RewriteResult",
    "Site",
    "__version__",
    "build_engine",
    "restore_model",
    "rewrite_model",
    "scan_model",
    "verify_models",
]

_HOME = {
    "Decision": "nonzero_rewrite.plan",
    "NonZeroRewriteError": "nonzero_rewrite.errors",
    "Options": "nonzero_rewrite.options",
    "RewritePlan": "nonzero_rewrite.plan",
    "RewriteResult": "nonzero_rewrite.rewrite",
    "Site": "nonzero_rewrite.find",
    "build_engine": "nonzero_plugin.engine",
    "restore_model": "nonzero_rewrite.restore",
    "rewrite_model": "nonzero_rewrite.api",
    "scan_model": "nonzero_rewrite.api",
    "verify_models": "nonzero_rewrite.verify",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
