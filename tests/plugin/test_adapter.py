"""The adapter's callbacks, driven through a fake TensorRT."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.fake_tensorrt import FakeExprBuilder, dynamic_desc, make_fake_tensorrt, tensor_desc
from nonzero_plugin import backends, callbacks, fields, promise
from nonzero_plugin.adapter import make_classes
from nonzero_plugin.contract import NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import BackendUnavailableError, ContractError, KernelCompileError
from nonzero_plugin.launch import workspace_bytes
from nonzero_plugin.promise import any_promise_broken


class RecordingBackend:
    """Keeps what it was asked for."""

    name = "cuda_python"

    def __init__(self) -> None:
        self.compiled: list[Any] = []
        self.prepared: list[Any] = []
        self.launched: list[Any] = []
        self.error: Exception | None = None

    def compile(self, dtype: DType, config: NonZeroConfig) -> None:
        if self.error:
            raise self.error
        self.compiled.append((dtype, config))

    def prepare(self, dims: tuple[int, ...], dtype: DType, config: NonZeroConfig) -> Any:
        self.prepared.append((dims, dtype, config))
        launch = Launch(self)
        return launch


class Launch:
    def __init__(self, backend: RecordingBackend) -> None:
        self.backend = backend

    def __call__(self, *pointers: int) -> None:
        if self.backend.error:
            raise self.backend.error
        self.backend.launched.append(pointers)

    def overflowed(self) -> bool:
        return True


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingBackend]:
    recording = RecordingBackend()
    monkeypatch.setitem(backends._loaded, "cuda_python", recording)
    callbacks.take_recorded(any_thread=True)
    yield recording
    callbacks.take_recorded(any_thread=True)
    promise._watches.clear()


@pytest.fixture
def trt() -> Any:
    return make_fake_tensorrt()


def build_plugin(trt: Any, **attributes: Any) -> Any:
    """A plugin as the parser makes it."""
    values = {"backend": b"cuda_python\0", "perm": [0, 1], **attributes}
    given = [
        trt.PluginField(
            name,
            np.frombuffer(value, np.int8)
            if isinstance(value, bytes)
            else np.array(value, np.int32),
            trt.PluginFieldType.CHAR if isinstance(value, bytes) else trt.PluginFieldType.INT32,
        )
        for name, value in values.items()
    ]
    return make_classes(trt).creator().create_plugin("nz", given, trt.TensorRTPhase.BUILD)


def test_classes_are_made_once_for_each_module(trt: Any) -> None:
    assert make_classes(trt) is make_classes(trt)
    assert make_classes(trt).plugin is not make_classes(make_fake_tensorrt()).plugin


def test_the_build_life(trt: Any, backend: RecordingBackend) -> None:
    plugin = build_plugin(trt, perm=[1, 0])
    assert plugin.get_output_data_types([trt.DataType.HALF]) == [trt.DataType.INT64] * 2
    copy = plugin.clone()
    assert copy is not plugin and copy.config == plugin.config and copy.dtype is DType.FLOAT16
    assert (copy.plugin_name, copy.plugin_version) == ("NonZeroPlugin", "1")
    assert (copy.plugin_namespace, copy.num_outputs) == ("nonzero_rewrite", 2)
    upper = "PROD(PROD(1,n),4)"
    size = f"size#1(opt=MAX(1,FLOOR_DIV({upper},2)),upper={upper})"
    assert copy.get_output_shapes([["n", "4"]], [], FakeExprBuilder()) == [[size, "2"], []]
    linear, half, int64 = trt.TensorFormat.LINEAR, trt.DataType.HALF, trt.DataType.INT64
    largest = (1 << 20, 4)
    descs = [
        dynamic_desc(half, (-1, 4), largest, linear),
        dynamic_desc(int64, (2, -1), (2, 4), linear),
        dynamic_desc(int64, (), (), linear),
    ]
    assert [copy.supports_format_combination(pos, descs, 1) for pos in range(3)] == [True] * 3
    attached = copy.attach_to_context(None)
    assert attached is not copy
    attached.configure_plugin(descs[:1], descs[1:])
    assert backend.compiled == [(DType.FLOAT16, copy.config)] * 2
    assert attached.get_workspace_size(descs[:1], descs[1:]) == workspace_bytes(
        largest, DType.FLOAT16, copy.config
    )
    assert attached.get_valid_tactics() == [] and attached.set_tactic(0) is None
    assert not callbacks.take_recorded()


def test_only_the_network_s_own_linear_types_are_taken(trt: Any, backend: RecordingBackend) -> None:
    plugin = build_plugin(trt, index_type=[6])
    assert plugin.get_output_data_types([trt.DataType.FLOAT])[0] is trt.DataType.INT32
    linear = trt.TensorFormat.LINEAR

    def accepts(pos: int, dtype: Any, fmt: Any = linear) -> bool:
        descs = [dynamic_desc(dtype, (1,), (1,), fmt)] * 3
        return bool(plugin.supports_format_combination(pos, descs, 1))

    assert accepts(0, trt.DataType.FLOAT)
    assert not accepts(0, trt.DataType.HALF)  # tiny floats would turn into zeros
    assert not accepts(0, trt.DataType.FLOAT, trt.TensorFormat.HWC)
    assert accepts(1, trt.DataType.INT32) and not accepts(1, trt.DataType.INT64)
    assert accepts(2, trt.DataType.INT64) and not accepts(2, trt.DataType.INT32)


def test_fields_out_and_back_in_at_run_time(
    trt: Any, backend: RecordingBackend, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = build_plugin(trt, perm=[1, 0], index_type=[6], max_nonzero=[9])
    plugin.get_output_data_types([trt.DataType.BOOL])
    stored = plugin.get_fields_to_serialize()
    loaded = make_classes(trt).creator().create_plugin("nz", stored, trt.TensorRTPhase.RUNTIME)
    assert loaded.config == NonZeroConfig("cuda_python", (1, 0), 6, 9)
    assert loaded.dtype is DType.BOOL
    context = loaded.attach_to_context(None)
    assert backend.compiled == [(DType.BOOL, loaded.config)]
    desc = tensor_desc(trt.DataType.BOOL, (3, 5))
    context.on_shape_change([desc], [])
    assert backend.prepared == [((3, 5), DType.BOOL, loaded.config)]
    context.enqueue([desc], [], [11], [22, 33], 44, 55)
    assert backend.launched == [(11, 22, 33, 44, 55)]
    with pytest.raises(ContractError, match="before it told the input's shape"):
        loaded.enqueue([desc], [], [11], [22, 33], 44, 55)  # what a context prepares is its own
    callbacks.take_recorded()
    context.on_shape_change([tensor_desc(trt.DataType.BOOL, (3, -1))], [])
    with pytest.raises(ContractError, match="before it told the input's shape"):
        context.enqueue([desc], [], [11], [22, 33], 44, 55)
    callbacks.take_recorded()
    context.on_shape_change([desc], [])
    context.enqueue([desc], [], [11], [22, 33], 44, 55)
    assert any_promise_broken() and "max_nonzero = 9" in caplog.text
    context.enqueue([desc], [], [11], [22, 33], 44, 55)
    assert caplog.text.count("max_nonzero = 9") == 1, "logged once a context, kept every time"
    assert any_promise_broken()


def test_enqueue_s_error_reaches_the_caller_as_what_it_is(
    trt: Any, backend: RecordingBackend
) -> None:
    plugin = build_plugin(trt)
    plugin.on_shape_change([tensor_desc(trt.DataType.BOOL, (3,))], [])
    backend.error = KernelCompileError("no such card")
    with pytest.raises(KernelCompileError):
        plugin.enqueue([], [], [1], [2, 3], 4, 5)
    with pytest.raises(KernelCompileError, match="no such card"):
        callbacks.raise_recorded()
    callbacks.raise_recorded()  # once


def test_callbacks_that_must_not_raise_do_not_and_the_error_is_not_lost(
    trt: Any, backend: RecordingBackend
) -> None:
    plugin = build_plugin(trt)
    plugin.get_output_data_types([trt.DataType.FLOAT])
    backend.error = KernelCompileError("ptxas said no")
    context = plugin.attach_to_context(None)
    assert context is not plugin
    assert [entry.callback for entry in callbacks.take_recorded()] == ["attach_to_context"]
    with pytest.raises(KernelCompileError, match="ptxas"):
        context.on_shape_change([tensor_desc(trt.DataType.FLOAT, (3,))], [])
    assert context.clone().failure is backend.error


def test_a_workspace_that_cannot_be_computed_never_becomes_a_run(
    trt: Any, backend: RecordingBackend
) -> None:
    plugin = build_plugin(trt)
    unknown = dynamic_desc(trt.DataType.FLOAT, (-1,), (-1,), trt.TensorFormat.LINEAR)
    assert plugin.get_workspace_size([unknown], []) == 0
    with pytest.raises(ContractError, match="known extents"):
        callbacks.raise_recorded()
    with pytest.raises(ContractError, match="known extents"):
        plugin.on_shape_change([tensor_desc(trt.DataType.FLOAT, (3,))], [])


def test_serializing_without_an_input_type_is_recorded(trt: Any, backend: Any) -> None:
    plugin = build_plugin(trt)
    assert plugin.get_fields_to_serialize() is None
    with pytest.raises(ContractError, match="before TensorRT told its input type"):
        callbacks.raise_recorded()


def test_clone_and_capability_never_raise(trt: Any, backend: Any) -> None:
    plugin = build_plugin(trt)
    assert plugin.get_capability_interface(object()) is plugin
    del plugin.dtype  # whatever may be broken
    assert plugin.clone().config == plugin.config
    assert [entry.callback for entry in callbacks.take_recorded()] == ["clone"]


def test_a_missing_backend_package_is_an_error_at_build_time(
    trt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(backends._loaded, "cupy", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "nonzero_plugin.backends.cupy", raising=False)
    with pytest.raises(BackendUnavailableError, match=r"cupy.*pip install 'nonzero-rewrite\["):
        build_plugin(trt, backend=b"cupy\0")
    callbacks.take_recorded()


def test_unreadable_field_types_become_a_message(trt: Any, backend: Any) -> None:
    class Unreadable:
        name = "backend"
        type = trt.PluginFieldType.FLOAT16

        @property
        def data(self) -> Any:
            raise AttributeError("no conversion")

    creator = make_classes(trt).creator()
    with pytest.raises(ContractError, match="'backend' has type FLOAT16, not CHAR"):
        creator.create_plugin("nz", [Unreadable()], trt.TensorRTPhase.BUILD)
    callbacks.take_recorded()


def test_the_parser_is_asked_for_every_attribute_that_matters(trt: Any) -> None:
    names = {field.name for field in make_classes(trt).creator().field_names}
    assert names == set(fields.PARSER_FIELDS)


def test_errors_stay_with_their_thread() -> None:
    callbacks.take_recorded(any_thread=True)
    thread = threading.Thread(target=callbacks.record, args=("enqueue", ValueError("theirs")))
    thread.start()
    thread.join()
    callbacks.raise_recorded()
    assert [str(entry.error) for entry in callbacks.take_recorded(any_thread=True)] == ["theirs"]


def test_a_caller_that_never_looks_collects_a_bounded_number() -> None:
    for number in range(1000):
        callbacks.record("enqueue", ValueError(number))
    assert len(callbacks.take_recorded(any_thread=True)) <= 64
