"""A deserialized engine and its execution contexts, with outputs of their true shapes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nonzero_plugin._tensorrt import FLAVOURS, flavour_of, load_tensorrt
from nonzero_plugin.allocator import OutputBuffer, allocator_class
from nonzero_plugin.callbacks import raise_recorded
from nonzero_plugin.cudart import Cuda
from nonzero_plugin.dtypes import DType
from nonzero_plugin.engine_inputs import Array, TensorInfo, check_inputs
from nonzero_plugin.errors import ContractError, CudaError, EngineLoadError, EngineRunError
from nonzero_plugin.places import not_read
from nonzero_plugin.plan_file import explain_load_failure
from nonzero_plugin.registry import load_standard_plugins, register
from nonzero_plugin.sidecar import read_sidecar


@dataclass(frozen=True)
class Timing:
    """Medians over ``runs``, in milliseconds.

    Attributes:
        enqueue: host time inside ``execute_async_v3``. TensorRT reads each count on the host, so
            this holds the device's work up to the last NonZero.
        device: between events around it on the stream.
        latency: from the call to the end of the stream's work; inputs are on the device, outputs
            stay there.
    """

    runs: int
    enqueue: float
    device: float
    latency: float


class Engine:
    """A deserialized engine.

    Args:
        source: the engine file.
        trt: flavour or module; None or ``auto`` takes the sidecar's, then :func:`load_tensorrt`'s.

    Raises:
        EngineLoadError: the file is no engine this TensorRT and GPU can run; in its own words.
        CudaError: there is no CUDA device.
    """

    def __init__(self, source: str | Path, trt: Any = None) -> None:
        path = Path(source)
        try:
            plan = path.read_bytes()
        except OSError as error:
            raise EngineLoadError(not_read(path, error)) from error
        self.path = path
        self.cuda = Cuda()
        try:
            self.cuda.require_device()
        except CudaError as error:
            raise EngineLoadError(
                f"{path}: needs an NVIDIA GPU to run: {error}; run it on a machine that has one"
            ) from error
        self.trt = register(choose_runtime(path, trt))
        self.version = f"{flavour_of(self.trt)} {self.trt.__version__}"
        self.logger, self._messages = _collecting_logger(self.trt)
        load_standard_plugins(self.trt, self.logger)
        self._runtime = self.trt.Runtime(self.logger)
        if (read_sidecar(path) or {}).get("version_compatible"):
            self._runtime.engine_host_code_allowed = True  # it carries its own lean runtime
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise_recorded()
            raise EngineLoadError(
                explain_load_failure(path.name, self.version, self._messages, plan, self.trt)
            )
        self.tensors = tuple(self._tensor(i) for i in range(self._engine.num_io_tensors))

    def _tensor(self, index: int) -> TensorInfo:
        engine, trt = self._engine, self.trt
        name = engine.get_tensor_name(index)
        return TensorInfo(
            name,
            tuple(engine.get_tensor_shape(name)),
            _numpy_dtype(engine.get_tensor_dtype(name), name),
            engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT,
            engine.get_tensor_location(name) == trt.TensorLocation.HOST,
        )

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The engine's inputs."""
        return tuple(tensor for tensor in self.tensors if tensor.is_input)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The engine's outputs."""
        return tuple(tensor for tensor in self.tensors if not tensor.is_input)

    @property
    def num_profiles(self) -> int:
        """How many optimization profiles it was built with."""
        return int(self._engine.num_optimization_profiles)

    def profile_range(self, name: str, profile: int) -> list[tuple[int, ...]] | None:
        """Smallest, tuned-for and largest shape of an input; None for one on the host."""
        tensor = next(item for item in self.inputs if item.name == name)
        if tensor.on_host:
            return None
        return [tuple(s) for s in self._engine.get_tensor_profile_shape(name, profile)]

    def create_context(self, profile: int = 0) -> Context:
        """A new execution context with a stream of its own."""
        return Context(self, profile)

    def last_messages(self) -> str:
        """What TensorRT logged last as an error."""
        return self._messages[-1] if self._messages else "TensorRT gave no reason"


