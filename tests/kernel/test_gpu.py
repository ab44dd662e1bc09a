"""The kernel on a real GPU against numpy.nonzero. Run: NONZERO_REQUIRE=gpu pytest -m gpu"""

from __future__ import annotations

import importlib.util
import math
import os
import threading
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers.gpu import GUARD, POISON, Device, Problem, call, draw, expected, run
from nonzero_plugin import launch, tiles
from nonzero_plugin.backends import get_backend
from nonzero_plugin.contract import NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import ContractError

pytestmark = pytest.mark.gpu

PACKAGES = {"cuda_python": "cuda", "cupy": "cupy", "torch": "torch"}
BACKENDS = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package)]
OURS = [name for name in BACKENDS if name != "torch"]  # those that run our kernel
PERMS = ((0, 1), (1, 0))
TYPES = [
    DType.BOOL,
    DType.UINT8,
    DType.INT8,
    DType.FLOAT8E4M3FN,
    DType.FLOAT8E5M2,
    DType.FLOAT16,
    DType.BFLOAT16,
    DType.INT32,
    DType.FLOAT,
    DType.INT64,
    DType.DOUBLE,
]
BORDERS = sorted(
    {
        size + more
        for size in (1, 32, 1024, 2048, 8192, 16384, 32768, 65536, 131072, 262144)
        for more in (-1, 0, 1)
    }
)

SPIN = b"""
extern "C" __global__ void spin(long long nanoseconds)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - start < (unsigned long long)nanoseconds);
}
"""


@pytest.fixture(scope="module")
def device() -> Device:
    return Device()


