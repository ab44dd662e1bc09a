"""Choosing a backend: what is missing is named, and nothing is imported before it is needed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from nonzero_plugin import backends
from nonzero_plugin.backends import get_backend
from nonzero_plugin.contract import BACKENDS, NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import BackendUnavailableError, ContractError


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No backend is loaded yet, and what the tests load is forgotten again."""
    monkeypatch.setattr(backends, "_loaded", {})
    for name in (
        *(f"nonzero_plugin.backends.{name}" for name in BACKENDS),
        "nonzero_plugin.device",
    ):
        if name in sys.modules:
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        (
            "cuda_python",
            "cuda.bindings",
            r"needs the package cuda-python.*nonzero-rewrite\[cuda13\]",
        ),
        ("cupy", "cupy", r"needs the package cupy, .*nonzero-rewrite\[cuda13\]"),
        ("torch", "torch", r"needs the package torch, .*nonzero-rewrite\[torch\]"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, module: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendUnavailableError, match=message) as info:
        get_backend(name)
    assert isinstance(info.value.__cause__, ImportError)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ContractError, match="'cuda' is unknown; choose one of cuda_python, cupy"):
        get_backend("cuda")


def test_a_backend_is_made_once() -> None:
    assert get_backend("cuda_python") is get_backend("cuda_python")
    assert get_backend("cuda_python").name == "cuda_python"


def test_without_a_device_compiling_waits_and_preparing_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = get_backend("cuda_python")
    from cuda.bindings import driver

    def no_driver(flags: int) -> Any:
        raise RuntimeError("the driver library is not there")

    monkeypatch.setattr(driver, "cuInit", no_driver)
    backend.compile(DType.FLOAT, NonZeroConfig())
    with pytest.raises(
        BackendUnavailableError, match=r"no NVIDIA driver can be loaded \(the driver"
    ):
        backend.prepare((3, 4), DType.FLOAT, NonZeroConfig())


def test_a_driver_error_has_its_code_name_and_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    get_backend("cuda_python")
    from cuda.bindings import driver
    from nonzero_plugin.device import call
    from nonzero_plugin.errors import CudaError

    code = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    success = driver.CUresult.CUDA_SUCCESS
    monkeypatch.setattr(driver, "cuGetErrorName", lambda c: (success, c.name.encode()))
    monkeypatch.setattr(driver, "cuGetErrorString", lambda c: (success, b"out of memory"))

    def cuMemAlloc(size: int) -> tuple[Any, int]:
        return code, 0

    with pytest.raises(CudaError) as info:
        call(cuMemAlloc, 8)
    assert str(info.value) == ("cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY (2): out of memory")
    assert (info.value.api, info.value.code) == ("cuMemAlloc", 2)


def test_importing_the_pure_modules_imports_no_cuda_and_no_framework() -> None:
    code = (
        "import sys, nonzero_plugin, nonzero_plugin.backends, nonzero_plugin.launch\n"
        "import nonzero_plugin.dtypes, nonzero_plugin.compile, nonzero_plugin.bench\n"
        "heavy = {'cuda', 'cupy', 'torch', 'tensorrt', 'tensorrt_rtx', 'numpy', 'onnxruntime'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_benchmark_explains_itself_without_a_gpu() -> None:
    command = [sys.executable, "-m", "nonzero_plugin.bench", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--densities" in done.stdout and "memory floor" in done.stdout
