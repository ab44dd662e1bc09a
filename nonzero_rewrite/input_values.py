"""Distributions to draw input values from, by type.

Each draws an array of a given shape from a generator. The first entries of a list are the plain
ones; later entries exist to reach what those miss: thresholds, ties, sparse and one-sided data,
and the values on which "non-zero" is decided (0.0, -0.0, NaN, subnormals).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from nonzero_rewrite.errors import VerificationError
from nonzero_rewrite.input_specs import InputSpec, ModelSpec, resolve

Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], np.ndarray]

_UNKNOWN_RANK_DIMS = (2, 3)
_WORDS = ("a", "b", "the", "zero", "")


def draws_for(spec: InputSpec, model: ModelSpec, sizes: Mapping[str, int]) -> list[Draw]:
    """The distributions for one input, most ordinary first."""
    if spec.elem_type == onnx.TensorProto.STRING:
        return _strings(model)
    dtype = numpy_dtype(spec.elem_type)
    if dtype == np.bool_:
        return _bools()
    if dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2"):
        limit = resolve(spec.limit, sizes) if spec.limit is not None else None
        return [_cast(draw, dtype) for draw in _ints(model, limit, dtype.kind == "u")]
    return [_cast(draw, dtype) for draw in _floats(model)]


def special_draw(spec: InputSpec, turn: int) -> Draw | None:
    """Values on which "non-zero" is decided, for float inputs; others on each ``turn``."""
    if spec.elem_type == onnx.TensorProto.STRING:
        return None
    dtype = numpy_dtype(spec.elem_type)
    if dtype.kind in "biuc":
        return None
    tiny = float_info(dtype).smallest_subnormal
    values = np.array([-0.0, float("nan"), tiny, 1.0, -tiny, 0.0, -1.0])

    def draw(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        items = np.resize(np.roll(values, -turn), int(np.prod(shape, dtype=np.int64)))
        return np.asarray(rng.permutation(items).reshape(shape))

    return _cast(draw, dtype)


def make_value(spec: InputSpec, draw: Draw, sizes: Mapping[str, int], seed: list[int]) -> Any:
    """A value of the input's kind: an array, or a list of two for a sequence."""
    rng = np.random.default_rng(seed)
    dims = spec.dims if spec.dims is not None else _UNKNOWN_RANK_DIMS
    shape = tuple(resolve(dim, sizes) for dim in dims)
    if spec.kind == "sequence":
        return [np.asarray(draw(rng, shape)), np.asarray(draw(rng, shape))]
    return np.asarray(draw(rng, shape))


def numpy_dtype(elem_type: int) -> np.dtype[Any]:
    """The NumPy (or ml_dtypes) type of an ONNX element type."""
    if elem_type == onnx.TensorProto.BFLOAT16:
        bfloat16: np.dtype[Any] = np.dtype(_ml_dtypes().bfloat16)  # older onnx says float32
        return bfloat16
    dtype: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    return dtype


@dataclass(frozen=True)
class FloatInfo:
    """Smallest normal and smallest subnormal number of a float type."""

    smallest_normal: float
    smallest_subnormal: float


def float_info(dtype: np.dtype[Any]) -> FloatInfo:
    """Of NumPy's and ml_dtypes' float types."""
    finfo = np.finfo if dtype.kind == "f" else _ml_dtypes().finfo
    info = finfo(dtype)
    return FloatInfo(float(info.tiny), float(info.smallest_subnormal))


def _ml_dtypes() -> Any:
    try:
        import ml_dtypes
    except ImportError as err:
        raise VerificationError(
            "a model with BFLOAT16 or FLOAT8 inputs needs ml_dtypes; pip install ml_dtypes"
        ) from err
    return ml_dtypes


def _cast(draw: Draw, dtype: np.dtype[Any]) -> Draw:
    def cast(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(draw(rng, shape)).astype(dtype)

    return cast


def _floats(model: ModelSpec) -> list[Draw]:
    thresholds = np.array(model.floats or (0.5,))

    def beyond(rng: np.random.Generator, shape: Shape, sign: int) -> np.ndarray:
        """On one side of one threshold."""
        bound = rng.choice(thresholds)
        return np.asarray(bound + sign * rng.random(shape) * (abs(bound) + 1))

    return [
        lambda rng, shape: rng.standard_normal(shape),
        lambda rng, shape: rng.random(shape),
        lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.4),
        lambda rng, shape: np.zeros(shape),
        lambda rng, shape: np.ones(shape),
        lambda rng, shape: rng.standard_normal(shape) * 10,
        lambda rng, shape: -np.abs(rng.standard_normal(shape)) * 10,
        lambda rng, shape: np.abs(rng.standard_normal(shape)) * 10,
        lambda rng, shape: rng.standard_normal(shape) * 0.1,
        lambda rng, shape: (
            rng.choice(thresholds, shape) + rng.choice(np.array([-1e-3, 0.0, 1e-3]), shape)
        ),
        lambda rng, shape: beyond(rng, shape, 1),
        lambda rng, shape: beyond(rng, shape, -1),
        lambda rng, shape: beyond(rng, shape, 1) * (rng.random(shape) < 0.5),
        lambda rng, shape: np.full(shape, rng.choice(thresholds)),
        lambda rng, shape: rng.random(shape) < 0.5,
        lambda rng, shape: rng.standard_normal(shape) * 100,
        lambda rng, shape: np.sort(rng.standard_normal(shape).reshape(-1)).reshape(shape),
        lambda rng, shape: rng.standard_t(1.5, shape),
        lambda rng, shape: rng.random(shape) * 100,
        lambda rng, shape: np.full(shape, rng.standard_normal() * 3),
        lambda rng, shape: _few(rng, shape, 3),
        lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3),
        lambda rng, shape: rng.standard_normal(shape) + rng.standard_normal() * 5,
    ]


