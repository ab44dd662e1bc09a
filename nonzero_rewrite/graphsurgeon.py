"""``import nonzero_rewrite.graphsurgeon`` gives onnx-graphsurgeon graphs two functions.

    graph = gs.import_onnx(onnx.load("model.onnx"))
    graph.find_nonzero()                                # the NonZero nodes, bodies included
    graph.rewrite_nonzero(backend="cupy").cleanup().toposort()

``rewrite_nonzero`` edits the live graph: nodes and tensors that the rewrite leaves alone stay the
objects they are, and a tensor that gets another producer keeps its identity, so references held
outside stay good. Inside, the graph is exported once, rewritten by the rules that the command line
uses, and the difference is applied; constants are in memory twice while that lasts.

Three things to know about graphsurgeon (0.6.1) and rewritten graphs:

* ``toposort()`` never ends on a graph that has local functions and If, Loop or Scan nodes. Such a
  graph gets a ``toposort`` of its own here, which sorts the nodes and leaves the functions.
* ``cleanup(remove_unused_node_outputs=True)`` takes the plugin's second output, without which
  TensorRT refuses the node. The default does not.
* Importing a model loses its metadata, node doc strings and more. Where that matters, use
  ``nonzero_rewrite.rewrite_model``, which leaves what it does not touch byte for byte.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import onnx
import onnx_graphsurgeon as gs
from nonzero_plugin.contract import DOMAIN, OP_TYPE

from nonzero_rewrite.errors import UnsupportedModelError
from nonzero_rewrite.function import (
    CAP_OPSET,
    FUNCTION_IR_VERSION,
    is_ours,
    nonzero_function,
)
from nonzero_rewrite.options import Options, OptionSettings, chosen_options
from nonzero_rewrite.plan import RewritePlan
from nonzero_rewrite.rewrite import rewrite

if TYPE_CHECKING:  # in typing from Python 3.11 on
    from typing_extensions import Unpack

_NUMBER = "nonzero_rewrite.graphsurgeon.number"
"""``metadata_props`` key that carries a live node's position through the rewrite."""


@gs.Graph.register()  # type: ignore[untyped-decorator]
def find_nonzero(self: gs.Graph) -> list[gs.Node]:
    """The NonZero nodes of the graph, then those of its bodies."""
    graphs = [self, *self.subgraphs(recursive=True)]
    return [node for graph in graphs for node in graph.nodes if _is_nonzero(node)]


@gs.Graph.register()  # type: ignore[untyped-decorator]
def rewrite_nonzero(
    self: gs.Graph, options: Options | None = None, **settings: Unpack[OptionSettings]
) -> gs.Graph:
    """Rewrite the NonZero nodes of a graph and return the graph; see ``rewrite_graph``."""
    rewrite_graph(self, options, **settings)
    return self


def rewrite_graph(
    graph: gs.Graph, options: Options | None = None, **settings: Unpack[OptionSettings]
) -> RewritePlan:
    """Rewrite the NonZero nodes of a graph in place; returns what became of each.

    Args:
        graph: the main graph of a model.
        options, settings: as for ``nonzero_rewrite.rewrite_model``.

    Raises:
        NonZeroRewriteError: see ``rewrite``; the graph is then as it was.
        UnsupportedModelError: two tensors of the graph share a name.
        TypeError: both ``options`` and ``settings`` are given, or a setting is misspelled.
    """
    options = chosen_options(options, settings)
    _check_names(graph)
    model = gs.export_onnx(graph, do_type_check=False)
    for number, node in enumerate(model.graph.node):
        node.metadata_props.add(key=_NUMBER, value=str(number))
    before = [node.SerializeToString(deterministic=True) for node in model.graph.node]
    result = rewrite(model, options)
    if result.changed:
        _apply(graph, result.model, before)
    return result.plan


