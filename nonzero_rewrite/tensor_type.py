"""What is known of a tensor: its element type and its shape, as far as a model says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, TypeProto, ValueInfoProto, numpy_helper

Dim = int | str | None
"""A dimension: its size, its symbol, or None where nothing is known."""

OWN_SYMBOL = "?"
"""How symbols start that one run of inference made up: equal ones are equal within that run only,
and none may reach a file, where another dimension may be called the same."""

MAX_FOLDED_ITEMS = 1 << 16
"""Constants beyond this many items are not folded: a model file is no place for index tables."""

_SMALL_ITEMS = 4096
"""Constants up to this size travel into inference: shapes and axes do, weights do not."""


@dataclass(frozen=True)
class TensorType:
    """What is known of a tensor: ONNX element type (0 = unknown) and dims (None = unknown rank)."""

    elem_type: int = 0
    dims: tuple[Dim, ...] | None = None

    @property
    def rank(self) -> int | None:
        """Number of dimensions, or None."""
        return None if self.dims is None else len(self.dims)

    @property
    def is_complete(self) -> bool:
        """True when the element type and the rank are known."""
        return bool(self.elem_type) and self.dims is not None

    @property
    def dtype_name(self) -> str:
        """The ONNX name of the element type, ``"?"`` where unknown."""
        try:
            return TensorProto.DataType.Name(self.elem_type) if self.elem_type else "?"
        except ValueError:
            return f"type {self.elem_type}"

    def __str__(self) -> str:
        if self.dims is None:
            return f"{self.dtype_name} of unknown rank"
        return f"{self.dtype_name}[{', '.join('?' if d is None else str(d) for d in self.dims)}]"


UNKNOWN = TensorType()


def declared_dims(dims: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    """``dims`` as a file or a report may show them: without the symbols that inference made up."""
    if dims is None:
        return None
    return tuple(None if isinstance(d, str) and d.startswith(OWN_SYMBOL) else d for d in dims)


def tensor_type(proto: TypeProto) -> TensorType:
    """The ``TensorType`` of an ONNX type; a sequence, map or sparse tensor counts as unknown."""
    if not proto.HasField("tensor_type"):
        return UNKNOWN
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return TensorType(tensor.elem_type)
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            symbol = dim.dim_param
            dims.append(symbol if symbol and isinstance(symbol, str) else None)  # bytes: not UTF-8
    return TensorType(tensor.elem_type, tuple(dims))


def value_info(name: str, of: TensorType) -> ValueInfoProto:
    """The protobuf form of a ``TensorType``."""
    proto = ValueInfoProto(name=name)
    proto.type.tensor_type.elem_type = of.elem_type
    dims = declared_dims(of.dims)
    if dims is not None:
        shape = proto.type.tensor_type.shape
        shape.SetInParent()
        for dim in dims:
            entry = shape.dim.add()
            if isinstance(dim, str):
                entry.dim_param = dim
            elif dim is not None:
                entry.dim_value = dim
    return proto


def tensor_items(tensor: TensorProto) -> int:
    """Number of items by the tensor's dims; never touches the data, be it large or absent."""
    items = 1
    for dim in tensor.dims:
        items *= max(int(dim), 0)
    return items


def array_of(tensor: TensorProto) -> NDArray[np.generic] | None:
    """The data of an embedded tensor of at most 65536 items, None for others and broken ones."""
    external = tensor.data_location == TensorProto.EXTERNAL
    if external or tensor_items(tensor) > MAX_FOLDED_ITEMS:
        return None
    try:
        return numpy_helper.to_array(tensor)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # data that does not fit its dims
        return None


def is_small(tensor: TensorProto) -> bool:
    """True for an embedded tensor of up to 4096 items, which may say a shape or an axis."""
    return tensor.data_location != TensorProto.EXTERNAL and tensor_items(tensor) <= _SMALL_ITEMS


def merge(one: TensorType, other: TensorType) -> TensorType:
    """What both say together; where they disagree, ``one``."""
    if one.dims is None or other.dims is None or len(one.dims) != len(other.dims):
        return TensorType(
            one.elem_type or other.elem_type, one.dims if one.dims is not None else other.dims
        )
    dims = tuple(
        b if a is None or (isinstance(a, str) and isinstance(b, int)) else a
        for a, b in zip(one.dims, other.dims, strict=True)
    )
    return TensorType(one.elem_type or other.elem_type, dims)
