"""What the benchmark compares with: PyTorch, CuPy, CUB and a thread-a-row atomic kernel."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from nonzero_plugin.bench_measure import Bench, Memory, count_of
from nonzero_plugin.device import call
from nonzero_plugin.dtypes import DType


@dataclass(frozen=True)
class Problem:
    """An input on the device: ``dims`` items of ``dtype`` with ``num_nonzero`` set."""

    address: int
    dims: tuple[int, int]
    dtype: DType
    num_nonzero: int

    @property
    def items(self) -> int:
        """Product of the extents."""
        return self.dims[0] * self.dims[1]


def _same_count(what: str, count: int, problem: Problem) -> None:
    """A peer that finds another number of items is not doing the same work."""
    if count != problem.num_nonzero:
        raise RuntimeError(f"{what} finds {count} items of {problem}")


class Peers:
    """Every peer that can run here; ``missing`` says why the others cannot."""

    def __init__(self, bench: Bench, wanted: tuple[str, ...]) -> None:
        """Import and start building what was asked for."""
        self.bench = bench
        self.missing: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._modules: dict[str, Any] = {}
        for name in {"torch", "cupy"} & set(wanted):
            try:
                self._modules[name] = import_module(name)
                self.versions[name] = str(self._modules[name].__version__)
            except ImportError as err:
                self.missing[name] = str(err)
        self.atomic = "atomic" in wanted
        self._cub: ctypes.CDLL | None = None
        self._building: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory()
        if "cub" in wanted:
            self._start_cub()

    def _start_cub(self) -> None:
        nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
        if nvcc is None:
            self.missing["cub"] = "no nvcc"
            return
        folder = Path(self._folder.name)
        source = folder / "cub_select.cu"
        source.write_bytes((files("nonzero_plugin") / "kernels" / "cub_select.cu").read_bytes())
        command = [nvcc, "-O3", "-std=c++17", f"-arch={self.bench.target}", "--shared"]
        command += ["-Xcompiler", "-fPIC", "-o", str(folder / "cub_select.so"), str(source)]
        self._building = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finish(self) -> None:
        """Wait for what is being built."""
        if self._building is None:
            return
        output, _ = self._building.communicate()
        if self._building.returncode:
            self.missing["cub"] = f"nvcc: {(output.strip().splitlines() or ['failed'])[-1]}"
        else:
            self._cub = ctypes.CDLL(str(Path(self._folder.name) / "cub_select.so"))
        self._building = None

    def measure(self, problem: Problem) -> dict[str, float]:
        """Microseconds of each peer that takes this problem."""
        runs: dict[str, Callable[[Problem], float]] = {}
        if "torch" in self._modules:
            runs["torch"] = self._torch
        if "cupy" in self._modules:
            runs["cupy"] = self._cupy
        if self._cub and problem.dtype in (DType.BOOL, DType.FLOAT):
            runs["cub"] = self._cub_select
        if self.atomic and problem.dtype is DType.FLOAT and problem.items <= 1 << 24:
            runs["atomic"] = self._atomic_rows
        return {name: run(problem) for name, run in runs.items()}

    def _torch(self, problem: Problem) -> float:
        torch = self._modules["torch"]
        kind = {1: "|b1", 2: "<f2", 4: "<f4", 8: "<i8"}[problem.dtype.itemsize]

        class Input:
            __cuda_array_interface__ = {  # noqa: RUF012
                "shape": problem.dims,
                "typestr": kind,
                "data": (problem.address, False),
                "version": 2,
            }

        x = torch.as_tensor(Input(), device="cuda")
        _same_count("torch.nonzero", torch.nonzero(x).shape[0], problem)
        time_us = self.bench.call_us(lambda: torch.nonzero(x), stream=0)
        torch.cuda.empty_cache()
        return time_us

    def _cupy(self, problem: Problem) -> float:
        cupy = self._modules["cupy"]
        size = problem.items * problem.dtype.itemsize
        memory = cupy.cuda.UnownedMemory(problem.address, size, None)
        kind = {1: "?", 2: "e", 4: "f", 8: "q"}[problem.dtype.itemsize]
        x = cupy.ndarray(problem.dims, kind, cupy.cuda.MemoryPointer(memory, 0))
        _same_count("cupy.nonzero", cupy.nonzero(x)[0].size, problem)
        time_us = self.bench.call_us(lambda: cupy.nonzero(x), stream=0)
        cupy.get_default_memory_pool().free_all_blocks()
        return time_us

    def _cub_select(self, problem: Problem) -> float:
        assert self._cub
        select, bytes_needed = self._cub.cub_select, ctypes.c_size_t()

        def enqueue(out: int, count: int, storage: int) -> int:
            return int(
                select(
                    *(ctypes.c_void_p(problem.address), ctypes.c_int(problem.dtype.itemsize)),
                    *(ctypes.c_longlong(problem.items), ctypes.c_void_p(out)),
                    *(ctypes.c_void_p(count), ctypes.c_void_p(storage or None)),
                    *(ctypes.byref(bytes_needed), ctypes.c_void_p(self.bench.stream)),
                )
            )

        enqueue(0, 0, 0)
        with (
            Memory(8 * problem.num_nonzero) as out,
            Memory(8) as count,
            Memory(bytes_needed.value) as storage,
        ):
            time_us = self.bench.call_us(
                lambda: self._require(enqueue(out.address, count.address, storage.address))
            )
            _same_count("cub::DeviceSelect::If", count_of(count.address), problem)
            return time_us

    @staticmethod
    def _require(code: int) -> None:
        if code:
            raise RuntimeError(f"cub::DeviceSelect failed with {code}")

    def _atomic_rows(self, problem: Problem) -> float:
        function = self.bench.function("atomic_rows")
        with Memory(16 * problem.num_nonzero) as out, Memory(8) as count:
            arguments = (
                (problem.address, *problem.dims, out.address, count.address),
                (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, *[ctypes.c_void_p] * 2),
            )
            grid = -(-problem.dims[0] // 256)

            def enqueue() -> None:
                call(driver.cuMemsetD8Async, count.address, 0, 8, self.bench.stream)
                call(
                    driver.cuLaunchKernel,
                    *(function, grid, 1, 1, 256, 1, 1, 0, self.bench.stream, arguments, 0),
                )

            time_us = self.bench.call_us(enqueue, repeats=5)
            _same_count("the atomic kernel", count_of(count.address), problem)
            return time_us
