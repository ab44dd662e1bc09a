"""One place decides what cannot run here, from narrow probes.

``NONZERO_REQUIRE=gpu,rtx`` turns the skips of those markers into failures, so that a run that was
meant to use them cannot be green by skipping.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a machine with only the GPU tests' needs
    settings = None  # type: ignore[assignment, misc]

if settings is not None:
    settings.register_profile(
        "ci",
        derandomize=True,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("ci")


def _gpu_missing() -> str | None:
    """Ask the CUDA driver itself, so that no Python package decides."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return "no CUDA driver"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "no CUDA device"
    return None


def _rtx_missing() -> str | None:
    return None if importlib.util.find_spec("tensorrt_rtx") else "tensorrt_rtx is not installed"


PROBES: dict[str, Callable[[], str | None]] = {"gpu": _gpu_missing, "rtx": _rtx_missing}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    required = {name for name in os.environ.get("NONZERO_REQUIRE", "").split(",") if name}
    if unknown := required - PROBES.keys():
        raise pytest.UsageError(f"NONZERO_REQUIRE names unknown markers: {sorted(unknown)}")
    missing = {name: probe() for name, probe in PROBES.items()}
    for name in required:
        if missing[name]:
            raise pytest.UsageError(f"NONZERO_REQUIRE={name}, but {missing[name]}")
    for item in items:
        for name, reason in missing.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))
