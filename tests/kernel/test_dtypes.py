"""The table of element types against NumPy, ml_dtypes and ONNX themselves."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import ContractError


@pytest.mark.parametrize("dtype", DType)
def test_names_and_sizes_are_those_of_onnx_and_numpy(dtype: DType) -> None:
    assert onnx.TensorProto.DataType.Name(dtype.onnx) == dtype.name
    assert DType.from_onnx(dtype.onnx) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize
    assert onnx.helper.tensor_dtype_to_np_dtype(dtype.onnx) == dtype.numpy


@pytest.mark.parametrize("dtype", [d for d in DType if d.itemsize <= 2])
def test_the_mask_says_what_numpy_says_on_every_bit_pattern(dtype: DType) -> None:
    bits = 8 * dtype.itemsize
    words = np.arange(2 if dtype is DType.BOOL else 1 << bits).astype(f"u{dtype.itemsize}")
    masked = (words & words.dtype.type(dtype.magnitude_mask)) != 0
    assert np.array_equal(np.flatnonzero(masked), np.nonzero(words.view(dtype.numpy))[0])


@pytest.mark.parametrize("dtype", [d for d in DType if d.itemsize > 2])
def test_the_mask_says_what_numpy_says_on_the_odd_values(dtype: DType) -> None:
    bits = 8 * dtype.itemsize
    rng = np.random.default_rng(4)
    words = [0, 1, 1 << (bits - 1), (1 << (bits - 1)) | 1, (1 << bits) - 1, 0x7F80 << (bits - 16)]
    words += [int(w) for w in rng.integers(0, 1 << 63, 1000)]
    words += [1 << i for i in range(bits)]
    array = np.array([w % (1 << bits) for w in words], dtype=f"u{dtype.itemsize}")
    masked = (array & array.dtype.type(dtype.magnitude_mask)) != 0
    assert np.array_equal(np.flatnonzero(masked), np.nonzero(array.view(dtype.numpy))[0])


def test_tensorrt_names_find_their_types() -> None:
    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

    found = {name: DType.from_trt(Fake(name)) for name in ("FLOAT", "HALF", "BF16", "FP8", "BOOL")}
    assert found == {
        "FLOAT": DType.FLOAT,
        "HALF": DType.FLOAT16,
        "BF16": DType.BFLOAT16,
        "FP8": DType.FLOAT8E4M3FN,
        "BOOL": DType.BOOL,
    }
    with pytest.raises(ContractError, match=r"does not take TensorRT element type INT4; it takes"):
        DType.from_trt(Fake("INT4"))


def test_an_unknown_onnx_type_is_refused_by_number() -> None:
    with pytest.raises(ContractError, match="does not take ONNX element type 8; it takes FLOAT,"):
        DType.from_onnx(onnx.TensorProto.STRING)
