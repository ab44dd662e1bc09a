"""What the engine builder reads off an ONNX file, and the few edits it makes in memory.

Weights are never read: models are loaded without their external data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from nonzero_plugin.contract import (
    ATTR_MAX_NONZERO,
    ATTR_PLUGIN_NAMESPACE,
    ATTR_PLUGIN_VERSION,
    DOMAIN,
    OP_TYPE,
    NonZeroConfig,
)
from nonzero_plugin.errors import ContractError, EngineBuildError
from nonzero_plugin.places import NO_FILE
from nonzero_plugin.registry import PluginTriple

ONNX_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"}
)


@dataclass(frozen=True)
class PluginRequest:
    """A node that only a plugin (or, where there is one, a model function) can serve."""

    node: str
    graph: str
    plugin: PluginTriple
    domain: str
    has_function: bool


def load_structure(path: Path) -> onnx.ModelProto:
    """The model without its external weights.

    Raises:
        EngineBuildError: phase ``import``; the file is missing or is no ONNX model.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except FileNotFoundError as error:
        raise EngineBuildError(f"{path}: {NO_FILE}", phase="import") from error
    except Exception as error:  # protobuf's DecodeError has moved among its versions
        raise EngineBuildError(
            f"{path}: not an ONNX model, or a truncated one ({error}); export or download it again",
            phase="import",
        ) from error
    if not model.graph.node and not model.graph.output:
        raise EngineBuildError(
            f"{path}: the file holds no ONNX graph; export or download it again", phase="import"
        )
    return model


def walk_nodes(graph: onnx.GraphProto, where: str = "") -> Iterator[tuple[str, onnx.NodeProto]]:
    """All nodes with the path of the graph that holds them ('' is the main graph)."""
    for node in graph.node:
        yield where, node
        for attribute in node.attribute:
            graphs = [attribute.g] if attribute.HasField("g") else attribute.graphs
            for subgraph in graphs:
                yield from walk_nodes(subgraph, f"{where}/{node_label(node)}.{attribute.name}")


def node_label(node: onnx.NodeProto) -> str:
    """The node's name, or its first output where it has none."""
    return node.name or next(iter(node.output), node.op_type)


def plugin_requests(model: onnx.ModelProto) -> list[PluginRequest]:
    """Every node outside ONNX's own operators, as TensorRT's parser will look it up."""
    functions = {(function.domain, function.name) for function in model.functions}
    requests = []
    for where, node in walk_nodes(model.graph):
        if node.domain in ONNX_DOMAINS and node.op_type != OP_TYPE:
            continue
        text = {
            attribute.name: attribute.s.decode("utf-8", "replace")
            for attribute in node.attribute
            if attribute.type == onnx.AttributeProto.STRING
        }
        has_function = (node.domain, node.op_type) in functions
        if has_function and ATTR_PLUGIN_NAMESPACE not in text and node.op_type != OP_TYPE:
            continue  # an ordinary model function: TensorRT inlines it
        requests.append(
            PluginRequest(
                node_label(node),
                where,
                PluginTriple(
                    node.op_type,
                    text.get(ATTR_PLUGIN_VERSION, "1"),
                    text.get(ATTR_PLUGIN_NAMESPACE, ""),
                ),
                node.domain,
                has_function,
            )
        )
    return requests


def explain_mismatch(wanted: PluginTriple, present: list[PluginTriple]) -> str:
    """Why ``wanted`` is not among ``present``: the near miss, part by part."""
    near = [triple for triple in present if triple.name == wanted.name]
    if not near:
        return f"no plugin of the name {wanted.name} is registered"
    texts = []
    for triple in near:
        parts = ("version", "namespace")
        differs = [part for part in parts if getattr(triple, part) != getattr(wanted, part)]
        texts.append(f"registered is {triple} ({' and '.join(differs)} differs)")
    return "; ".join(texts)


def strip_function(model: onnx.ModelProto) -> None:
    """Removes NonZeroPlugin's function body: TensorRT before 10.7 would take it over the plugin."""
    kept = [f for f in model.functions if (f.domain, f.name) != (DOMAIN, OP_TYPE)]
    del model.functions[:]
    model.functions.extend(kept)


def set_max_nonzero(model: onnx.ModelProto, maxima: Mapping[str, int]) -> int:
    """Writes ``max_nonzero`` on NonZeroPlugin nodes; the key ``"*"`` means every other node.

    Returns:
        How many nodes were changed.

    Raises:
        ContractError: a name is no NonZeroPlugin node, or a value is out of range.
    """
    for value in maxima.values():
        NonZeroConfig(max_nonzero=value)
    nodes = {node_label(n): n for _, n in walk_nodes(model.graph) if is_plugin_node(n)}
    for name in maxima:
        if name != "*" and name not in nodes:
            raise ContractError(
                f"the model has no {OP_TYPE} node {name!r}; it has "
                + (", ".join(map(repr, nodes)) or "none")
            )
    changed = 0
    for name, node in nodes.items():
        if name not in maxima and "*" not in maxima:
            continue
        value = maxima[name] if name in maxima else maxima["*"]
        kept = [attribute for attribute in node.attribute if attribute.name != ATTR_MAX_NONZERO]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(ATTR_MAX_NONZERO, value)])
        changed += 1
    return changed


def is_plugin_node(node: onnx.NodeProto) -> bool:
    """True for the node that nonzero-rewrite writes."""
    return bool(node.op_type == OP_TYPE and node.domain == DOMAIN)


def nonzero_ancestors(model: onnx.ModelProto, label: str) -> list[str]:
    """NonZeroPlugin and NonZero nodes that the node ``label`` gets data from, nearest first."""
    producers: dict[str, onnx.NodeProto] = {}
    start: onnx.NodeProto | None = None
    for _, node in walk_nodes(model.graph):
        for output in node.output:
            producers[output] = node
        if start is None and (node_label(node) == label or label in node.output):
            start = node
    if start is None:
        return []
    found: list[str] = []
    queue, seen = deque([start]), {id(start)}
    while queue:
        node = queue.popleft()
        if node.op_type in (OP_TYPE, "NonZero"):
            found.append(node_label(node))
            continue
        inner = [name for _, sub in _inner_nodes(node) for name in sub.input]
        for name in [*node.input, *inner]:
            producer = producers.get(name)
            if producer is not None and id(producer) not in seen:
                seen.add(id(producer))
                queue.append(producer)
    return found


def _inner_nodes(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from walk_nodes(attribute.g)