def _check_names(graph: gs.Graph) -> None:
    seen: dict[str, gs.Tensor] = {}
    for node in graph.nodes:
        for tensor in (*node.inputs, *node.outputs):
            if not tensor.is_empty() and seen.setdefault(tensor.name, tensor) is not tensor:
                raise UnsupportedModelError(
                    f"two tensors of the graph are called {tensor.name!r}, so an export would "
                    "join them; rename one"
                )


def _apply(graph: gs.Graph, model: onnx.ModelProto, before: Sequence[bytes]) -> None:
    """Give the live ``graph`` the nodes of ``model``, which was made from it."""
    live = {tensor.name: tensor for tensor in _tensors(graph)}
    imported = gs.import_onnx(model)  # which drops node metadata, our numbers too
    foreign = {tensor.name: tensor for tensor in _tensors(imported)}
    nodes: list[gs.Node] = []
    kept: set[int] = set()
    wanted: list[tuple[gs.Node, list[str], list[str]]] = []
    for proto, new in zip(model.graph.node, imported.nodes, strict=True):
        number = _number(proto)
        if number is not None and number not in kept and _same(proto, before[number]):
            kept.add(number)
            node = graph.nodes[number]
        else:
            node = new
        nodes.append(node)
        wanted.append((node, list(proto.input), list(proto.output)))
    for number, node in enumerate(graph.nodes):
        if number not in kept:
            for part in (node, *_inner_nodes(node)):
                part.inputs.clear()
                part.outputs.clear()
    for new in imported.nodes:
        new.inputs.clear()
        new.outputs.clear()
    for node, inputs, outputs in wanted:
        _connect(node.inputs, inputs, live, foreign)
        _connect(node.outputs, outputs, live, foreign)
        for inner in _inner_nodes(node):
            _reconnect(inner.inputs, live, foreign)
    graph.nodes = nodes
    old = {function.unique_id: function for function in graph.functions}
    graph.functions = [old.get(new.unique_id, new) for new in imported.functions]
    graph.import_domains = imported.import_domains
    _need_ir_version(graph, model.ir_version)
    _make_sortable(graph)


def _tensors(graph: gs.Graph) -> Iterator[gs.Tensor]:
    yield from graph.tensors().values()
    yield from (tensor for tensor in graph.outputs if not tensor.is_empty())


def _number(proto: onnx.NodeProto) -> int | None:
    values = [entry.value for entry in proto.metadata_props if entry.key == _NUMBER]
    return int(values[0]) if values else None


def _same(proto: onnx.NodeProto, before: bytes) -> bool:
    """Whether this is the old node, perhaps with other inputs and outputs."""
    old = onnx.NodeProto.FromString(before)
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    for each in (old, copy):
        del each.input[:], each.output[:], each.metadata_props[:]
    return bool(old == copy)


def _connect(
    ends: Any, names: Sequence[str], live: dict[str, gs.Tensor], foreign: dict[str, gs.Tensor]
) -> None:
    """Let a node's inputs or outputs be the tensors of these names, live ones first."""
    if [tensor.name for tensor in ends] == list(names):
        return
    ends.clear()
    # A list: graphsurgeon's extend goes over its argument twice.
    ends.extend(
        [live.setdefault(name, foreign[name]) if name else gs.Variable.empty() for name in names]
    )


def _inner_nodes(node: gs.Node) -> Iterator[gs.Node]:
    for subgraph in node.subgraphs(recursive=True):
        yield from subgraph.nodes


def _reconnect(ends: Any, live: dict[str, gs.Tensor], foreign: dict[str, gs.Tensor]) -> None:
    """Let what an imported body takes from the main graph be the live tensors."""
    for position, tensor in enumerate(ends):
        name = tensor.name
        if not tensor.is_empty() and foreign.get(name) is tensor:
            ends[position] = live.setdefault(name, tensor)


def _need_ir_version(graph: gs.Graph, version: int) -> None:
    """Graphs without one, and all before graphsurgeon 0.5.3, export the newest."""
    if getattr(graph, "ir_version", None) is not None:
        graph.ir_version = max(graph.ir_version, version)


