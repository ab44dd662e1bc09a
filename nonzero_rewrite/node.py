"""Questions about one node: its operator, its attributes, the graphs it carries, its name."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import onnx
from onnx import AttributeProto, GraphProto, NodeProto

from nonzero_rewrite.errors import UnsupportedModelError

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
ONNX_DOMAINS = frozenset({"", "ai.onnx"})
_NEWEST = 2**31 - 1
"""As an opset version: the newest that the installed onnx knows."""
_FIRST_OPSET = 9
"""The one that brought NonZero; operators older than that are in no model that matters here."""


NOT_UTF8 = (
    "a name in the model is not UTF-8 text, so the file is damaged or its exporter is; "
    "export or download it again"
)


@contextmanager
def readable_names() -> Iterator[None]:
    """Turn what protobuf raises for text that is not UTF-8 into a sentence.

    Raises:
        UnsupportedModelError: for that.
    """
    try:
        yield
    except UnicodeDecodeError as err:
        raise UnsupportedModelError(NOT_UTF8) from err


def is_onnx(node: NodeProto, *op_types: str) -> bool:
    """True when ``node`` is one of the named operators of the ONNX domain.

    A node with fewer or more inputs or outputs than any version of its operator since opset 9 takes
    is none of it, so that callers may rely on them. A NonZero always counts, to be reported.
    """
    if node.op_type not in op_types or node.domain not in ONNX_DOMAINS:
        return False
    least_in, most_in, least_out, most_out = _arity(node.op_type)
    return least_in <= len(node.input) <= most_in and least_out <= len(node.output) <= most_out


@functools.cache
def _arity(op_type: str) -> tuple[int, int, int, int]:
    """Least and most inputs, least and most outputs of an ONNX operator; see above."""
    found = []
    version = _NEWEST
    while version >= _FIRST_OPSET and op_type != "NonZero" and onnx.defs.has(op_type, version, ""):
        schema = onnx.defs.get_schema(op_type, version, "")
        found.append((schema.min_input, schema.max_input, schema.min_output, schema.max_output))
        version = schema.since_version - 1
    if not found:
        return 0, _NEWEST, 0, _NEWEST
    least_in, most_in, least_out, most_out = zip(*found, strict=True)
    return min(least_in), max(most_in), min(least_out), max(most_out)


def attribute(node: NodeProto, name: str) -> AttributeProto | None:
    """The attribute called ``name``, or None."""
    found: AttributeProto
    for found in node.attribute:
        if found.name == name:
            return found
    return None


def int_attribute(node: NodeProto, name: str, default: int) -> int:
    """The INT attribute called ``name``, or ``default`` where it is absent."""
    attr = attribute(node, name)
    return default if attr is None else int(attr.i)


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """The graphs that ``node`` carries as attributes, with the attribute's name."""
    if node.domain in ONNX_DOMAINS and node.op_type not in CONTROL_FLOW:
        return
    for attr in node.attribute:
        if attr.type == AttributeProto.GRAPH:
            yield text(attr.name), attr.g
        elif attr.type == AttributeProto.GRAPHS:
            for number, graph in enumerate(attr.graphs):
                yield f"{text(attr.name)}[{number}]", graph


def node_label(node: NodeProto, number: int) -> str:
    """The node's name, or a stand-in made of its operator and its place in the node list."""
    return text(node.name) or f"{node.op_type}#{number}"


def text(value: str | bytes) -> str:
    """A string of a model as text: protobuf gives bytes for one that is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
