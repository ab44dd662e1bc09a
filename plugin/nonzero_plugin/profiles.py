"""Shapes for dynamic dimensions: what the user writes, what the network needs, what is assumed.

    images=1x3x320x320:4x3x640x640:8x3x1280x1280;mask=1:400:1600

is one optimization profile: minimum, optimum and maximum per input; one shape stands for all three.
Polygraphy's spelling ``images:[1,3,320,320]`` is read by :func:`parse_polygraphy_shapes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nonzero_plugin.errors import ContractError

Shape = tuple[int, ...]

_SHAPE = re.compile(r"\[?\s*(\d+(?:\s*[x,]\s*\d+)*)?\s*\]?", re.IGNORECASE)
_POLYGRAPHY = re.compile(r"(?P<name>\S+?):\[(?P<dims>[\d,\s]*)\]")


class ProfileError(ContractError):
    """A profile is misspelled or does not fit the network's inputs."""


@dataclass(frozen=True)
class ShapeRange:
    """Smallest, tuned-for and largest shape of one input (values, for a shape tensor input)."""

    min: Shape
    opt: Shape
    max: Shape

    def __post_init__(self) -> None:
        if not len(self.min) == len(self.opt) == len(self.max):
            raise ProfileError(f"{self} mixes ranks")
        if any(not low <= mid <= high for low, mid, high in zip(*self, strict=True)):
            raise ProfileError(f"{self} is not in the order minimum, optimum, maximum")

    def __iter__(self) -> Iterator[Shape]:
        return iter((self.min, self.opt, self.max))

    def __str__(self) -> str:
        texts = ["x".join(map(str, shape)) or "scalar" for shape in self]
        return texts[0] if len(set(texts)) == 1 else ":".join(texts)


Profile = Mapping[str, ShapeRange]


@dataclass(frozen=True)
class NetworkInput:
    """One input as TensorRT sees it: ``dims`` has -1 where the size is dynamic.

    ``symbols`` are the model's names for the dimensions ('' where it has none); dimensions of one
    name get one size.
    """

    name: str
    dims: Shape
    symbols: tuple[str, ...] = ()
    is_shape_tensor: bool = False

    @property
    def dynamic(self) -> bool:
        """True when a profile has to say something about it."""
        return self.is_shape_tensor or -1 in self.dims


def format_profile(profile: Profile) -> str:
    """The profile in the spelling that :func:`parse_profile` reads."""
    return ";".join(f"{name}={shapes}" for name, shapes in profile.items())


def parse_profile(text: str) -> dict[str, ShapeRange]:
    """Reads ``name=MIN:OPT:MAX;name=SHAPE``.

    Raises:
        ProfileError: with the part that cannot be read.
    """
    profile: dict[str, ShapeRange] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, shapes = part.rpartition("=")
        if not equals or not name:
            raise ProfileError(f"profile part {part!r} is not NAME=MIN:OPT:MAX or NAME=SHAPE")
        if name in profile:
            raise ProfileError(f"profile names input {name!r} twice")
        parsed = [_parse_shape(shape, part) for shape in shapes.split(":")]
        if len(parsed) == 1:
            parsed *= 3
        if len(parsed) != 3:
            raise ProfileError(f"profile part {part!r} has {len(parsed)} shapes; give 1 or 3")
        try:
            profile[name] = ShapeRange(*parsed)
        except ProfileError as error:
            raise ProfileError(f"profile part {part!r}: {error}") from error
    if not profile:
        raise ProfileError(f"profile {text!r} names no input")
    return profile


def parse_polygraphy_shapes(
    minimum: Iterable[str], optimum: Iterable[str], maximum: Iterable[str]
) -> dict[str, ShapeRange]:
    """Reads Polygraphy's ``--trt-min-shapes``, ``--trt-opt-shapes`` and ``--trt-max-shapes``.

    Each text holds one or more ``name:[d0,d1,...]``; where only some of the three name an input,
    the others take the nearest one given.

    Raises:
        ProfileError: with the text that cannot be read.
    """
    low, mid, high = (_polygraphy(texts) for texts in (minimum, optimum, maximum))
    profile = {}
    for name in {**mid, **low, **high}:
        order = (low.get(name), mid.get(name), high.get(name))
        given = [shape for shape in order if shape is not None]
        profile[name] = ShapeRange(
            order[0] or given[0], order[1] or order[2] or given[0], order[2] or given[-1]
        )
    return profile