def _make_sortable(graph: gs.Graph) -> None:
    """Work around graphsurgeon's endless recursion; see the module's text."""
    if not any(True for _ in graph.subgraphs()) or not graph.functions:
        return

    def toposort(
        recurse_subgraphs: bool = True, recurse_functions: bool = True, mode: str = "full"
    ) -> gs.Graph:
        """Sort the nodes; the order of functions means nothing in ONNX."""
        if mode != "functions":
            sort = functools.partial(gs.Graph.toposort, graph, mode="nodes")
            sort(recurse_subgraphs=recurse_subgraphs, recurse_functions=recurse_functions)
        return graph

    graph.toposort = toposort


def _is_nonzero(node: gs.Node) -> bool:
    return bool(node.op == "NonZero" and (node.domain or "ai.onnx") == "ai.onnx")


# -- polygraphy plugin match | replace ---------------------------------------------------------


def find_matches(graph: gs.Graph) -> list[dict[str, Any]]:
    """What ``polygraphy plugin match`` writes: one entry for each plugin node there would be.

    Only the rules that put a plugin in the place of a NonZero and of the Transpose behind it: the
    tool can replace, but not remove.
    """
    model = gs.export_onnx(graph, do_type_check=False)
    result = rewrite(model, Options(rules=frozenset(("plugin", "transpose"))))
    return [
        {
            "inputs": list(node.input),
            "outputs": list(node.output[:1]),
            "attributes": {attr.name: _plain(attr) for attr in node.attribute},
        }
        for node in result.model.graph.node
        if is_ours(node)
    ]


def replace_match(
    graph: gs.Graph,
    input_tensors: Sequence[gs.Tensor],
    output_tensors: Sequence[gs.Tensor],
    attrs: dict[str, Any],
    op: str,
) -> gs.Node:
    """Put the plugin where ``polygraphy plugin replace`` says; called once for each entry."""
    (mask,), (indices,) = input_tensors, output_tensors
    position = _detach(graph, indices)
    names = {tensor.name for tensor in _tensors(graph)}
    name = f"{indices.name}_count"
    while name in names:
        name += "_"
    count = gs.Variable(name, dtype="int64", shape=())
    node = gs.Node(op, f"{indices.name}_nonzero", dict(attrs), [mask], [indices, count], DOMAIN)
    graph.nodes.insert(position, node)
    if all(function.unique_id != (DOMAIN, OP_TYPE) for function in graph.functions):
        graph.functions = [*graph.functions, _function(graph.opset)]
    _need_ir_version(graph, FUNCTION_IR_VERSION)
    return node


def _detach(graph: gs.Graph, tensor: gs.Tensor) -> int:
    """Remove what makes ``tensor``, and a NonZero that only fed that; where the first one stood."""
    (maker,) = tensor.inputs
    gone = [maker]
    if not _is_nonzero(maker):
        source = maker.inputs[0]
        if len(source.outputs) == 1 and all(out is not source for out in graph.outputs):
            gone += source.inputs
    places = [n for n, node in enumerate(graph.nodes) if any(node is each for each in gone)]
    for place in reversed(places):  # by place: graphsurgeon's nodes compare by content
        del graph.nodes[place]
    for node in gone:
        node.inputs.clear()
        node.outputs.clear()
    return places[0]


def _function(opset: int) -> Any:
    """Our function as graphsurgeon holds it."""
    function = nonzero_function(opset, capped=opset >= CAP_OPSET, guarded=True)
    empty = onnx.helper.make_graph([], "empty", [], [])
    model = onnx.helper.make_model(empty, functions=[function], opset_imports=function.opset_import)
    return gs.import_onnx(model).functions[0]


def _plain(attr: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attr)
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if attr.type == onnx.AttributeProto.INTS else value


__all__ = ["find_matches", "find_nonzero", "replace_match", "rewrite_graph", "rewrite_nonzero"]