class Context:
    """One execution context, its stream and its buffers; one run at a time.

    Raises:
        EngineLoadError: TensorRT gave no context, in its own words.
        ContractError: the engine has no such profile.
    """

    def __init__(self, engine: Engine, profile: int = 0) -> None:
        if not 0 <= profile < engine.num_profiles:
            raise ContractError(
                f"{engine.path.name} has profiles 0 to {engine.num_profiles - 1}, not {profile}"
            )
        self.engine = engine
        self.profile = profile
        self._cuda = engine.cuda
        self._context = engine._engine.create_execution_context()
        raise_recorded()
        if self._context is None:
            raise EngineLoadError(
                f"{engine.path.name}: {engine.version} gave no execution context: "
                f"{engine.last_messages()}"
            )
        self._stream = self._cuda.create_stream()
        if profile and not self._context.set_optimization_profile_async(profile, self._stream):
            raise EngineRunError(
                f"{engine.path.name}: profile {profile} was refused: {engine.last_messages()}"
            )
        self._cuda.synchronize(self._stream)
        self._inputs = {tensor.name: OutputBuffer(self._cuda) for tensor in engine.inputs}
        self._outputs = {tensor.name: OutputBuffer(self._cuda) for tensor in engine.outputs}
        allocator = allocator_class(engine.trt)
        self._allocators = {name: allocator(buffer) for name, buffer in self._outputs.items()}
        self._host: dict[str, Array] = {}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs for ``inputs``, copied to the host, of their true shapes.

        Raises:
            ContractError: an input is missing, unknown, or of a type or shape the engine does not
                take.
            EngineRunError: TensorRT failed; what a plugin raised is raised as it is.
        """
        self._bind(inputs)
        self._execute()
        self._cuda.synchronize(self._stream)
        return {tensor.name: self._fetch(tensor) for tensor in self.engine.outputs}

    def time(self, inputs: Mapping[str, Array], runs: int, warmup: int = 5) -> Timing:
        """Medians over ``runs`` after ``warmup`` runs that are not counted."""
        self._bind(inputs)
        start, end = (self._cuda.call("cudaEventCreate") for _ in range(2))
        enqueue, device, latency = [], [], []
        try:
            for number in range(warmup + runs):
                before = time.perf_counter()
                self._cuda.call("cudaEventRecord", start, self._stream)
                called = time.perf_counter()
                self._execute()
                returned = time.perf_counter()
                self._cuda.call("cudaEventRecord", end, self._stream)
                self._cuda.synchronize(self._stream)
                after = time.perf_counter()
                if number >= warmup:
                    enqueue.append((returned - called) * 1e3)
                    device.append(float(self._cuda.call("cudaEventElapsedTime", start, end)))
                    latency.append((after - before) * 1e3)
        finally:
            for event in (start, end):
                self._cuda.call("cudaEventDestroy", event)
        return Timing(runs, *(statistics.median(times) for times in (enqueue, device, latency)))

    def close(self) -> None:
        """Gives memory and stream back; the context cannot run after it."""
        self._cuda.synchronize(self._stream)
        self._context = None
        for buffer in (*self._inputs.values(), *self._outputs.values()):
            buffer.release()
        self._cuda.call("cudaStreamDestroy", self._stream)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bind(self, inputs: Mapping[str, Array]) -> None:
        arrays = check_inputs(self.engine, inputs, self.profile)
        for tensor in self.engine.inputs:
            array = arrays[tensor.name]
            if not self._context.set_input_shape(tensor.name, array.shape):
                raise EngineRunError(
                    f"input {tensor.name!r}: shape {array.shape} was refused: "
                    f"{self.engine.last_messages()}"
                )
            self._host[tensor.name] = array  # the copy is asynchronous: keep it alive
            address = array.ctypes.data
            if not tensor.on_host:
                address = self._inputs[tensor.name].reallocate(array.nbytes)
                if array.nbytes:
                    self._cuda.to_device(address, array.ctypes.data, array.nbytes, self._stream)
            self._context.set_tensor_address(tensor.name, address)
        for tensor in self.engine.outputs:
            if tensor.on_host:
                dims = tuple(self._context.get_tensor_shape(tensor.name))
                self._host[tensor.name] = np.empty([max(dim, 0) for dim in dims], tensor.dtype)
                self._context.set_tensor_address(tensor.name, self._host[tensor.name].ctypes.data)
            else:
                self._context.set_output_allocator(tensor.name, self._allocators[tensor.name])

    def _execute(self) -> None:
        for buffer in self._outputs.values():
            buffer.start_run()
        done = self._context.execute_async_v3(self._stream)
        raise_recorded()
        if not done:
            raise EngineRunError(
                f"{self.engine.path.name}: {self.engine.version} failed to run: "
                f"{self.engine.last_messages()}"
            )

    def _fetch(self, tensor: TensorInfo) -> Array:
        if tensor.on_host:
            return np.array(self._host[tensor.name])
        buffer = self._outputs[tensor.name]
        shape = buffer.shape
        if shape is None:  # it need not tell again what no data decides
            shape = tuple(self._context.get_tensor_shape(tensor.name))
        if min(shape, default=0) < 0 or not buffer.address:
            raise EngineRunError(f"TensorRT told no shape for output {tensor.name!r}")
        array: Array = np.empty(shape, tensor.dtype)
        if array.nbytes:
            self._cuda.to_host(array.ctypes.data, buffer.address, array.nbytes, self._stream)
            self._cuda.synchronize(self._stream)
        return array


def choose_runtime(path: Path, trt: Any = None) -> Any:
    """The TensorRT module for an engine: the caller's, the sidecar's flavour, or what is there."""
    if trt is None or trt == "auto":
        sidecar = read_sidecar(path)
        if sidecar and sidecar["tensorrt"]["flavour"] in FLAVOURS:
            return load_tensorrt(sidecar["tensorrt"]["flavour"])
    return load_tensorrt(trt)


def _numpy_dtype(trt_dtype: Any, name: str) -> np.dtype[Any]:
    for member in DType:
        if member.trt_name is not None and member.trt_name == trt_dtype.name:
            return member.numpy
    raise EngineLoadError(f"tensor {name!r} has type {trt_dtype.name}, which NumPy cannot hold")


def _collecting_logger(trt: Any) -> tuple[Any, list[str]]:
    messages: list[str] = []
    errors = (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR)

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in errors:
                messages.append(msg)
                del messages[:-40]

    return Logger(), messages
