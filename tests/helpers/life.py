"""The calls TensorRT makes on a plugin, in its order, with real classes of one of its modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from nonzero_plugin import callbacks
from nonzero_plugin.dtypes import DType
from nonzero_plugin.registry import OURS, registered


def fields(trt: Any, **attributes: Any) -> Any:
    """Node attributes as TensorRT's ONNX parser passes them."""
    values: dict[str, Any] = {"backend": "cuda_python", "perm": [0, 1], **attributes}
    listed, kept = [], []
    for name, value in values.items():
        text = isinstance(value, str)
        data = (
            np.frombuffer(value.encode() + b"\0", np.int8)
            if text
            else np.array(value, np.int32).ravel()
        )
        kept.append(data)
        kind = trt.PluginFieldType.CHAR if text else trt.PluginFieldType.INT32
        listed.append(trt.PluginField(name, data, kind))
    return trt.PluginFieldCollection(listed), kept


def desc(trt: Any, dtype: Any, dims: tuple[int, ...]) -> Any:
    item = trt.PluginTensorDesc()
    item.dims, item.type = dims, dtype
    return item


def dynamic(trt: Any, dtype: Any, dims: tuple[int, ...]) -> Any:
    item = trt.DynamicPluginTensorDesc()
    item.desc = desc(trt, dtype, dims)
    item.min = item.opt = item.max = dims
    return item


def through_an_engine(
    trt: Any,
    dtype: DType,
    dims: tuple[int, ...],
    *,
    between: Callable[[], None] = lambda: None,
    **attributes: Any,
) -> Any:
    """Built, serialized, and made again by the runtime; with the workspace it asked for."""
    creator = registered(trt)[OURS]
    given, kept = fields(trt, **attributes)
    parsed = creator.create_plugin("nz", given, trt.TensorRTPhase.BUILD)
    trt_type = getattr(trt.DataType, str(dtype.trt_name))
    parsed.get_output_data_types([trt_type])
    built = parsed.clone().clone().attach_to_context(None)
    inputs = [dynamic(trt, trt_type, dims)]
    outputs = [dynamic(trt, trt.DataType.INT64, (2, -1)), dynamic(trt, trt.DataType.INT64, ())]
    built.configure_plugin(inputs, outputs)
    workspace = built.get_workspace_size(inputs, outputs)
    stored = built.get_fields_to_serialize()
    between()
    loaded = creator.create_plugin("nz", stored, trt.TensorRTPhase.RUNTIME)
    assert loaded.config == parsed.config and loaded.dtype is dtype and len(kept) > 1
    callbacks.raise_recorded()
    return loaded, workspace
