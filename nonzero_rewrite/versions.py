"""Versions of everything the tool uses: what is installed, and what a run really loaded."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from nonzero_rewrite import __version__

_DISTRIBUTIONS = (
    "nonzero-rewrite",
    "onnx",
    "onnxruntime",
    "onnx-graphsurgeon",
    "polygraphy",
    "numpy",
    "click",
    "rich",
    "tensorrt",
    "tensorrt-rtx",
    "cuda-python",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "torch",
)

_MODULES = ("onnx", "onnxruntime", "tensorrt", "tensorrt_rtx", "numpy")


def installed_versions() -> dict[str, str | None]:
    """Python's version and that of each distribution, None where it is not installed."""
    versions: dict[str, str | None] = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    if versions["onnxruntime"] is None:
        for variant in ("onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino"):
            try:
                versions["onnxruntime"] = f"{metadata.version(variant)} ({variant})"
            except metadata.PackageNotFoundError:
                continue
    return {"python": platform.python_version(), **versions}


def loaded_versions() -> dict[str, str]:
    """Versions of the libraries that this process has imported, as they say themselves."""
    found = {"nonzero-rewrite": __version__, "python": platform.python_version()}
    for name in _MODULES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            found[name] = str(version)
    return found
