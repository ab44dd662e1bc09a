"""Leaves large weights where they are: in the file, not in memory.

A model of gigabytes is mostly ``raw_data`` of initializers, which no rule looks at.
``without_weights`` takes that out of the file's bytes before they are parsed, and ``with_weights``
puts it back, from the file, while the result is written. What comes out is byte for byte what
protobuf would write.

The format is protobuf's: a message is a row of fields, each a varint of number and wire type and
then its value; in a length-delimited field the value is a varint of its length and so many bytes.
Anything that is not as exporters write it (two graphs that protobuf would merge, groups, a field
that is cut off, tensors without or with equal names) is left to protobuf itself.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

LARGE_FILE_BYTES = 1 << 25
"""Files below this size are read whole: looking for weights would cost more than they do."""

LARGE_BYTES = 1 << 20
"""``raw_data`` from this size on stays in the file; rules look at 65536 items at most."""

Buffer = bytes | mmap.mmap
Weights = dict[str, tuple[int, int]]
"""Name of an initializer to the first byte of its ``raw_data`` in the file, and the one behind."""

_GRAPH, _INITIALIZER, _NAME, _RAW_DATA = 7, 5, 8, 9  # field numbers in onnx.proto
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class UnusualError(ValueError):
    """The bytes are not as exporters write them."""


@dataclass(frozen=True)
class Field:
    """A field: its number, where it starts, and where its value starts and ends."""

    number: int
    start: int
    value: int
    end: int


def without_weights(data: Buffer) -> tuple[bytes | None, Weights]:
    """The bytes of a model without large ``raw_data``, and where that is.

    None for a model that has none, or that is unusual.
    """
    weights: Weights = {}
    try:
        graph = _graph(data)
        if graph is None or graph.end - graph.value < LARGE_BYTES:
            return None, {}
        pieces: list[bytes] = []
        kept = graph.value  # everything up to here is in pieces
        names: set[str] = set()
        for tensor in fields(data, graph.value, graph.end):
            if tensor.number != _INITIALIZER:
                continue
            name, raw = _tensor(data, tensor)
            if name in names:
                return None, {}
            names.add(name)
            if raw is None or raw.end - raw.value < LARGE_BYTES:
                continue
            weights[name] = (raw.value, raw.end)
            light = data[tensor.value : raw.start] + data[raw.end : tensor.end]
            pieces += [data[kept : tensor.start], _delimited(_INITIALIZER, light)]
            kept = tensor.end
        if not weights or "" in weights:
            return None, {}
        pieces.append(data[kept : graph.end])
        light = _delimited(_GRAPH, b"".join(pieces))
        return data[: graph.start] + light + data[graph.end :], weights
    except UnusualError:
        return None, {}


def with_weights(data: bytes, weights: Weights) -> Iterator[bytes | tuple[int, int]]:
    """The bytes of a model, and between them the parts of the file that ``weights`` names.

    Args:
        data: a model as protobuf serializes it, without the data of some initializers.
        weights: where in the file those are; names that the model lacks are left out.
    """
    graph = _graph(data) if weights else None
    if graph is None:
        yield data
        return
    pieces: list[bytes | tuple[int, int]] = []
    kept = graph.value
    for tensor in fields(data, graph.value, graph.end):
        if tensor.number != _INITIALIZER:
            continue
        name, raw = _tensor(data, tensor)
        if raw is not None or name not in weights:
            continue
        place = next(
            (f.start for f in fields(data, tensor.value, tensor.end) if f.number > _RAW_DATA),
            tensor.end,
        )
        first, last = weights[name]
        head = _varint(_RAW_DATA << 3 | _LENGTH) + _varint(last - first)
        size = tensor.end - tensor.value + len(head) + last - first
        pieces += [
            data[kept : tensor.start] + _varint(_INITIALIZER << 3 | _LENGTH) + _varint(size),
            data[tensor.value : place] + head,
            (first, last),
            data[place : tensor.end],
        ]
        kept = tensor.end
    pieces.append(data[kept : graph.end])
    size = sum(len(p) if isinstance(p, bytes) else p[1] - p[0] for p in pieces)
    yield data[: graph.start] + _varint(_GRAPH << 3 | _LENGTH) + _varint(size)
    yield from pieces
    yield data[graph.end :]


def _graph(data: Buffer) -> Field | None:
    found = [field for field in fields(data, 0, len(data)) if field.number == _GRAPH]
    return found[0] if len(found) == 1 else None


def _tensor(data: Buffer, tensor: Field) -> tuple[str, Field | None]:
    """Name and ``raw_data`` of a TensorProto."""
    name, raw = "", None
    for field in fields(data, tensor.value, tensor.end):
        if field.number == _NAME:
            try:
                name = data[field.value : field.end].decode("utf-8")
            except UnicodeDecodeError as err:
                raise UnusualError from err
        elif field.number == _RAW_DATA:
            if raw is not None:
                raise UnusualError
            raw = field
    return name, raw


def fields(data: Buffer, start: int, end: int) -> Iterator[Field]:
    """The fields of the message between two places; their values are stepped over, not read.

    Raises:
        UnusualError: this is no protobuf, or none as exporters write it.
    """
    while start < end:
        key, value = _read_varint(data, start, end)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, stop = _read_varint(data, value, end)
        elif kind == _LENGTH:
            size, value = _read_varint(data, value, end)
            stop = value + size
        elif kind in _FIXED_BYTES:
            stop = value + _FIXED_BYTES[kind]
        else:
            raise UnusualError
        # A graph, a tensor, a name that is no message has another wire type.
        if stop > end or not number or (kind != _LENGTH and number in (_GRAPH, _RAW_DATA)):
            raise UnusualError
        yield Field(number, start, value, stop)
        start = stop


def _read_varint(data: Buffer, place: int, end: int) -> tuple[int, int]:
    """A number of up to ten bytes, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= end:
            raise UnusualError
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
    raise UnusualError


def _delimited(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
