"""Whether a Polygraphy command is about to use TensorRT on a file that holds our operator.

Decided from the command line and the file's outermost fields, so that every other command costs a
few microseconds and imports neither TensorRT nor onnx.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from nonzero_plugin.contract import DOMAIN, OP_TYPE
from nonzero_plugin.errors import TensorRTUnavailableError

ENV_RTX = "POLYGRAPHY_USE_TENSORRT_RTX"
"""Polygraphy's own switch; any value that is not 0 or empty."""

_OPSET_IMPORT = 8  # field of onnx.ModelProto; its own field 1 is the domain
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ENGINE_SUFFIXES = frozenset((".engine", ".plan", ".trt"))


def needs_plugin(argv: Sequence[str]) -> bool:
    """Whether ``polygraphy *argv`` will parse, build or load our operator in TensorRT.

    ``--trt-nonzero`` is not counted: what it needs is in the script that Polygraphy writes.
    """
    return _uses_tensorrt(argv) and any(holds_plugin(Path(word)) for word in _files(argv))


def wants_rtx() -> bool:
    """Whether Polygraphy is told to use TensorRT for RTX."""
    return os.environ.get(ENV_RTX, "0") not in ("", "0")


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
        with path.open("rb") as file:
            if path.suffix.lower() != ".onnx" and _mentions(file, OP_TYPE.encode()):
                return True
            return any(
                field == _OPSET_IMPORT and DOMAIN.encode() in file.read(size)
                for field, size in _fields(file)
                if size < 1 << 16
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


def _mentions(file: BinaryIO, text: bytes) -> bool:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(text) >= 0


def _fields(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Number and size of each outermost length-delimited field; the file stands at its content.

    A model's graph, however large, is one such field and is stepped over.

    Raises:
        ValueError: this is no protobuf.
    """
    end = os.fstat(file.fileno()).st_size
    while file.tell() < end:
        key = _varint(file)
        number, kind = key >> 3, key & 7
        if kind == _BYTES:
            size = _varint(file)
            start = file.tell()
            yield number, size
            file.seek(start + size)
        elif kind == _VARINT:
            _varint(file)
        elif kind in (_FIXED64, _FIXED32):
            file.seek(8 if kind == _FIXED64 else 4, os.SEEK_CUR)
        else:
            raise ValueError("no protobuf")


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("truncated")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("no varint")
