"""IPluginV3 and its creators: callbacks that delegate, made for one TensorRT module.

``tensorrt``, ``tensorrt_rtx`` and ``tensorrt_lean`` have types that do not mix, so the classes come
from :func:`make_classes`. Importing this module imports no TensorRT.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from nonzero_plugin import fields
from nonzero_plugin.callbacks import never_raises, record, reported
from nonzero_plugin.contract import (
    INDEX_INT64,
    PLUGIN_NAME,
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
    NonZeroConfig,
)
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import BackendUnavailableError, ContractError
from nonzero_plugin.promise import PromiseWatch
from nonzero_plugin.shapes import ExprAlgebra, output_dims

UNPATCHED_NAME = "NonZero"
"""What the ONNX importer of TensorRT for RTX (1.6 on) asks the registry for, with version 1 and
the empty namespace, when it meets an ONNX NonZero."""


@dataclass(frozen=True)
class PluginClasses:
    """The classes of one TensorRT module."""

    plugin: type[Any]
    creator: type[Any]
    unpatched_creator: type[Any]


def writer() -> str:
    """Name and version of this package, as stored in engines."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"nonzero-rewrite {version('nonzero-rewrite')}"
    except PackageNotFoundError:
        return "nonzero-rewrite (not installed)"


@functools.cache
def make_classes(trt: Any) -> PluginClasses:
    """The plugin and creator classes for ``trt``; the same ones each time."""

    class NonZeroPlugin(
        trt.IPluginV3,  # type: ignore[misc]
        trt.IPluginV3OneCore,  # type: ignore[misc]
        trt.IPluginV3OneBuild,  # type: ignore[misc]
        trt.IPluginV3OneRuntime,  # type: ignore[misc]
    ):
        """One node, or one node in one execution context."""

        def __init__(self, config: NonZeroConfig, node: str, dtype: Any = None) -> None:
            trt.IPluginV3.__init__(self)
            trt.IPluginV3OneCore.__init__(self)
            trt.IPluginV3OneBuild.__init__(self)
            trt.IPluginV3OneRuntime.__init__(self)
            self.num_outputs = 2
            self.plugin_name = PLUGIN_NAME
            self.plugin_version = PLUGIN_VERSION
            self.plugin_namespace = PLUGIN_NAMESPACE
            self.timing_cache_id = _timing_cache_id(config)
            self.config = config
            self.node = node  # for messages
            self.dtype = dtype
            self.launch: Any = _unprepared
            self.promise: PromiseWatch | None = None
            self.failure: Exception | None = None  # of a callback that could not raise it
            self.serialized: Any = None  # the fields and their arrays, which TensorRT borrows

        @never_raises(lambda self: self)
        def get_capability_interface(self, type: Any) -> Any:
            """This object serves all three capabilities."""
            return self

        @never_raises(lambda self: NonZeroPlugin(self.config, self.node))
        def clone(self) -> Any:
            """A new plugin of the same settings; per-context state stays here."""
            new = NonZeroPlugin(self.config, self.node, self.dtype)
            new.failure = self.failure
            return new

        @reported
        def get_output_data_types(self, input_types: list[Any]) -> list[Any]:
            """Types of indices and count."""
            self.dtype = DType.from_trt(input_types[0])
            return [_index_type(trt, self.config), trt.DataType.INT64]

        @reported
        def get_output_shapes(self, inputs: Any, shape_inputs: Any, expr_builder: Any) -> list[Any]:
            """Shapes of indices and count; the count is the size tensor."""
            dims = [inputs[0][axis] for axis in range(len(inputs[0]))]
            shapes = output_dims(dims, self.config, ExprAlgebra(trt, expr_builder))
            return [_dims_exprs(trt, shape) for shape in shapes]

        @reported
        def supports_format_combination(self, pos: int, in_out: Any, num_inputs: int) -> bool:
            """Linear tensors of the network's own types: no conversion may precede NonZero."""
            desc = in_out[pos].desc
            wanted = (
                getattr(trt.DataType, self.dtype.trt_name),
                _index_type(trt, self.config),
                trt.DataType.INT64,
            )[pos]
            return bool(desc.format == trt.TensorFormat.LINEAR and desc.type == wanted)

        @reported
        def configure_plugin(self, inp: Any, out: Any) -> None:
            """Compiles the kernel, where there is a device to compile it for."""
            self.dtype = DType.from_trt(inp[0].desc.type)
            _backend(self.config).compile(self.dtype, self.config)

        @never_raises(lambda self: [])
        def get_valid_tactics(self) -> list[int]:
            """One way to do it: the default tactic."""
            return []

        @never_raises(lambda self: None)
        def set_tactic(self, tactic: int) -> None:
            """Only the default tactic exists."""

        @never_raises(lambda self: 0)
        def get_workspace_size(self, inp: Any, out: Any) -> int:
            """Bytes for the largest input of the profile."""
            from nonzero_plugin.launch import workspace_bytes

            try:
                return workspace_bytes(
                    tuple(inp[0].max), DType.from_trt(inp[0].desc.type), self.config
                )
            except Exception as error:
                # TensorRT takes 0 for an answer and would overrun: on_shape_change raises it.
                self.failure = error
                raise

        @never_raises(lambda self: None)
        def get_fields_to_serialize(self) -> Any:
            """Everything the runtime needs to make this plugin again."""
            if self.dtype is None:
                raise ContractError("the plugin was serialized before TensorRT told its input type")
            stored = fields.to_fields(self.config, self.dtype.onnx, writer())
            collection = trt.PluginFieldCollection([_to_trt(trt, field) for field in stored])
            self.serialized = (collection, stored)
            return collection

        @never_raises(lambda self: self.clone())
        def attach_to_context(self, resource_context: Any) -> Any:
            """A plugin of the context's own, its kernel compiled before the first run."""
            new = self.clone()
            if new.dtype is not None and new.failure is None:
                try:
                    _backend(new.config).compile(new.dtype, new.config)
                except Exception as error:
                    new.failure = error  # this callback must not raise: on_shape_change does
                    record("attach_to_context", error, self.node)
            return new

        @reported
        def on_shape_change(self, inp: Any, out: Any) -> None:
            """Prepares everything a launch on these shapes needs."""
            if self.failure is not None:
                raise self.failure
            self.dtype = DType.from_trt(inp[0].type)
            self.launch = _prepare(tuple(inp[0].dims), self.dtype, self.config)
            if self.config.max_nonzero is not None and self.launch is not _unprepared:
                self.promise = self.promise or PromiseWatch(self.node, self.config.max_nonzero)
                self.promise.watch(self.launch)

        @reported
        def enqueue(
            self,
            input_desc: Any,
            output_desc: Any,
            inputs: list[int],
            outputs: list[int],
            workspace: int,
            stream: int,
        ) -> None:
            """Launches; a promise that an earlier run broke is logged, once a context."""
            if self.promise is not None:
                self.promise.look()
            self.launch(inputs[0], outputs[0], outputs[1], workspace, stream)

    class NonZeroCreator(trt.IPluginCreatorV3One):  # type: ignore[misc]
        """Makes the plugin for a ``NonZeroPlugin`` node or an engine's layer."""

        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name = PLUGIN_NAME
            self.plugin_version = PLUGIN_VERSION
            self.plugin_namespace = PLUGIN_NAMESPACE
            self.field_names = trt.PluginFieldCollection(
                [
                    trt.PluginField(name, np.array([]), getattr(trt.PluginFieldType, type_name))
                    for name, type_name in fields.PARSER_FIELDS.items()
                ]
            )

        @reported
        def create_plugin(self, name: str, field_collection: Any, phase: Any) -> Any:
            """The plugin of the node (BUILD) or layer (RUNTIME) ``name``."""
            given = [_from_trt(field) for field in field_collection]
            if phase == trt.TensorRTPhase.RUNTIME:
                config, input_type = fields.from_engine_fields(given, name)
                return NonZeroPlugin(config, name, DType.from_onnx(input_type))
            config = fields.from_parser_fields(given, name)
            _require_backend(config, name)
            return NonZeroPlugin(config, name)

    class UnpatchedCreator(trt.IPluginCreatorV3One):  # type: ignore[misc]
        """Serves TensorRT for RTX's importer of plain ONNX NonZero, which passes no fields.

        The plugin it makes names itself like the others, so an engine needs only that creator.
        """

        def __init__(self, backend: str) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name = UNPATCHED_NAME
            self.plugin_version = "1"
            self.plugin_namespace = ""
            self.field_names = trt.PluginFieldCollection([])
            self.config = NonZeroConfig(backend=backend)

        @reported
        def create_plugin(self, name: str, field_collection: Any, phase: Any) -> Any:
            """The plugin of the ONNX node ``name``, in NonZero's own layout."""
            _require_backend(self.config, name)
            return NonZeroPlugin(self.config, name)

    return PluginClasses(NonZeroPlugin, NonZeroCreator, UnpatchedCreator)


