"""Whether a Polygraphy command is about to use TensorRT on a file that holds our operator.

Decided from the command line and the file's outermost fields, so that every other command costs a
few microseconds and imports neither TensorRT nor onnx.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

from nonzero_plugin._tensorrt import ENV_RTX, wants_rtx
from nonzero_plugin.contract import DOMAIN, OP_TYPE
from nonzero_plugin.errors import TensorRTUnavailableError

from nonzero_rewrite.wire import fields

_OPSET_IMPORT = 8  # field of onnx.ModelProto
_ENGINE_SUFFIXES = frozenset((".engine", ".plan", ".trt"))


def needs_plugin(argv: Sequence[str]) -> bool:
    """Whether ``polygraphy *argv`` will parse, build or load our operator in TensorRT.

    ``--trt-nonzero`` is not counted: what it needs is in the script that Polygraphy writes.
    """
    return _uses_tensorrt(argv) and any(holds_plugin(Path(word)) for word in _files(argv))


def polygraphy_flavour() -> str:
    """The TensorRT module that Polygraphy imports.

    Raises:
        TensorRTUnavailableError: this Polygraphy cannot drive TensorRT for RTX 1.5 and newer:
            before 0.49.26 it does not know it, and 0.49.26 asks for a flag that is gone.
    """
    if not wants_rtx():
        return "tensorrt"
    import polygraphy

    if polygraphy.__version__.startswith("0.49."):
        raise TensorRTUnavailableError(
            f"Polygraphy {polygraphy.__version__} cannot drive TensorRT for RTX ({ENV_RTX} is "
            "set); pip install 'polygraphy>=0.50.3'"
        )
    return "tensorrt_rtx"


def holds_plugin(path: Path) -> bool:
    """Whether a file is an ONNX model that imports our domain, or an engine with our layers."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            if path.suffix.lower() != ".onnx" and data.find(OP_TYPE.encode()) >= 0:
                return True
            return any(
                field.number == _OPSET_IMPORT and DOMAIN.encode() in data[field.value : field.end]
                for field in fields(data, 0, len(data))
                if field.end - field.value < 1 << 16
            )
    except (OSError, ValueError):
        return False


def _uses_tensorrt(argv: Sequence[str]) -> bool:
    tool = next((word for word in argv if not word.startswith("-")), "")
    if tool == "run":
        return "--trt" in argv
    if tool == "inspect":
        shown_as = any(word.startswith("--convert-to") for word in argv)
        engine = any(Path(word).suffix.lower() in _ENGINE_SUFFIXES for word in argv)
        return "capability" in argv or shown_as or engine
    return tool in ("convert", "debug", "multi-device")


def _files(argv: Sequence[str]) -> Iterator[str]:
    """What may be a model or an engine; Polygraphy takes them by any name."""
    other = (".py", ".json", ".npz", ".yaml", ".so", ".dll")
    return (
        word
        for word in argv
        if not word.startswith("-") and not word.lower().endswith(other) and Path(word).is_file()
    )
