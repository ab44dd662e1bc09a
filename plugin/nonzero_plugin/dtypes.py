"""The element types NonZero takes, and what the kernel needs to know about each.

The kernel never does arithmetic on an element: it is non-zero when ``word & magnitude_mask`` is.
The mask drops the sign bit of the formats that have a negative zero, so -0.0 counts as zero while
NaN, infinities and subnormals do not, whatever the compiler does with denormals (ONNX NonZero-13,
``numpy.nonzero``).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from nonzero_plugin.errors import ContractError

if TYPE_CHECKING:
    import numpy as np


class DType(Enum):
    """One element type; the member's name is the ONNX one.

    Attributes:
        onnx: the ``onnx.TensorProto.DataType`` value.
        itemsize: bytes an element, 1, 2, 4 or 8.
        magnitude_mask: bits of the word that make an element non-zero.
        trt_name: the member of ``tensorrt.DataType`` that carries it, or None.
        numpy_name: the NumPy scalar type's name; those NumPy lacks come from ``ml_dtypes``.
    """

    #               onnx, bytes, magnitude mask,      TensorRT, NumPy
    FLOAT = (1, 4, 0x7FFF_FFFF, "FLOAT", "float32")
    UINT8 = (2, 1, 0xFF, "UINT8", "uint8")
    INT8 = (3, 1, 0xFF, "INT8", "int8")
    UINT16 = (4, 2, 0xFFFF, None, "uint16")
    INT16 = (5, 2, 0xFFFF, None, "int16")
    INT32 = (6, 4, 0xFFFF_FFFF, "INT32", "int32")
    INT64 = (7, 8, 0xFFFF_FFFF_FFFF_FFFF, "INT64", "int64")
    BOOL = (9, 1, 0xFF, "BOOL", "bool")
    FLOAT16 = (10, 2, 0x7FFF, "HALF", "float16")
    DOUBLE = (11, 8, 0x7FFF_FFFF_FFFF_FFFF, None, "float64")
    UINT32 = (12, 4, 0xFFFF_FFFF, None, "uint32")
    UINT64 = (13, 8, 0xFFFF_FFFF_FFFF_FFFF, None, "uint64")
    COMPLEX64 = (14, 8, 0x7FFF_FFFF_7FFF_FFFF, None, "complex64")
    BFLOAT16 = (16, 2, 0x7FFF, "BF16", "bfloat16")
    FLOAT8E4M3FN = (17, 1, 0x7F, "FP8", "float8_e4m3fn")
    FLOAT8E4M3FNUZ = (18, 1, 0xFF, None, "float8_e4m3fnuz")  # 0x80 is its NaN: no negative zero
    FLOAT8E5M2 = (19, 1, 0x7F, None, "float8_e5m2")
    FLOAT8E5M2FNUZ = (20, 1, 0xFF, None, "float8_e5m2fnuz")  # likewise

    def __init__(
        self, onnx: int, itemsize: int, magnitude_mask: int, trt_name: str | None, numpy_name: str
    ) -> None:
        self.onnx = onnx
        self.itemsize = itemsize
        self.magnitude_mask = magnitude_mask
        self.trt_name = trt_name
        self.numpy_name = numpy_name

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; ``ml_dtypes``' own for bfloat16 and the 8-bit floats."""
        import numpy as np

        if self.numpy_name.startswith(("bfloat", "float8")):
            import ml_dtypes

            extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.numpy_name))
            return extended
        return np.dtype(self.numpy_name)

    @classmethod
    def from_onnx(cls, onnx: int) -> DType:
        """The type with that ``onnx.TensorProto.DataType`` value.

        Raises:
            ContractError: for a type NonZeroPlugin does not take.
        """
        for member in cls:
            if member.onnx == onnx:
                return member
        raise ContractError(
            f"NonZeroPlugin does not take ONNX element type {onnx}; it takes "
            + ", ".join(member.name for member in cls)
        )

    @classmethod
    def from_trt(cls, trt_dtype: Any) -> DType:
        """The type that a ``tensorrt.DataType`` (or ``tensorrt_rtx.DataType``) member carries.

        Raises:
            ContractError: for a type NonZeroPlugin does not take (INT4, FP4, E8M0).
        """
        name = getattr(trt_dtype, "name", str(trt_dtype))
        for member in cls:
            if member.trt_name == name:
                return member
        raise ContractError(
            f"NonZeroPlugin does not take TensorRT element type {name}; it takes "
            + ", ".join(member.trt_name for member in cls if member.trt_name)
        )
