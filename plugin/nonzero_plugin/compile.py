"""``kernels/nonzero.cu`` + architecture + defines -> machine code, through NVRTC; needs no GPU.

Results are kept in a folder that all processes of one user share. An entry's name is the digest of
everything the result depends on, its content carries its own digest, and it is written under a
temporary name and renamed: an entry that cannot be read back whole is compiled again.
``NONZERO_REWRITE_CACHE_DIR`` moves the folder; set to nothing or ``0`` it disables it.

Machine code is run unseen, so a folder is used only when no other user can write to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import logging
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from nonzero_plugin.errors import BackendUnavailableError, KernelCompileError

CACHE_VARIABLE = "NONZERO_REWRITE_CACHE_DIR"
SOURCE_NAME = "nonzero.cu"
OLDEST_CAPABILITY = 75
"""Turing, the oldest that TensorRT 10 runs on."""
_SCHEMA = 2
"""Counts up when an entry's layout or the options below change meaning."""
_MAGIC = b"nonzero-cubin\n"
_DIGEST_BYTES = hashlib.sha256().digest_size

log = logging.getLogger(__name__)
_compiled: dict[str, bytes] = {}
_lock = threading.Lock()


@cache
def kernel_source() -> bytes:
    """The kernel file, from a folder, an editable install or a zipped wheel alike."""
    return (files("nonzero_plugin") / "kernels" / SOURCE_NAME).read_bytes()


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        _preload_nvrtc()
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as err:  # the loader of the library raises RuntimeErrors
        raise BackendUnavailableError(
            f"the kernel needs NVRTC through the package cuda-python ({err}); "
            "install it with: pip install 'nonzero-rewrite[cuda13]' (CUDA 12: [cuda12])"
        ) from err
    return nvrtc


@cache
def _preload_nvrtc() -> None:
    """Load NVRTC from NVIDIA's wheel for a cuda-python that does not look there by itself.

    Versions without ``cuda.pathfinder`` (12.6) ask the system's loader once, by name, and never
    again; a library that is loaded already is found by its name.
    """
    if importlib.util.find_spec("cuda.pathfinder"):
        return
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ImportError:
        return
    pattern = "bin/nvrtc64_*.dll" if sys.platform == "win32" else "lib/libnvrtc.so.*"
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in sorted(Path(folder).glob(pattern)):
            if ".alt." not in library.name:
                try:
                    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
                except OSError as err:
                    log.info("%s cannot be loaded: %s", library, err)


def _checked(result: tuple[Any, ...], nvrtc: Any, what: str) -> Any:
    if int(result[0]) != 0:
        _, text = nvrtc.nvrtcGetErrorString(result[0])
        name = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise KernelCompileError(f"{what} failed with {name}")
    return result[1] if len(result) == 2 else result[1:]


def nvrtc_version() -> tuple[int, int]:
    """Major and minor version of the NVRTC in use.

    Raises:
        BackendUnavailableError: when NVRTC cannot be loaded.
    """
    nvrtc = _nvrtc()
    major, minor = _checked(nvrtc.nvrtcVersion(), nvrtc, "nvrtcVersion")
    return int(major), int(minor)


def supported_architectures() -> tuple[int, ...]:
    """The compute capabilities from 7.5 up NVRTC makes machine code for: 75, 80, ... ascending.

    Raises:
        BackendUnavailableError: when NVRTC cannot be loaded.
    """
    nvrtc = _nvrtc()
    known = sorted(int(arch) for arch in _checked(nvrtc.nvrtcGetSupportedArchs(), nvrtc, "nvrtc"))
    return tuple(arch for arch in known if arch >= OLDEST_CAPABILITY)


def target_for(capability: int) -> str:
    """The ``--gpu-architecture`` for a device of that compute capability (90 for 9.0).

    Machine code where NVRTC knows the device, else PTX of the newest older architecture, which the
    driver compiles while it loads.

    Raises:
        KernelCompileError: for a device older than NVRTC supports.
    """
    known = supported_architectures()
    if capability in known:
        return f"sm_{capability}"
    older = [arch for arch in known if arch < capability]
    if not older:
        version = ".".join(map(str, nvrtc_version()))
        remedy = (
            "the plugin runs on 7.5 and up, as TensorRT 10 does"
            if capability < OLDEST_CAPABILITY
            else "install an older NVRTC (nonzero-rewrite[cuda12])"
        )
        raise KernelCompileError(
            f"NVRTC {version} compiles the kernel for compute capability {known[0] / 10} and up, "
            f"this device has {capability / 10}; {remedy}"
        )
    return f"compute_{older[-1]}"


