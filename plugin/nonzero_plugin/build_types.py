"""What a build is asked, tells while it goes on, and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nonzero_plugin.contract import DEFAULT_BACKEND


@dataclass(frozen=True)
class BuildOptions:
    """How to build. Everything has the TensorRT default unless said here.

    Attributes:
        trt: ``auto``, ``tensorrt`` or ``tensorrt_rtx``.
        profiles: one text per optimization profile, as :mod:`nonzero_plugin.profiles` reads it.
        workspace: limit of TensorRT's workspace pool in bytes.
        timing_cache: file read before and written after the build.
        optimization_level: TensorRT's 0 to 5.
        version_compatible: TensorRT only.
        hardware_compatible: TensorRT only, Ampere and newer.
        compute_capabilities: TensorRT for RTX only, such as ``"8.9"``, or ``"current"``.
        fp16: weakly typed FP16, TensorRT 10 only.
        bf16: weakly typed BF16, TensorRT 10 only.
        max_nonzero: node name (``"*"``: all others) to the promised most non-zero elements.
        unpatched: serve ONNX NonZero nodes, TensorRT for RTX only.
        leftovers: ONNX NonZero nodes that the rewriter left at the top level; TensorRT for RTX
            serves them as with ``unpatched``, TensorRT has its own NonZero for them.
        backend: backend of those unpatched nodes.
        original: the model before rewriting, recorded in the sidecar.
        command: the command line recorded in the sidecar.
        verbose: pass on everything TensorRT logs, as events of kind ``log``.
    """

    trt: str = "auto"
    profiles: tuple[str, ...] = ()
    workspace: int | None = None
    timing_cache: Path | None = None
    optimization_level: int | None = None
    version_compatible: bool = False
    hardware_compatible: bool = False
    compute_capabilities: tuple[str, ...] = ()
    fp16: bool = False
    bf16: bool = False
    max_nonzero: Mapping[str, int] = field(default_factory=dict)
    unpatched: bool = False
    leftovers: int = 0
    backend: str = DEFAULT_BACKEND
    original: Path | None = None
    command: str = ""
    verbose: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = asdict(self)
        for name in ("timing_cache", "original"):
            values[name] = None if values[name] is None else str(values[name])
        return values

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> BuildOptions:
        """The inverse of :meth:`to_dict`."""
        known = dict(values)
        for name in ("profiles", "compute_capabilities"):
            known[name] = tuple(known[name])
        for name in ("timing_cache", "original"):
            known[name] = None if known[name] is None else Path(known[name])
        return BuildOptions(**known)


@dataclass(frozen=True)
class BuildEvent:
    """Something to show while TensorRT works: ``kind`` is stage, progress, note or log.

    ``data`` holds, for progress, ``phase``, ``parent``, ``step``, ``steps``, ``done``; for log,
    ``severity`` and ``text``; for note, ``text``; for stage, ``name``.
    """

    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class BuildResult:
    """A built engine, what it is for, and what was assumed (``notes``)."""

    engine: Path
    sidecar: Path
    flavour: str
    version: str
    engine_bytes: int
    profiles: tuple[str, ...]
    compute_capabilities: tuple[str, ...]
    plugin_nodes: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = asdict(self)
        values["engine"], values["sidecar"] = str(self.engine), str(self.sidecar)
        return values
