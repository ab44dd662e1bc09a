"""A FAKE TensorRT: enough names to drive the adapter's callbacks, and nothing of what they do.

It catches slips in signatures and returns on any machine. The real library is in the tests marked
``rtx``; a real device is in those marked ``gpu``.
"""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass, field
from typing import Any


def make_fake_tensorrt(name: str = "tensorrt", version: str = "10.9.0") -> Any:
    """A new module-like fake, with a registry of its own."""
    trt = types.ModuleType(name)
    trt.__version__ = version  # type: ignore[attr-defined]
    for base in ("IPluginV3", "IPluginV3OneCore", "IPluginV3OneBuild", "IPluginV3OneRuntime"):
        setattr(trt, base, type(base, (), {}))
    trt.IPluginCreatorV3One = type("IPluginCreatorV3One", (), {})
    trt.INetworkDefinition = type("INetworkDefinition", (), {})
    trt.DataType = enum.Enum("DataType", "FLOAT HALF BF16 INT8 INT32 INT64 BOOL UINT8 FP8 INT4")
    trt.TensorFormat = enum.Enum("TensorFormat", "LINEAR HWC")
    trt.TensorRTPhase = enum.Enum("TensorRTPhase", "BUILD RUNTIME")
    trt.PluginFieldType = enum.Enum("PluginFieldType", "INT32 INT64 CHAR FLOAT16 FLOAT32")
    trt.PluginField = _Field
    trt.PluginFieldCollection = list
    trt.DimensionOperation = enum.Enum("DimensionOperation", "PROD MIN MAX FLOOR_DIV")
    trt.DimsExprs = lambda length: [None] * length
    trt.registry = _Registry()
    trt.get_plugin_registry = lambda: trt.registry
    return trt


@dataclass
class _Field:
    name: str
    data: Any
    type: Any


@dataclass
class _Registry:
    all_creators: list[Any] = field(default_factory=list)
    refuse: str = ""

    def register_creator(self, creator: Any, namespace: str) -> bool:
        assert creator.plugin_namespace == namespace, "TensorRT would never find it again"
        if creator.name == self.refuse:
            return False
        self.all_creators.append(creator)
        return True

    def deregister_creator(self, creator: Any) -> bool:
        self.all_creators.remove(creator)
        return True


class FakeExprBuilder:
    """Expressions as text."""

    def constant(self, value: int) -> str:
        return str(value)

    def operation(self, op: Any, left: str, right: str) -> str:
        return f"{op.name}({left},{right})"

    def declare_size_tensor(self, output: int, opt: str, upper: str) -> str:
        return f"size#{output}(opt={opt},upper={upper})"


def tensor_desc(dtype: Any, dims: tuple[int, ...], fmt: Any = None) -> Any:
    """A PluginTensorDesc."""
    return types.SimpleNamespace(type=dtype, dims=dims, format=fmt)


def dynamic_desc(dtype: Any, dims: tuple[int, ...], largest: tuple[int, ...], fmt: Any) -> Any:
    """A DynamicPluginTensorDesc."""
    return types.SimpleNamespace(
        desc=tensor_desc(dtype, dims, fmt), min=dims, opt=dims, max=largest
    )
