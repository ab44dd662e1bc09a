"""The plugin's whole life on a real GPU, with the real classes of every TensorRT module there is.

TensorRT's own calls are made here in its order (creator, create_plugin, clone, attach_to_context,
configure_plugin, on_shape_change, enqueue; fields out and back in), with real device memory and
streams. That needs no builder, so ``tensorrt_lean`` will do, and no engine, so any NVIDIA GPU does.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.life import desc, through_an_engine
from nonzero_plugin import callbacks
from nonzero_plugin.dtypes import DType
from nonzero_plugin.promise import any_promise_broken
from nonzero_plugin.registry import register, unregister

# The wheel tensorrt_lean_cu13_bindings alone installs the second name.
MODULES = ("tensorrt_lean", "tensorrt_lean_bindings", "tensorrt_rtx", "tensorrt")
INSTALLED = [name for name in MODULES if importlib.util.find_spec(name)]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INSTALLED, reason=f"none of {', '.join(MODULES)} is installed"),
]
POISON = 0x5A


@pytest.fixture(params=INSTALLED or ["none"])
def trt(request: pytest.FixtureRequest) -> Iterator[Any]:
    from nonzero_plugin._tensorrt import FLAVOURS, load_tensorrt

    name = request.param
    module = load_tensorrt(name if name in FLAVOURS else importlib.import_module(name))
    register(module)
    callbacks.take_recorded(any_thread=True)
    yield module
    unregister(module)
    callbacks.raise_recorded(any_thread=True)


@pytest.fixture
def cuda() -> Any:
    from nonzero_plugin.cudart import Cuda

    return Cuda()


class Problem:
    """An input on the device and poisoned outputs with a guard behind them."""

    def __init__(self, cuda: Any, x: np.ndarray[Any, Any], config: Any, workspace: int) -> None:
        self.cuda, self.x, self.config = cuda, x, config
        self.stream = cuda.create_stream()
        bound = x.size if config.max_nonzero is None else min(x.size, config.max_nonzero)
        self.index = np.dtype(np.int64 if config.index_type == 7 else np.int32)
        self.size = bound * x.ndim * self.index.itemsize
        self.d_in, self.d_count = cuda.allocate(x.nbytes), cuda.allocate(16)
        self.d_indices = cuda.allocate(self.size + 64)
        self.d_workspace = cuda.allocate(workspace)
        host = np.ascontiguousarray(x)
        cuda.to_device(self.d_in, host.ctypes.data, host.nbytes, self.stream)
        cuda.call("cudaMemsetAsync", self.d_workspace, 0xFF, max(workspace, 1), self.stream)
        self.poison()
        cuda.synchronize(self.stream)

    def poison(self) -> None:
        self.cuda.call("cudaMemsetAsync", self.d_count, POISON, 16, self.stream)
        self.cuda.call("cudaMemsetAsync", self.d_indices, POISON, self.size + 64, self.stream)

    def check(self) -> None:
        self.cuda.synchronize(self.stream)
        count, room = np.zeros(2, np.int64), np.zeros(self.size + 64, np.uint8)
        self.cuda.to_host(count.ctypes.data, self.d_count, 16, self.stream)
        self.cuda.to_host(room.ctypes.data, self.d_indices, room.nbytes, self.stream)
        self.cuda.synchronize(self.stream)
        expected = np.argwhere(self.x != 0)[: self.config.max_nonzero]
        assert count[0] == len(expected)
        assert count[1:].view(np.uint8).tolist() == [POISON] * 8
        if not self.config.rank_last:
            expected = expected.T
        expected = np.ascontiguousarray(expected, self.index)
        written = room[: expected.nbytes].view(self.index).reshape(expected.shape)
        np.testing.assert_array_equal(written, expected)
        assert (room[expected.nbytes :] == POISON).all(), "written past the last index"

    def close(self) -> None:
        for address in (self.d_in, self.d_count, self.d_indices, self.d_workspace):
            self.cuda.free(address)
        self.cuda.call("cudaStreamDestroy", self.stream)


def run(trt: Any, context: Any, problem: Problem, dtype: DType) -> None:
    trt_type = getattr(trt.DataType, str(dtype.trt_name))
    inputs = [desc(trt, trt_type, problem.x.shape)]
    outputs = [desc(trt, trt.DataType.INT64, (2, -1)), desc(trt, trt.DataType.INT64, ())]
    context.on_shape_change(inputs, outputs)
    context.enqueue(
        inputs,
        outputs,
        [problem.d_in],
        [problem.d_indices, problem.d_count],
        problem.d_workspace,
        problem.stream,
    )
    callbacks.raise_recorded()


def draw(dtype: DType, dims: tuple[int, ...], density: float, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    flags = rng.random(dims) < density
    values = np.where(flags, rng.integers(1, 100, dims), 0)
    return np.ascontiguousarray(values.astype(dtype.numpy)).reshape(dims)


@pytest.mark.parametrize("perm", [[0, 1], [1, 0]])
@pytest.mark.parametrize(
    ("dtype", "dims"),
    [
        (DType.FLOAT, (3, 5)),
        (DType.FLOAT, (1000, 1003)),
        (DType.FLOAT16, (7, 11, 13)),
        (DType.BFLOAT16, (257, 129)),
        (DType.INT8, (65537,)),
        (DType.INT32, (2, 3, 4, 5, 6)),
        (DType.INT64, (99, 98)),
        (DType.BOOL, (1 << 21,)),
        (DType.BOOL, (2, 3, 2, 3, 2, 3, 2, 3)),
        (DType.UINT8, (4, 0, 3)),
        (DType.UINT8, (40, 41, 3)),
    ],
)
def test_the_whole_life(
    trt: Any, cuda: Any, dtype: DType, dims: tuple[int, ...], perm: list[int]
) -> None:
    loaded, workspace = through_an_engine(trt, dtype, dims, perm=perm)
    context = loaded.attach_to_context(None)
    for density in (0.0, 0.01, 0.5, 1.0, 0.0):
        problem = Problem(cuda, draw(dtype, dims, density), loaded.config, workspace)
        run(trt, context, problem, dtype)
        problem.check()
        problem.close()


def test_int32_indices_and_a_promise_that_is_broken(trt: Any, cuda: Any) -> None:
    loaded, workspace = through_an_engine(
        trt, DType.FLOAT, (64, 64), index_type=[6], max_nonzero=[100]
    )
    context = loaded.attach_to_context(None)
    any_promise_broken()
    for density, broken in ((0.01, False), (0.5, True), (0.01, False)):
        problem = Problem(cuda, draw(DType.FLOAT, (64, 64), density), loaded.config, workspace)
        run(trt, context, problem, DType.FLOAT)
        problem.check()
        assert any_promise_broken() is broken
        problem.close()


def test_a_context_serves_any_shape_up_to_the_profile_s(trt: Any, cuda: Any) -> None:
    loaded, workspace = through_an_engine(trt, DType.BOOL, (512, 512), perm=[1, 0])
    context = loaded.attach_to_context(None)
    for dims in ((512, 512), (1, 1), (0, 512), (511, 3), (512, 512)):
        problem = Problem(cuda, draw(DType.BOOL, dims, 0.3), loaded.config, workspace)
        run(trt, context, problem, DType.BOOL)
        problem.check()
        problem.close()


def test_contexts_in_threads_do_not_disturb_one_another(trt: Any, cuda: Any) -> None:
    loaded, workspace = through_an_engine(trt, DType.FLOAT, (300, 1000))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            x = draw(DType.FLOAT, (300, 1000 - seed), 0.1 * seed, seed)
            context = loaded.attach_to_context(None)
            problem = Problem(cuda, x, loaded.config, workspace)
            for _ in range(50):
                problem.poison()
                run(trt, context, problem, DType.FLOAT)
            problem.check()
            problem.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_enqueue_is_captured_and_replayed_on_other_data(trt: Any, cuda: Any) -> None:
    loaded, workspace = through_an_engine(trt, DType.FLOAT, (640, 480))
    context = loaded.attach_to_context(None)
    problem = Problem(cuda, draw(DType.FLOAT, (640, 480), 0.2), loaded.config, workspace)
    run(trt, context, problem, DType.FLOAT)
    problem.check()
    runtime = cuda._runtime
    mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    cuda.call("cudaStreamBeginCapture", problem.stream, mode)
    pointers = ([problem.d_in], [problem.d_indices, problem.d_count])
    context.enqueue([], [], *pointers, problem.d_workspace, problem.stream)
    graph = cuda.call("cudaStreamEndCapture", problem.stream)
    executable = cuda.call("cudaGraphInstantiate", graph, 0)
    for seed in (1, 2):
        problem.x = draw(DType.FLOAT, (640, 480), 0.1 * seed, seed)
        cuda.to_device(problem.d_in, problem.x.ctypes.data, problem.x.nbytes, problem.stream)
        problem.poison()
        cuda.call("cudaGraphLaunch", executable, problem.stream)
        problem.check()
    problem.close()


@pytest.mark.parametrize("backend", ["cupy", "torch"])
def test_the_other_backends_live_the_same_life(trt: Any, cuda: Any, backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    loaded, workspace = through_an_engine(trt, DType.FLOAT, (123, 45), backend=backend)
    context = loaded.attach_to_context(None)
    for density in (0.0, 0.3, 1.0):
        problem = Problem(cuda, draw(DType.FLOAT, (123, 45), density), loaded.config, workspace)
        run(trt, context, problem, DType.FLOAT)
        problem.check()
        problem.close()


def test_the_card_is_named(cuda: Any) -> None:
    assert cuda.require_device() >= 1
    assert "(compute capability " in cuda.device_name()


def test_bytes_that_are_no_engine_are_refused_in_the_library_s_words(
    trt: Any, tmp_path: Any
) -> None:
    from nonzero_plugin.engine import Engine
    from nonzero_plugin.errors import EngineLoadError

    path = tmp_path / "no.engine"
    path.write_bytes(b"no engine at all" * 64)
    with pytest.raises(EngineLoadError) as caught:
        Engine(path, trt)
    assert "could not load the engine" in str(caught.value)
    assert "gave no reason" not in str(caught.value)
