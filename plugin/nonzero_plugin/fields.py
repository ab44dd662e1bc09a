"""NonZeroConfig to plugin fields and back; nothing is ever filled in that was not written.

Two forms exist. While a model is parsed, fields are the node's attributes as TensorRT's ONNX
parser hands them over (INT and INTS as INT32, STRING as CHAR ending in NUL). In an engine, fields
are what :func:`to_fields` wrote, headed by a format version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nonzero_plugin.contract import (
    ATTR_BACKEND,
    ATTR_INDEX_TYPE,
    ATTR_MAX_NONZERO,
    ATTR_PERM,
    INDEX_INT64,
    PLUGIN_NAME,
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
    NonZeroConfig,
)
from nonzero_plugin.errors import ContractError

FORMAT_VERSION = 1
"""Version of the fields inside an engine. Raise it with every change of :func:`to_fields`."""

FIELD_FORMAT = "format_version"
FIELD_WRITER = "writer"
FIELD_INPUT_TYPE = "input_type"

INT32, INT64, CHAR = "INT32", "INT64", "CHAR"

PARSER_FIELDS: Mapping[str, str] = {
    ATTR_BACKEND: CHAR,
    ATTR_PERM: INT32,
    ATTR_INDEX_TYPE: INT32,
    ATTR_MAX_NONZERO: INT32,
}
"""Attributes the creator asks the parser for, and the type each arrives as."""

_ENGINE_FIELDS: Mapping[str, tuple[str, int | None]] = {
    FIELD_FORMAT: (INT32, 1),
    FIELD_WRITER: (CHAR, None),
    ATTR_BACKEND: (CHAR, None),
    ATTR_PERM: (INT32, 2),
    ATTR_INDEX_TYPE: (INT32, 1),
    ATTR_MAX_NONZERO: (INT64, 1),
    FIELD_INPUT_TYPE: (INT32, 1),
}
_WHO = f"plugin {PLUGIN_NAME}, version {PLUGIN_VERSION}, namespace {PLUGIN_NAMESPACE!r}"
_WRITE = "write the node with nonzero-rewrite"


@dataclass(frozen=True)
class Field:
    """One plugin field: ``type`` is the name of a TensorRT PluginFieldType.

    ``data`` is None where TensorRT's bindings cannot read the type (FLOAT16, DIMS, ...).
    """

    name: str
    type: str
    data: NDArray[np.generic] | None

    def text(self) -> str:
        """CHAR data as text, with or without the NUL the parser appends."""
        assert self.data is not None
        return self.data.tobytes().split(b"\0")[0].decode("utf-8", "replace")

    def ints(self) -> list[int]:
        """Integer data as Python integers."""
        assert self.data is not None
        return [int(value) for value in self.data.ravel()]


def from_parser_fields(fields: Iterable[Field], node: str = "") -> NonZeroConfig:
    """The configuration of the node that the ONNX parser is reading.

    Raises:
        ContractError: an attribute is missing, has the wrong type or value.
    """
    where = f"node {node!r} ({_WHO})" if node else _WHO
    given = {field.name: field for field in fields}
    for name, field in given.items():
        if name not in PARSER_FIELDS:
            raise ContractError(f"{where}: attribute {name!r} is unknown; {_WRITE}")
        _check_type(where, "attribute", field, PARSER_FIELDS[name])
    for name in (ATTR_BACKEND, ATTR_PERM):
        if name not in given:
            raise ContractError(f"{where}: attribute {name!r} is missing; {_WRITE}")
    index_type = _single(where, given[ATTR_INDEX_TYPE]) if ATTR_INDEX_TYPE in given else INDEX_INT64
    max_nonzero = _single(where, given[ATTR_MAX_NONZERO]) if ATTR_MAX_NONZERO in given else None
    return _config(
        where,
        given[ATTR_BACKEND].text(),
        given[ATTR_PERM].ints(),
        index_type,
        max_nonzero,
    )


def to_fields(config: NonZeroConfig, input_type: int, writer: str) -> tuple[Field, ...]:
    """The fields an engine stores.

    Args:
        config: the node's settings.
        input_type: ``onnx.TensorProto.DataType`` of the input, so that the kernel can be compiled
            when a context attaches, before TensorRT says any shape.
        writer: name and version of the package that builds the engine, for messages.
    """

    def ints(name: str, *values: int, dtype: type[np.signedinteger] = np.int32) -> Field:
        return Field(name, INT32 if dtype is np.int32 else INT64, np.array(values, dtype))

    def text(name: str, value: str) -> Field:
        return Field(name, CHAR, np.frombuffer(value.encode() + b"\0", np.int8))

    return (
        ints(FIELD_FORMAT, FORMAT_VERSION),
        text(FIELD_WRITER, writer),
        text(ATTR_BACKEND, config.backend),
        ints(ATTR_PERM, *config.perm),
        ints(ATTR_INDEX_TYPE, config.index_type),
        ints(ATTR_MAX_NONZERO, config.max_nonzero or 0, dtype=np.int64),
        ints(FIELD_INPUT_TYPE, input_type),
    )


def from_engine_fields(fields: Iterable[Field], node: str = "") -> tuple[NonZeroConfig, int]:
    """The configuration and input type stored in an engine.

    Raises:
        ContractError: the fields were written by another format version, or one is missing,
            unknown, doubled, or of the wrong type, length or value.
    """
    where = f"engine layer {node!r} ({_WHO})" if node else f"engine ({_WHO})"
    listed = list(fields)
    given = {field.name: field for field in listed}
    if len(given) != len(listed):
        raise ContractError(f"{where}: a field is stored twice; build the engine again")
    _check_format(where, given)
    for name in given:
        if name not in _ENGINE_FIELDS:
            raise ContractError(f"{where}: field {name!r} is unknown; build the engine again")
    for name, (type_name, length) in _ENGINE_FIELDS.items():
        if name not in given:
            raise ContractError(f"{where}: field {name!r} is missing; build the engine again")
        _check_type(where, "field", given[name], type_name)
        data = given[name].data
        if length is not None and data is not None and data.size != length:
            raise ContractError(
                f"{where}: field {name!r} has {data.size} values, not {length}; "
                "build the engine again"
            )
    maximum = given[ATTR_MAX_NONZERO].ints()[0]
    config = _config(
        where,
        given[ATTR_BACKEND].text(),
        given[ATTR_PERM].ints(),
        given[ATTR_INDEX_TYPE].ints()[0],
        maximum or None,
    )
    return config, given[FIELD_INPUT_TYPE].ints()[0]


def _check_format(where: str, given: Mapping[str, Field]) -> None:
    version = given.get(FIELD_FORMAT)
    if version is None:
        raise ContractError(
            f"{where}: field {FIELD_FORMAT!r} is missing, so the engine was not written by "
            "nonzero-rewrite, or its fields were lost while it was built; build it again"
        )
    _check_type(where, "field", version, INT32)
    found = version.ints()
    if found == [FORMAT_VERSION]:
        return
    writer = given.get(FIELD_WRITER)
    by = (
        f" by {writer.text()}" if writer and writer.type == CHAR and writer.data is not None else ""
    )
    newer = len(found) == 1 and found[0] > FORMAT_VERSION
    raise ContractError(
        f"{where}: its fields have format {', '.join(map(str, found)) or 'none'}, written{by}; "
        f"this package reads format {FORMAT_VERSION}; "
        + ("install a newer nonzero-rewrite" if newer else "build the engine again")
    )


def _check_type(where: str, kind: str, field: Field, wanted: str) -> None:
    if field.type != wanted or field.data is None:
        mend = _WRITE if kind == "attribute" else "build the engine again"
        raise ContractError(
            f"{where}: {kind} {field.name!r} has type {field.type}, not {wanted}; {mend}"
        )


def _single(where: str, field: Field) -> int:
    values = field.ints()
    if len(values) != 1:
        raise ContractError(
            f"{where}: attribute {field.name!r} has {len(values)} values, not 1; {_WRITE}"
        )
    return values[0]


def _config(
    where: str, backend: str, perm: list[int], index_type: int, max_nonzero: int | None
) -> NonZeroConfig:
    if len(perm) != 2:
        raise ContractError(f"{where}: perm has {len(perm)} values, not 2; {_WRITE}")
    try:
        return NonZeroConfig(backend, (perm[0], perm[1]), index_type, max_nonzero)
    except ContractError as error:
        raise ContractError(f"{where}: {error}") from error
