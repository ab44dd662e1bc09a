"""Sizes to try for dynamic dims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nonzero_rewrite.input_specs import ModelSpec

_AXIS_SIZES = (
    (6, 9, 7, 5, 4, 3, 2, 2),
    (16, 24, 32, 8, 4, 2, 2, 2),
    (1, 8, 40, 56, 8, 2, 2, 2),
    (1, 3, 64, 96, 8, 2, 2, 2),
    (1, 3, 224, 256, 8, 2, 2, 2),
    (1, 3, 640, 640, 8, 2, 2, 2),
    (2, 2, 2, 2, 2, 2, 2, 2),
    (4, 4, 4, 4, 4, 4, 4, 4),
    (8, 8, 8, 8, 8, 8, 8, 8),
    (32,) * 8,
    (128,) * 8,
    (512,) * 8,
    (1,) * 8,
)


def sizings(spec: ModelSpec, known: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes to try for the dynamic dims: by axis first, then one for each symbol, then equal."""
    axis_of: dict[str, int] = {}
    for item in spec.inputs:
        for axis, dim in enumerate(item.dims or ()):
            if isinstance(dim, str):
                axis_of.setdefault(dim, min(axis, 7))
    if known:
        yield {symbol: known.get(symbol, 1) for symbol in axis_of}
    seen: list[dict[str, int]] = []
    by_axis = [{s: sizes[axis] for s, axis in axis_of.items()} for sizes in _AXIS_SIZES]
    by_symbol = {symbol: 5 + position for position, symbol in enumerate(axis_of)}
    for sizes in (by_axis[0], by_symbol, *by_axis[1:]):
        if sizes not in seen:
            seen.append(sizes)
            yield sizes
