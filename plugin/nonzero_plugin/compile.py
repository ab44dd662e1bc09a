"""``kernels/nonzero.cu`` + architecture + defines -> machine code, through NVRTC; needs no GPU."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from nonzero_plugin.errors import BackendUnavailableError, KernelCompileError
from nonzero_plugin.kernel_cache import cache_folder, read_entry, write_entry

SOURCE_NAME = "nonzero.cu"
OLDEST_CAPABILITY = 75
"""Turing, the oldest that TensorRT 10 runs on."""
_SCHEMA = 2
"""Counts up when an entry's layout or the options below change meaning."""

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
            image = read_entry(folder, key) if folder else None
            if image is None:
                image = _compile(target, options)
                if folder:
                    write_entry(folder, key, image)
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