def _polygraphy(texts: Iterable[str]) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for text in texts:
        rest = _POLYGRAPHY.sub("", text).strip(" ,")
        if rest or not text.strip():
            raise ProfileError(f"{rest or text!r} is not NAME:[D0,D1,...]")
        for match in _POLYGRAPHY.finditer(text):
            shapes[match["name"].lstrip(",")] = _parse_shape(match["dims"], text)
    return shapes


def _parse_shape(text: str, part: str) -> Shape:
    if not _SHAPE.fullmatch(text.strip()):
        raise ProfileError(f"profile part {part!r}: {text!r} is not a shape like 1x3x640x640")
    return tuple(int(dim) for dim in re.findall(r"\d+", text))


def resolve_profiles(
    inputs: Sequence[NetworkInput], profiles: Sequence[Profile]
) -> tuple[list[dict[str, ShapeRange]], list[str]]:
    """Complete profiles for all inputs, and one sentence for each thing that was assumed.

    There is always at least one profile: a network whose only dynamic extents come from data needs
    one too. Static inputs are listed with their own shape.

    Raises:
        ProfileError: an input is unknown, has another rank or another static size, or is a shape
            tensor whose values nobody gave.
    """
    names = {item.name for item in inputs}
    for profile in profiles:
        for name in profile:
            if name not in names:
                raise ProfileError(
                    f"the network has no input {name!r}; its inputs are "
                    + (", ".join(repr(item.name) for item in inputs) or "none")
                )
    notes: list[str] = []
    resolved = [_resolve(inputs, profile, notes) for profile in profiles or [{}]]
    return resolved, list(dict.fromkeys(notes))


def _resolve(
    inputs: Sequence[NetworkInput], profile: Profile, notes: list[str]
) -> dict[str, ShapeRange]:
    sizes: dict[str, tuple[int, int, int]] = {}  # what is known of each symbol
    for item in inputs:
        if item.name in profile:
            _check(item, profile[item.name])
            if not item.is_shape_tensor:
                triples = zip(*profile[item.name], strict=True)
                for symbol, size in zip(item.symbols, triples, strict=False):
                    if symbol:
                        sizes.setdefault(symbol, size)
    result: dict[str, ShapeRange] = {}
    for item in inputs:
        if item.name in profile:
            result[item.name] = profile[item.name]
        elif item.is_shape_tensor:
            raise ProfileError(
                f"input {item.name!r} decides shapes; give its smallest, usual and largest values: "
                f"--profile '{item.name}=MIN:OPT:MAX'"
            )
        else:
            result[item.name] = _assume(item, sizes)
            if item.dynamic:
                notes.append(
                    f"input {item.name!r}: no shapes were given, assumed {result[item.name]}; "
                    "say yours with --profile"
                )
    return result


def _check(item: NetworkInput, shapes: ShapeRange) -> None:
    if item.is_shape_tensor:
        return
    if len(shapes.min) != len(item.dims):
        raise ProfileError(
            f"profile gives input {item.name!r} rank {len(shapes.min)}; the network has rank "
            f"{len(item.dims)}"
        )
    for axis, (dim, low, high) in enumerate(zip(item.dims, shapes.min, shapes.max, strict=True)):
        if dim != -1 and not low == high == dim:
            raise ProfileError(
                f"profile gives input {item.name!r} size {low} to {high} on axis {axis}; the "
                f"network fixes it at {dim}"
            )


def _assume(item: NetworkInput, sizes: dict[str, tuple[int, int, int]]) -> ShapeRange:
    triples = []
    for axis, dim in enumerate(item.dims):
        symbol = item.symbols[axis] if axis < len(item.symbols) else ""
        if dim != -1:
            triples.append((dim, dim, dim))
        elif symbol:
            triples.append(sizes.setdefault(symbol, _default_size(item, axis, symbol)))
        else:
            triples.append(_default_size(item, axis, ""))
    low, mid, high = zip(*triples, strict=True) if triples else ((), (), ())
    return ShapeRange(tuple(low), tuple(mid), tuple(high))


def _default_size(item: NetworkInput, axis: int, symbol: str) -> tuple[int, int, int]:
    """Batches are small, image sides are multiples of 32, everything else is a sequence."""
    rank = len(item.dims)
    if "batch" in symbol.lower() or (axis == 0 and rank >= 3):
        return (1, 1, 4)
    if rank >= 4 and axis >= rank - 2:
        return (64, 640, 1280)
    return (1, 128, 1024)
