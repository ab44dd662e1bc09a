"""Running an engine, played on a fake runtime over host memory; the real one needs a real GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_runtime import FakeCuda, make_fake_runtime
from helpers.fake_tensorrt import make_fake_tensorrt
from helpers.sidecar import write_sidecar
from nonzero_plugin import callbacks, execute
from nonzero_plugin.allocator import OutputBuffer, allocator_class
from nonzero_plugin.engine import Engine, refuse_capture, run_engine
from nonzero_plugin.errors import ContractError, CudaError, EngineLoadError, EngineRunError
from nonzero_plugin.plan_file import explain_load_failure, plugin_triples
from nonzero_plugin.registry import OURS, register


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    memory = FakeCuda()
    monkeypatch.setattr(execute, "Cuda", lambda: memory)
    callbacks.take_recorded(any_thread=True)
    yield memory
    callbacks.take_recorded(any_thread=True)


@pytest.fixture
def trt() -> Any:
    return make_fake_runtime()


@pytest.fixture
def engine_file(tmp_path: Path) -> Path:
    path = tmp_path / "m.engine"
    path.write_bytes(b"engine")
    return path


def matrix(hits: list[tuple[int, int]], rows: int = 8) -> np.ndarray[Any, Any]:
    x = np.zeros((rows, 8), np.float32)
    for row, column in hits:
        x[row, column] = 1
    return x


HITS = [(0, 3), (2, 2), (7, 0)]


def test_b15_outputs_have_their_true_shape(cuda: FakeCuda, trt: Any, engine_file: Path) -> None:
    result = run_engine(engine_file, {"x": matrix(HITS)}, trt=trt)
    indices = result.outputs["indices"]
    assert indices.shape == (3, 2) and indices.tolist() == [list(hit) for hit in HITS]
    assert result.device.startswith("no card") and result.tensorrt == "tensorrt 10.9.0"
    assert result.timing is None and not result.truncated
    assert not cuda.alive, "a closed context gives everything back"


def test_b20_nothing_everything_and_back_on_one_context(
    cuda: FakeCuda, trt: Any, engine_file: Path
) -> None:
    with Engine(engine_file, trt).create_context() as context:
        for x in (
            matrix([]),
            matrix(HITS),
            np.ones((64, 8), np.float32),
            matrix([], rows=0),
            matrix(HITS),
        ):
            indices = context.run({"x": x})["indices"]
            assert indices.dtype == np.int64 and indices.shape == (np.count_nonzero(x), 2)
            np.testing.assert_array_equal(indices, np.argwhere(x))
        before = cuda.allocations
        context.run({"x": matrix(HITS)})
        assert cuda.allocations == before, "memory is kept from run to run"


def test_a_shape_that_is_not_told_is_asked_for(cuda: FakeCuda, trt: Any, engine_file: Path) -> None:
    trt.tells_shapes = False
    with pytest.raises(EngineRunError, match="told no shape for output 'indices'"):
        run_engine(engine_file, {"x": matrix(HITS)}, trt=trt)
    trt.shape_of_output = (3, 2)  # an output that no data decides
    assert run_engine(engine_file, {"x": matrix(HITS)}, trt=trt).outputs["indices"].shape == (3, 2)


def test_several_contexts_at_once_and_timing(cuda: FakeCuda, trt: Any, engine_file: Path) -> None:
    result = run_engine(engine_file, {"x": matrix(HITS)}, trt=trt, contexts=3, repeat=4)
    assert result.timing is not None and result.timing.runs == 4
    assert result.timing.device == 0.5 and result.timing.latency >= result.timing.enqueue >= 0


def test_contexts_that_disagree_are_an_error(
    cuda: FakeCuda, trt: Any, engine_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, turn = execute.Context.run, iter([0, 1])

    def run(self: Any, inputs: Any) -> Any:
        outputs = real(self, inputs)
        return {name: array + next(turn) for name, array in outputs.items()}

    monkeypatch.setattr(execute.Context, "run", run)
    with pytest.raises(EngineRunError, match="contexts 1 and 2 disagree about output 'indices'"):
        run_engine(engine_file, {"x": matrix(HITS)}, trt=trt, contexts=2)


def test_what_a_plugin_raised_in_enqueue_is_what_the_caller_gets(
    cuda: FakeCuda, trt: Any, engine_file: Path
) -> None:
    error = CudaError("cuLaunchKernel", 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified failure")
    trt.fail = lambda: callbacks.record("enqueue", error, "nz")
    with pytest.raises(CudaError) as caught:
        run_engine(engine_file, {"x": matrix(HITS)}, trt=trt)
    assert caught.value is error
    trt.fail = lambda: None
    with pytest.raises(EngineRunError, match="failed to run: enqueue reported -1"):
        run_engine(engine_file, {"x": matrix(HITS)}, trt=trt)


def test_no_memory_for_an_output_is_told_as_cuda_told_it(
    cuda: FakeCuda, trt: Any, engine_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Engine(engine_file, trt).create_context()

    def allocate(size: int) -> int:
        if threading.current_thread() is threading.main_thread() and size > 5000:
            raise CudaError("cudaMalloc", 2, "cudaErrorMemoryAllocation", "out of memory")
        return FakeCuda.allocate(cuda, size)

    monkeypatch.setattr(cuda, "allocate", allocate)
    context.run({"x": matrix(HITS)})
    with pytest.raises(CudaError, match="out of memory"):
        context.run({"x": np.ones((64, 8), np.float32)})
    assert context.run({"x": matrix(HITS)})["indices"].shape == (3, 2)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({}, "needs input 'x'; its inputs are 'x'"),
        ({"x": matrix([]), "z": matrix([])}, "has no input 'z'"),
        ({"x": np.zeros((8, 8, 1), np.float32)}, "the engine takes rank 2"),
        ({"x": np.zeros((65, 8), np.float32)}, r"outside \(0, 8\) to \(64, 8\).*--profile"),
        ({"x": np.full((1, 8), 0.1, np.float64)}, "float64; the engine takes float32"),
    ],
)
def test_inputs_that_do_not_fit_say_why(
    cuda: FakeCuda, trt: Any, engine_file: Path, inputs: dict[str, Any], says: str
) -> None:
    with pytest.raises(ContractError, match=says):
        run_engine(engine_file, inputs, trt=trt)


def test_a_type_is_converted_only_where_no_value_changes(
    cuda: FakeCuda, trt: Any, engine_file: Path
) -> None:
    x = matrix(HITS).astype(np.float64)[::-1][::-1]
    assert run_engine(engine_file, {"x": x}, trt=trt).outputs["indices"].shape == (3, 2)


def test_only_profiles_that_exist(cuda: FakeCuda, trt: Any, engine_file: Path) -> None:
    with pytest.raises(ContractError, match="profiles 0 to 0, not 1"):
        run_engine(engine_file, {"x": matrix([])}, trt=trt, profile=1)


def test_no_gpu_is_said_in_cuda_s_words(
    engine_file: Path, trt: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require_device() -> int:
        raise CudaError("cudaGetDeviceCount", 35, "cudaErrorInsufficientDriver", "driver too old")

    monkeypatch.setattr(cuda, "require_device", require_device)
    with pytest.raises(EngineLoadError, match=r"needs an NVIDIA GPU.*35\): driver too old"):
        Engine(engine_file, trt)


def test_a_gpu_the_library_refuses_is_said_in_its_words(
    cuda: FakeCuda, trt: Any, tmp_path: Path
) -> None:
    other = tmp_path / "other.engine"
    other.write_bytes(b"of another card")
    trt.log_on_load = [
        "The engine cannot run on this GPU, which has compute capability 9.0. Supported compute "
        "capabilities: 8.0 8.6 8.9 12.0 12.1 >12.0"
    ]
    with pytest.raises(EngineLoadError) as caught:
        Engine(other, trt)
    assert trt.log_on_load[0] in str(caught.value) and "register()" not in str(caught.value)


def test_b30_an_engine_without_our_creator_names_plugin_and_call() -> None:
    trt = make_fake_tensorrt()
    message = (
        "IPluginRegistry::getCreator: Error Code 4: API Usage Error (Cannot find plugin: "
        "NonZeroPluginnonzero_rewrite, version: 1, namespace:nonzero_rewrite.)"
    )
    text = explain_load_failure("m.engine", "tensorrt 10.9.0", [message], b"", trt)
    assert message in text and "NonZeroPlugin, version 1, namespace 'nonzero_rewrite'" in text
    assert "no plugin of the name NonZeroPlugin is registered" in text
    assert "call nonzero_plugin.register()" in text
    register(trt)
    text = explain_load_failure("m.engine", "tensorrt 10.9.0", ["magic tag"], b"", trt)
    assert text == "m.engine: tensorrt 10.9.0 could not load the engine: magic tag"


def test_plans_are_searched_for_the_triple_without_trusting_them() -> None:
    def text(value: bytes) -> bytes:
        return b"\x13\x80\x01\x00" + len(value).to_bytes(8, "little") + b"\x01\x80" + b"" + value

    assert plugin_triples(b"") == []
    assert plugin_triples(b"NonZeroPlugin") == []
    assert plugin_triples(b"\xff" * 40 + b"NonZeroPlugin" + b"\xff" * 40) == []
    stored = b"".join(
        len(value).to_bytes(8, "little") + value + b"\x13\x80\x01\x00" * 2
        for value in (b"NonZeroPlugin", b"1", b"nonzero_rewrite")
    )
    assert plugin_triples(b"\x00" * 32 + stored + b"\x00" * 64) == [OURS]


def test_b14_capture_is_refused_with_the_node_s_name(tmp_path: Path) -> None:
    engine = tmp_path / "m.engine"
    engine.write_bytes(b"anything")
    write_sidecar(engine, plugins=["/head/NonZero"])
    with pytest.raises(EngineRunError, match=r"cannot be captured.*'/head/NonZero'.*to the host"):
        refuse_capture(engine)
    (tmp_path / "m.engine.json").unlink()
    with pytest.raises(EngineRunError, match="holds no NonZeroPlugin"):
        refuse_capture(engine)


def test_a_version_compatible_engine_may_bring_its_runtime(
    cuda: FakeCuda, trt: Any, engine_file: Path
) -> None:
    assert not hasattr(Engine(engine_file, trt)._runtime, "engine_host_code_allowed")
    write_sidecar(engine_file, version_compatible=True)
    assert Engine(engine_file, trt)._runtime.engine_host_code_allowed is True


def test_the_sidecar_s_flavour_is_what_loads_the_engine(
    engine_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(execute, "load_tensorrt", asked.append)
    sidecar = engine_file.with_name("m.engine.json")
    write_sidecar(engine_file)
    execute.choose_runtime(engine_file, "auto")
    for content in ("no json", "[]", "{}"):
        sidecar.write_text(content)
        execute.choose_runtime(engine_file, "auto")
    execute.choose_runtime(engine_file, "tensorrt")
    assert asked == ["tensorrt_rtx", "auto", "auto", "auto", "tensorrt"]


def test_output_memory_only_grows_and_is_given_back() -> None:
    memory = FakeCuda()
    buffer = OutputBuffer(memory)
    allocator = allocator_class(make_fake_runtime())(buffer)
    first = allocator.reallocate_output_async("y", None, 1, 256, 7)
    assert allocator.reallocate_output_async("y", first, 1, 256, 7) == first
    allocator.reallocate_output("y", first, 4096, 256)
    assert len(memory.alive) == 1 and buffer.size == 4096
    allocator.notify_shape("y", [3, 2])
    assert buffer.shape == (3, 2)
    buffer.start_run()
    assert buffer.shape is None
    buffer.release()
    buffer.release()
    assert not memory.alive