def compile_kernel(target: str, defines: Mapping[str, int]) -> bytes:
    """Machine code (``sm_*`` targets) or PTX (``compute_*``) of the kernel file.

    Looks in this process, then in the cache folder, then compiles (about half a second).

    Raises:
        BackendUnavailableError: when NVRTC cannot be loaded.
        KernelCompileError: when it refuses the source; carries the options and the whole log.
    """
    options = (
        f"--gpu-architecture={target}",
        "--std=c++17",
        *(f"-D{name}={value}" for name, value in sorted(defines.items())),
    )
    key = _key(options)
    with _lock:
        if key not in _compiled:
            folder = cache_folder()
            image = _read_entry(folder, key) if folder else None
            if image is None:
                image = _compile(target, options)
                if folder:
                    _write_entry(folder, key, image)
            _compiled[key] = image
        return _compiled[key]


def _key(options: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in (str(_SCHEMA), str(nvrtc_version()), *options):
        digest.update(part.encode() + b"\0")
    digest.update(kernel_source())
    return digest.hexdigest()


def _compile(target: str, options: tuple[str, ...]) -> bytes:
    return compile_source(kernel_source(), SOURCE_NAME, target, options)


def compile_source(source: bytes, name: str, target: str, options: tuple[str, ...]) -> bytes:
    """Machine code or PTX of any source, not cached; ``name`` is what messages call it.

    Raises:
        BackendUnavailableError: when NVRTC cannot be loaded.
        KernelCompileError: when it refuses the source.
    """
    nvrtc = _nvrtc()
    program = _checked(
        nvrtc.nvrtcCreateProgram(source, name.encode(), 0, [], []), nvrtc, "nvrtcCreateProgram"
    )
    try:
        result = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        if int(result[0]) != 0:
            size = _checked(nvrtc.nvrtcGetProgramLogSize(program), nvrtc, "nvrtc")
            text = b" " * size
            nvrtc.nvrtcGetProgramLog(program, text)
            message = text.rstrip(b"\0 ").decode(errors="replace")
            raise KernelCompileError(
                f"NVRTC cannot compile {name} for {target}: "
                f"{message.splitlines()[0] if message else result[0]}",
                options=options,
                log=message,
            )
        binary = target.startswith("sm_")
        get_size = nvrtc.nvrtcGetCUBINSize if binary else nvrtc.nvrtcGetPTXSize
        get_image = nvrtc.nvrtcGetCUBIN if binary else nvrtc.nvrtcGetPTX
        image = b" " * int(_checked(get_size(program), nvrtc, "nvrtc"))
        get_image(program, image)
        return image
    finally:
        nvrtc.nvrtcDestroyProgram(program)


# ---- the folder ---------------------------------------------------------------------------------


def cache_folder() -> Path | None:
    """The folder of compiled kernels, made if missing; None where it is disabled or not usable.

    A folder that belongs to somebody else, or that others can write to, is not used: a warning
    says so and the kernel is compiled in each process instead.
    """
    setting = os.environ.get(CACHE_VARIABLE)
    if setting in ("", "0"):
        return None
    folder = Path(setting).expanduser() if setting else _default_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        distrust = _why_not_trusted(folder)
    except (OSError, RuntimeError) as err:
        distrust = str(err)
    if distrust:
        log.warning(
            "compiled kernels are not kept in %s: %s; set %s to a folder of your own, or to 0",
            folder,
            distrust,
            CACHE_VARIABLE,
        )
        return None
    return folder


def _default_folder() -> Path:
    if sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "nonzero-rewrite" / "kernels"


def _why_not_trusted(path: Path) -> str | None:
    """Why somebody else could have put machine code there; None when nobody could.

    Windows folders inherit the profile's access list, which keeps other users out.
    """
    if sys.platform == "win32":
        return None
    status = path.stat()
    if status.st_uid != os.geteuid():
        return f"{path} belongs to user {status.st_uid}, not to this one"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users can write to {path}"
    return None


def _read_entry(folder: Path, key: str) -> bytes | None:
    path = folder / key
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or _why_not_trusted(path):
            return None  # a link or a pipe is none that we wrote
        content = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST_BYTES
    image = content[start:]
    if content[:start] != _MAGIC + _digest(key, image):
        log.info("kernel cache entry %s is damaged; compiling again", path)
        return None
    return image


def _digest(key: str, image: bytes) -> bytes:
    """Of an entry: under another key the same image is damaged."""
    return hashlib.sha256(key.encode() + b"\0" + image).digest()


def _write_entry(folder: Path, key: str, image: bytes) -> None:
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{key[:16]}-", dir=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + _digest(key, image) + image)
        Path(temporary).replace(folder / key)
    except OSError as err:  # a full disk or a read-only folder costs a compile, not the engine
        log.info("kernel cache entry cannot be written to %s: %s", folder, err)
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
