"""Picks ``tensorrt`` or ``tensorrt_rtx`` once and loads it so that its ONNX parser works.

The Linux wheel of TensorRT for RTX (1.7) has a trap: its parser opens ``libtensorrt_rtx.so``, a
name without version that the wheel does not hold, and aborts the process at the first plugin. Both
libraries carry the run path ``$ORIGIN``, so loading them from a private folder of symbolic links
that also has the unversioned name cures it; nothing in site-packages changes. Other platforms need
nothing: the Windows wheel holds the name its parser asks for.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from nonzero_plugin.errors import TensorRTUnavailableError

logger = logging.getLogger(__name__)

FLAVOURS = ("tensorrt", "tensorrt_rtx")
"""Modules that can build; ``auto`` tries them in this order."""

ENV_RTX = "POLYGRAPHY_USE_TENSORRT_RTX"
"""Polygraphy's switch, read in the same way: any value that is not 0 or empty."""

_INSTALL = {
    "tensorrt": "install TensorRT 10.3 or newer from NVIDIA's package index (pip install tensorrt)",
    "tensorrt_rtx": "pip install 'nonzero-rewrite[rtx]'",
}
_preloaded: set[str] = set()
_NEEDED = ("IPluginV3", "IPluginV3OneCore", "IPluginV3OneBuild", "IPluginV3OneRuntime")


def wants_rtx() -> bool:
    """Whether Polygraphy, and with it this package, is told to use TensorRT for RTX."""
    return os.environ.get(ENV_RTX, "0") not in ("", "0")


def choose_flavour(choice: str | None = None) -> str:
    """The name of the module to load.

    An explicit choice wins, then ``POLYGRAPHY_USE_TENSORRT_RTX``, then a module this process has
    already imported, then whichever is installed, TensorRT first.

    Raises:
        TensorRTUnavailableError: for an unknown choice, or when neither module is installed.
    """
    if choice not in (None, "auto"):
        if choice not in FLAVOURS:
            raise TensorRTUnavailableError(
                f"TensorRT flavour {choice!r} is unknown; choose one of auto, {', '.join(FLAVOURS)}"
            )
        return str(choice)
    if wants_rtx():
        return "tensorrt_rtx"
    for name in FLAVOURS:
        if name in sys.modules:
            return name
    for name in FLAVOURS:
        if importlib.util.find_spec(name) is not None:
            return name
    raise TensorRTUnavailableError(
        f"neither tensorrt nor tensorrt_rtx is installed: {_INSTALL['tensorrt_rtx']}, "
        f"or {_INSTALL['tensorrt']}"
    )


def load_tensorrt(choice: str | ModuleType | None = None) -> Any:
    """The TensorRT module, imported, with everything the plugin needs.

    Args:
        choice: a module of the TensorRT family (returned after a check), one of ``FLAVOURS``, or
            None or ``"auto"`` for :func:`choose_flavour`.

    Raises:
        TensorRTUnavailableError: the module is missing, cannot be loaded, or is older than the
            IPluginV3 interface (TensorRT 10.3, TensorRT for RTX 1.6).
    """
    if choice is not None and not isinstance(choice, str):
        if is_rtx(choice):
            prepare_rtx_libraries()
        return _with_plugin_v3(choice)
    name = choose_flavour(choice)
    try:
        if name == "tensorrt_rtx":
            prepare_rtx_libraries()
        module = importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise TensorRTUnavailableError(
            f"{name} cannot be imported ({error}); {_INSTALL[name]}"
        ) from error
    return _with_plugin_v3(module)


def flavour_of(module: Any) -> str:
    """``tensorrt``, ``tensorrt_rtx``, ``tensorrt_lean`` or ``tensorrt_dispatch``."""
    return str(module.__name__).partition(".")[0].removesuffix("_bindings")


def is_rtx(module: Any) -> bool:
    """True for TensorRT for RTX, whose bindings lack some of TensorRT's calls."""
    return flavour_of(module) == "tensorrt_rtx"


def version_tuple(module: Any) -> tuple[int, ...]:
    """``(10, 6, 0)`` for ``"10.6.0.post1"``; parts that are no numbers end it."""
    parts: list[int] = []
    for part in str(getattr(module, "__version__", "0")).split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


def _with_plugin_v3(module: Any) -> Any:
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    if missing:
        raise TensorRTUnavailableError(
            f"{module.__name__} {getattr(module, '__version__', '(unknown version)')} has no "
            f"{missing[0]}: an output whose size depends on data needs the IPluginV3 interface, "
            "so TensorRT 10.3 or newer, or TensorRT for RTX 1.6 or newer"
        )
    return module


def prepare_rtx_libraries() -> Path | None:
    """Loads TensorRT for RTX's libraries from a folder that has the name its parser opens.

    Safe among threads and processes, repeatable, and without effect where it is not needed: other
    platforms, a wheel that holds the unversioned name, libraries that do not come from a wheel.

    Returns:
        The private folder of links, or None where nothing had to be done.
    """
    if not sys.platform.startswith("linux"):
        return None
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    if spec is None or not spec.submodule_search_locations:
        return None
    libs = Path(next(iter(spec.submodule_search_locations)))
    core = sorted(libs.glob("libtensorrt_rtx.so.*"))
    if not core or (libs / "libtensorrt_rtx.so").exists():
        return None
    links = {path.name: path for path in sorted(libs.glob("*.so*"))}
    links["libtensorrt_rtx.so"] = core[0]
    folder = _link_folder(libs, links)
    if "tensorrt_rtx" in sys.modules and not _finds_unversioned_name(folder):
        logger.warning(
            "tensorrt_rtx was imported before nonzero_plugin could load its libraries: its ONNX "
            "parser opens libtensorrt_rtx.so, which the wheel lacks, and ends the process at the "
            "first plugin; call nonzero_plugin.register() before importing tensorrt_rtx, or start "
            "with LD_LIBRARY_PATH=%s",
            folder,
        )
        return folder
    for name in sorted(links, key=lambda name: ("parser" in name, name)):
        if name != "libtensorrt_rtx.so":
            ctypes.CDLL(str(folder / name))
    _preloaded.add(str(folder))
    return folder


def _link_folder(libs: Path, links: dict[str, Path]) -> Path:
    key = hashlib.sha256(os.fsencode(libs)).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "nonzero-rewrite" / f"tensorrt-rtx-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_links(folder, links.items())
    except OSError:  # no writable home: a folder for this process alone
        folder = Path(tempfile.mkdtemp(prefix="nonzero-rewrite-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _make_links(folder, links.items())
    return folder


def _make_links(folder: Path, links: Iterable[tuple[str, Path]]) -> None:
    for name, target in links:
        link = folder / name
        if link.is_symlink() and link.readlink() == target:
            continue
        temporary = folder / f".{name}.{uuid.uuid4().hex}"
        temporary.symlink_to(target)
        temporary.replace(link)  # another process may have made the same link by now: equal


def _finds_unversioned_name(folder: Path) -> bool:
    """True when the parser will find it: loaded from ``folder`` before, or on the library path."""
    if str(folder) in _preloaded:
        return True
    try:
        ctypes.CDLL("libtensorrt_rtx.so")
    except OSError:
        return False
    return True