def _bools() -> list[Draw]:
    return [
        lambda rng, shape: rng.random(shape) < 0.5,
        lambda rng, shape: rng.random(shape) < 0.25,
        lambda rng, shape: rng.random(shape) < 0.8,
        lambda rng, shape: np.zeros(shape, dtype=bool),
        lambda rng, shape: np.ones(shape, dtype=bool),
        lambda rng, shape: _few(rng, shape, 2) != 0,
        lambda rng, shape: _few(rng, shape, 1) != 0,
        lambda rng, shape: _few(rng, shape, 3) != 0,
        lambda rng, shape: rng.random(shape) < rng.random(),
    ]


def _ints(model: ModelSpec, limit: int | None, unsigned: bool) -> list[Draw]:
    def fit(values: np.ndarray) -> np.ndarray:
        if limit is not None:
            return np.asarray(np.clip(values, 0, max(limit - 1, 0)))
        return np.asarray(np.abs(values)) if unsigned else values

    telling = fit(np.array(model.ints or (0, 1), dtype=np.int64))
    top = limit if limit is not None else 6

    def some(rng: np.random.Generator, shape: Shape, share: float) -> np.ndarray:
        plain = rng.integers(0, max(top, 1), shape)
        return np.where(rng.random(shape) < share, rng.choice(telling, shape), plain)

    return [
        lambda rng, shape: rng.integers(0, max(top, 1), shape),
        lambda rng, shape: some(rng, shape, 0.3),
        lambda rng, shape: fit(rng.integers(0, 2, shape)),
        lambda rng, shape: np.zeros(shape, dtype=np.int64),
        lambda rng, shape: fit(np.ones(shape, dtype=np.int64)),
        lambda rng, shape: some(rng, shape, 0.7),
        lambda rng, shape: np.broadcast_to(rng.choice(telling), shape),
        lambda rng, shape: np.full(shape, max(top - 1, 0)),
        lambda rng, shape: fit(rng.integers(-3, 4, shape) * (rng.random(shape) < 0.5)),
        lambda rng, shape: fit(_few(rng, shape, 2).astype(np.int64)),
        lambda rng, shape: fit(rng.integers(-100, 100, shape)),
        lambda rng, shape: some(rng, shape, rng.random()),
        lambda rng, shape: _one_in_each_row(rng, rng.integers(0, max(top, 1), shape), telling),
        lambda rng, shape: rng.integers(0, rng.integers(1, max(top, 1) + 1), shape),
    ]


def _strings(model: ModelSpec) -> list[Draw]:
    words = np.array(model.strings or _WORDS, dtype=object)
    return [
        lambda rng, shape: rng.choice(words, shape).astype(object),
        lambda rng, shape: np.full(shape, rng.choice(words), dtype=object),
    ]


def _few(rng: np.random.Generator, shape: Shape, count: int) -> np.ndarray:
    """Zeros with ``count`` items of other values at random places."""
    flat = np.zeros(int(np.prod(shape, dtype=np.int64)))
    places = rng.permutation(flat.size)[:count]
    flat[places] = rng.integers(1, 5, places.size)
    return np.asarray(flat.reshape(shape))


def _one_in_each_row(
    rng: np.random.Generator, plain: np.ndarray, telling: np.ndarray
) -> np.ndarray:
    """``plain`` without telling values, then one such value at a random place of each row.

    Pooling at an end-of-sequence token asks for just that.
    """
    if plain.ndim == 0 or plain.size == 0:
        return plain
    others = np.setdiff1d(plain, telling)
    rows = np.where(np.isin(plain, telling), others[0] if others.size else 0, plain)
    rows = rows.reshape(-1, plain.shape[-1])
    places = rng.integers(0, plain.shape[-1], rows.shape[0])
    rows[np.arange(rows.shape[0]), places] = rng.choice(telling)
    return np.asarray(rows.reshape(plain.shape))