def _timing_cache_id(config: NonZeroConfig) -> str:
    maximum = "all" if config.max_nonzero is None else config.max_nonzero
    return f"{config.backend};{config.perm[0]}{config.perm[1]};{config.index_type};{maximum}"


def _backend(config: NonZeroConfig) -> Any:
    from nonzero_plugin.backends import get_backend

    return get_backend(config.backend)


def _prepare(dims: tuple[int, ...], dtype: Any, config: NonZeroConfig) -> Any:
    """The launch for a shape; while building, an extent that data decides may still be -1."""
    if any(extent < 0 for extent in dims):
        return _unprepared
    return _backend(config).prepare(dims, dtype, config)


def _unprepared(*pointers: int) -> None:
    raise ContractError("TensorRT ran the plugin before it told the input's shape")


def _require_backend(config: NonZeroConfig, node: str) -> None:
    """A missing package is known before anything is built."""
    try:
        _backend(config)
    except BackendUnavailableError as error:
        raise BackendUnavailableError(f"node {node!r}: {error}") from error


def _index_type(trt: Any, config: NonZeroConfig) -> Any:
    return trt.DataType.INT64 if config.index_type == INDEX_INT64 else trt.DataType.INT32


def _dims_exprs(trt: Any, dims: tuple[Any, ...]) -> Any:
    result = trt.DimsExprs(len(dims))
    for axis, dim in enumerate(dims):
        result[axis] = dim
    return result


def _to_trt(trt: Any, field: fields.Field) -> Any:
    return trt.PluginField(field.name, field.data, getattr(trt.PluginFieldType, field.type))


def _from_trt(field: Any) -> fields.Field:
    try:
        data = np.array(field.data)
    except AttributeError:  # a type the bindings cannot read
        data = None
    return fields.Field(field.name, field.type.name, data)