def few_blocks(setattr: Callable[[Any, str, Any], None]) -> None:
    """Let three blocks take what thousands would, so that each takes several bursts and turns."""

    def bursts(items: int, dtype: DType, *_: int) -> tuple[int, int, int]:
        return 3, 4, tiles.step_spans(dtype)

    setattr(launch, "bursts", bursts)
    setattr(launch, "_write_blocks", lambda spans, processors: min(3, spans // 8))
    setattr(launch, "STREAM_FROM_BYTES", 0)
    setattr(launch, "STREAM_FROM_ITEMS", 0)


@pytest.fixture(params=["as shipped", "small tiles", "large tiles", "bursts", "wide, bursts"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Send inputs of any size down each of the kernel's paths."""
    name: str = request.param
    if name != "as shipped":
        monkeypatch.setattr(launch, "SMALL_SPANS", 0)
        monkeypatch.setattr(launch, "LARGE_FROM_BYTES", 1 << 60 if name == "small tiles" else 0)
        monkeypatch.setattr(launch, "_WIDE_FROM_ITEMS", 0 if "wide" in name else 1 << 60)
    if "bursts" in name:
        few_blocks(monkeypatch.setattr)
    return name


class Hog:
    """Holds every multiprocessor for a while."""

    def __init__(self, device: Device) -> None:
        from nonzero_plugin.compile import compile_source, target_for
        from nonzero_plugin.device import compute_capability, current_context, device_attribute

        self.driver = device.driver
        context_device = call(self.driver.cuCtxGetDevice)
        assert current_context()
        self.processors = device_attribute("MULTIPROCESSOR_COUNT", context_device)
        target = target_for(compute_capability(context_device))
        options = (f"--gpu-architecture={target}",)
        image = compile_source(SPIN, "spin.cu", target, options)
        self.module = call(self.driver.cuModuleLoadData, image)
        self.function = call(self.driver.cuModuleGetFunction, self.module, b"spin")

    def __call__(self, stream: int, milliseconds: float, blocks_each: int = 2) -> None:
        import ctypes

        arguments = ((int(milliseconds * 1e6),), (ctypes.c_longlong,))
        grid = self.processors * blocks_each
        call(
            self.driver.cuLaunchKernel,
            *(self.function, grid, 1, 1, 1024, 1, 1, 0, stream, arguments, 0),
        )


# ---- exactness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_sizes_around_every_border(device: Device, dtype: DType, path: str) -> None:
    rng = np.random.default_rng(1)
    for items, perm, density in product(BORDERS, PERMS, (0, 0.02, 0.5, 1)):
        if not items or (path != "as shipped" and items > 140_000 and density != 0.5):
            continue
        words = draw(rng, dtype, items, density)
        run(device, "cuda_python", words, (1, items), dtype, NonZeroConfig(perm=perm))


@pytest.mark.parametrize("dims", [(70_001,), (7, 11, 13, 17), (3, 5, 2, 7, 11, 13), (2,) * 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_type_in_both_layouts_and_index_types(
    device: Device, backend: str, dims: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(2)
    for dtype, perm, index in product(DType, PERMS, (6, 7)):
        words = draw(rng, dtype, math.prod(dims), 0.3)
        run(device, backend, words, dims, dtype, NonZeroConfig(backend, perm, index))


def test_every_rank(device: Device, path: str) -> None:
    rng = np.random.default_rng(3)
    shapes = [(40_000,), (200, 201), (3, 111, 123), (12, 13, 15, 17), (7, 6, 9, 8, 14)]
    shapes += [(5, 6, 7, 5, 6, 7), (4, 5, 4, 5, 4, 5, 7), (3, 4, 3, 4, 3, 4, 5, 6)]
    shapes += [(1, 1, 40_001), (40_001, 1), (1, 40_001, 1, 1), (2, 1) * 4]
    for dims, perm, density in product(shapes, PERMS, (0.01, 0.2, 0.9)):
        for dtype in (DType.BOOL, DType.FLOAT16, DType.FLOAT, DType.INT64):
            words = draw(rng, dtype, math.prod(dims), density)
            run(device, "cuda_python", words, dims, dtype, NonZeroConfig(perm=perm))


@pytest.mark.parametrize("dtype", [DType.BOOL, DType.FLOAT])
def test_dense_parts_of_sparse_masks(device: Device, dtype: DType, path: str) -> None:
    """Masks in which what is written together is far from the average."""
    items, rng = 450_000, np.random.default_rng(4)
    for perm, few, run_length, period in product(
        PERMS, (0, 0.01), (1000, 9000, 30_000, 300_000), (items, 65_536, 3000)
    ):
        words = draw(rng, dtype, items, few)
        ones = draw(rng, dtype, items, 1)
        inside = (np.arange(items) + items - 100_001) % period < min(run_length, period * 2 // 3)
        if period < items:
            inside &= np.arange(items) < 2 * run_length
        words[inside] = ones[inside]
        run(device, "cuda_python", words, (items // 10, 10), dtype, NonZeroConfig(perm=perm))


@pytest.mark.parametrize("dtype", [DType.BOOL, DType.FLOAT16, DType.FLOAT, DType.INT64])
def test_inputs_that_start_anywhere(device: Device, dtype: DType, path: str) -> None:
    rng = np.random.default_rng(5)
    for shift, items, perm in product(range(17), (5, 1024, 8200, 40_001), PERMS):
        words = draw(rng, dtype, items, 0.3)
        config = NonZeroConfig(perm=perm)
        run(device, "cuda_python", words, (items, 1), dtype, config, shift=shift)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dims", [(0,), (0, 4), (3, 0, 2), (1, 1, 0)])
def test_no_items_make_a_count_of_zero(device: Device, backend: str, dims: tuple[int, ...]) -> None:
    for perm in PERMS:
        run(device, backend, np.zeros(0, "u4"), dims, DType.FLOAT, NonZeroConfig(backend, perm))


@pytest.mark.parametrize("backend", BACKENDS)
def test_max_nonzero_keeps_the_first_rows_and_says_so(device: Device, backend: str) -> None:
    rng = np.random.default_rng(6)
    for items, most, perm in product((100, 40_000, 300_000), (1, 99, 1000, 20_000), PERMS):
        for density in (0, 0.01, 0.5, 1):
            words = draw(rng, DType.FLOAT, items, density)
            config = NonZeroConfig(backend, perm, 7, most)
            run(device, backend, words, (10, items // 10), DType.FLOAT, config)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8E4M3FN])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_bit_pattern(device: Device, backend: str, dtype: DType) -> None:
    words = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
    run(device, backend, words, (words.size,), dtype, NonZeroConfig(backend))


def random_case(rng: np.random.Generator) -> tuple[Any, ...]:
    """A shape of up to about 100,000 items, its words, settings and shift."""
    dtype = list(DType)[rng.integers(len(DType))]
    rank = int(rng.integers(1, 9))
    items = int(2 ** rng.uniform(0, 16.6))
    dims = []
    for _ in range(rank - 1):
        extent = int(rng.integers(1, max(2, int(items ** (1 / rank)) * 2)))
        dims.append(extent)
        items = max(1, items // extent)
    dims.insert(int(rng.integers(rank)), items)
    density = float(rng.choice([0, 1, rng.random(), rng.random() ** 4]))
    config = NonZeroConfig(
        perm=PERMS[rng.integers(2)],
        index_type=int(rng.integers(6, 8)),
        max_nonzero=None if rng.random() < 0.8 else int(2 ** rng.uniform(0, 17)),
    )
    return draw(rng, dtype, math.prod(dims), density), tuple(dims), dtype, config


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_shapes_types_and_settings(
    device: Device, backend: str, record_property: Callable[[str, object], None]
) -> None:
    cases = 20_000 if backend == "cuda_python" else 1500
    seed = int(os.environ.get("NONZERO_SEED", np.random.SeedSequence().entropy % 2**32))
    print(f"NONZERO_SEED={seed} cases={cases}")
    record_property("seed", seed)
    rng = np.random.default_rng(seed)
    stream = device.stream()
    for number in range(cases):
        words, dims, dtype, config = random_case(rng)
        try:
            shift = int(rng.integers(0, 20))
            run(device, backend, words, dims, dtype, config, shift=shift, stream=stream)
        except AssertionError as err:
            raise AssertionError(f"case {number} of NONZERO_SEED={seed}: {err}") from err


# ---- sizes past 32 bits -------------------------------------------------------------------------


def free_memory(device: Device) -> int:
    return int(call(device.driver.cuMemGetInfo)[0])


@pytest.mark.slow
@pytest.mark.parametrize("dims", [(2**31 + 77,), (2**16, 2**16), (2**32 + 5,), (5, 858_993_460)])
@pytest.mark.parametrize("perm", PERMS)
def test_few_among_more_than_2_to_the_31(
    device: Device, dims: tuple[int, ...], perm: tuple[int, int]
) -> None:
    items = math.prod(dims)
    rng = np.random.default_rng(7)
    marked = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, items - 1]
    flat = np.unique([*rng.integers(0, items, 100_000), *(m for m in marked if m < items)])
    config = NonZeroConfig(perm=perm)
    want = np.stack(np.unravel_index(flat, dims))
    want = np.ascontiguousarray(want.T if config.rank_last else want)
    workspace = launch.workspace_bytes(dims, DType.BOOL, config)
    sizes = (items + GUARD, want.nbytes + GUARD, 8 + GUARD, workspace + GUARD)
    if free_memory(device) < sum(sizes) + 2**28:
        pytest.skip("the device has too little memory")
    host = np.zeros(items, np.uint8)
    host[flat] = 1
    with device.memory(*sizes) as addresses:
        for address, size in zip(addresses, sizes, strict=True):
            device.poison(address, size)
        device.upload(addresses[0], host)
        prepared = get_backend("cuda_python").prepare(dims, DType.BOOL, config)
        prepared(*addresses, 0)
        device.synchronize()
        rows = device.download(addresses[1], sizes[1])
        assert int(device.download(addresses[2], 8).view(np.int64)[0]) == flat.size
        assert np.array_equal(rows[: want.nbytes].view(np.int64).reshape(want.shape), want)
        assert (rows[want.nbytes :] == POISON).all()
        assert (device.download(addresses[3] + workspace, GUARD) == POISON).all()


@pytest.mark.slow
def test_more_than_2_to_the_32_rows(device: Device) -> None:
    items = 2**32 + 5
    config = NonZeroConfig()
    workspace = launch.workspace_bytes((items,), DType.BOOL, config)
    sizes = (items, 8 * items + GUARD, 8, workspace)
    if free_memory(device) < sum(sizes) + 2**28:
        pytest.skip("the device has too little memory")
    with device.memory(*sizes) as addresses:
        call(device.driver.cuMemsetD8, addresses[0], 1, items)
        device.poison(addresses[1], sizes[1])
        get_backend("cuda_python").prepare((items,), DType.BOOL, config)(*addresses, 0)
        device.synchronize()
        assert int(device.download(addresses[2], 8).view(np.int64)[0]) == items
        for start in (0, 2**31 - 500, 2**32 - 999, items - 1000):
            got = device.download(addresses[1] + 8 * start, 8000).view(np.int64)
            assert np.array_equal(got, np.arange(start, start + 1000))
        assert (device.download(addresses[1] + 8 * items, GUARD) == POISON).all()


# ---- streams, contexts, graphs ------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("perm", PERMS)
def test_equal_inputs_give_equal_bytes_run_after_run(
    device: Device, backend: str, perm: tuple[int, int]
) -> None:
    words = draw(np.random.default_rng(8), DType.FLOAT, 3_000_000, 0.2)
    problem = Problem(
        device,
        words,
        (3000, 1000),
        DType.FLOAT,
        NonZeroConfig(backend, perm),
        to_the_bound=backend == "torch",
    )
    prepared = problem.prepare(backend)
    for _ in range(100 if backend != "torch" else 10):
        problem.poison()
        problem.enqueue(prepared, 0)
        device.synchronize()
        problem.check()
    problem.free()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_enqueue_only_launches(device: Device, backend: str) -> None:
    """The host is back while the stream is still held up by work before the enqueue."""
    hog, stream = Hog(device), device.stream()
    for perm, items in product(PERMS, (1000, 4_000_000)):
        words = draw(np.random.default_rng(9), DType.FLOAT, items, 0.1)
        problem = Problem(
            device,
            words,
            (items // 100, 100),
            DType.FLOAT,
            NonZeroConfig(backend, perm),
            to_the_bound=backend == "torch",
        )
        prepared = problem.prepare(backend)
        problem.enqueue(prepared, stream)  # once, so that PyTorch's allocator has its memory
        device.synchronize(stream)
        hog(stream, 200)
        problem.enqueue(prepared, stream)
        (state,) = device.driver.cuStreamQuery(stream)
        assert state == device.driver.CUresult.CUDA_ERROR_NOT_READY
        device.synchronize(stream)
        problem.check()
        problem.free()


@pytest.mark.parametrize("backend", OURS)
def test_many_enqueues_on_many_streams_while_another_kernel_holds_the_gpu(
    device: Device, backend: str
) -> None:
    rng = np.random.default_rng(10)
    hog, hog_stream = Hog(device), device.stream()
    problems = []
    for number in range(8):
        items = int(rng.integers(200_000, 3_000_000))
        dtype = [DType.BOOL, DType.FLOAT16, DType.FLOAT, DType.INT64][number % 4]
        words = draw(rng, dtype, items * 2, float(rng.random()))
        config = NonZeroConfig(backend, PERMS[number // 4])
        problems.append(Problem(device, words, (items, 2), dtype, config))
    prepared = [problem.prepare(backend) for problem in problems]
    streams = [device.stream() for _ in problems]
    for turn in range(400):
        if turn % 50 == 0:
            hog(hog_stream, 3, blocks_each=1 + turn % 2)
        for problem, ready, stream in zip(problems, prepared, streams, strict=True):
            problem.enqueue(ready, stream)
        if turn % 100 == 99:
            device.synchronize()
            for problem in problems:
                problem.check()
                problem.poison()
    for problem in problems:
        problem.free()


def new_context(driver: Any, device: Any) -> Any:
    try:
        return call(driver.cuCtxCreate, None, 0, device)  # CUDA 13
    except TypeError:
        return call(driver.cuCtxCreate, 0, device)


def test_contexts_and_threads_have_kernels_of_their_own(device: Device) -> None:
    driver = device.driver
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            context = new_context(driver, call(driver.cuDeviceGet, 0))
            mine = Device()
            stream = mine.stream()
            words = draw(np.random.default_rng(seed), DType.FLOAT, 500_000, 0.3)
            config = NonZeroConfig(perm=PERMS[seed % 2])
            problem = Problem(mine, words, (500, 1000), DType.FLOAT, config)
            prepared = problem.prepare("cuda_python")
            for _ in range(50):
                problem.poison()
                for _ in range(10):
                    problem.enqueue(prepared, stream)
                mine.synchronize(stream)
                problem.check()
            problem.free()
            call(driver.cuCtxDestroy, context)
        except BaseException as err:
            failures.append(err)

    for _ in range(2):  # contexts that come where others have gone
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures
    run(device, "cuda_python", np.ones(9, "u4"), (3, 3), DType.INT32, NonZeroConfig())


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("items", [1, 20_000, 1_000_000, 4_000_000])
@pytest.mark.parametrize("perm", PERMS)
def test_a_captured_enqueue_replays_on_other_data(
    device: Device, backend: str, items: int, perm: tuple[int, int]
) -> None:
    driver, rng, stream = device.driver, np.random.default_rng(11), device.stream()
    config = NonZeroConfig(backend, perm, 7, max(1, items // 3))
    full = draw(rng, DType.FLOAT, items, 1)
    problem = Problem(device, full, (1, items), DType.FLOAT, config)
    prepared = problem.prepare(backend)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    call(driver.cuStreamBeginCapture, stream, mode)
    problem.enqueue(prepared, stream)
    graph = call(driver.cuStreamEndCapture, stream)
    executable = call(driver.cuGraphInstantiate, graph, 0)
    assert not prepared.overflowed()
    for density in (1, 0.1, 0, 0.5):
        words = draw(rng, DType.FLOAT, items, density)
        rows = expected(words, (1, items), DType.FLOAT, config)
        if rows.size < problem.want.size or density == 1:
            problem.replace_input(words)
        problem.poison()
        for _ in range(5):
            call(driver.cuGraphLaunch, executable, stream)
        device.synchronize(stream)
        problem.check()
        nonzero = int(np.count_nonzero(problem.words & np.uint32(0x7FFFFFFF)))
        assert prepared.overflowed() == (nonzero > config.max_nonzero < items)
    call(driver.cuGraphExecDestroy, executable)
    call(driver.cuGraphDestroy, graph)
    problem.free()


@pytest.mark.parametrize("backend", OURS)
def test_hardly_any_memory_left(device: Device, backend: str) -> None:
    held = []
    words = draw(np.random.default_rng(12), DType.FLOAT, 2_000_000, 0.5)
    problem = Problem(device, words, (2000, 1000), DType.FLOAT, NonZeroConfig(backend))
    prepared = problem.prepare(backend)
    try:
        size = free_memory(device)
        while size > 1 << 20:
            code, address = device.driver.cuMemAlloc(size)
            if int(code):
                size //= 2
            else:
                held.append(int(address))
        for _ in range(20):
            problem.poison()
            problem.enqueue(prepared, 0)
            device.synchronize()
            problem.check()
    finally:
        for address in held:
            device.free(address)
        problem.free()


@pytest.fixture
def fresh_thread() -> Iterator[Callable[[Callable[[], None]], None]]:
    def in_thread(work: Callable[[], None]) -> None:
        failures: list[BaseException] = []

        def guarded() -> None:
            try:
                work()
            except BaseException as err:
                failures.append(err)

        thread = threading.Thread(target=guarded)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    yield in_thread


def test_a_thread_without_a_context_gets_the_primary_one(
    fresh_thread: Callable[[Callable[[], None]], None],
) -> None:
    def work() -> None:
        get_backend("cuda_python").compile(DType.FLOAT, NonZeroConfig())
        run(Device(), "cuda_python", np.ones(9, "u4"), (3, 3), DType.INT32, NonZeroConfig())

    fresh_thread(work)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name == "torch"])
def test_torch_says_what_it_cannot_take(backend: str) -> None:
    with pytest.raises(ContractError, match=r"takes fewer than 2\*\*31 items, not 2147483648"):
        get_backend(backend).prepare((2**31,), DType.BOOL, NonZeroConfig(backend))
