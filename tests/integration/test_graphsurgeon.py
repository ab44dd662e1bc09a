"""Rewriting live graphsurgeon graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from helpers.manifest import entries, path_of

import nonzero_rewrite.graphsurgeon
from nonzero_rewrite import rewrite_model
from nonzero_rewrite.errors import PlanError, UnsupportedModelError
from nonzero_rewrite.graphsurgeon import rewrite_graph


def load(name: str) -> gs.Graph:
    return gs.import_onnx(onnx.load(path_of({"name": name})))


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["name"])
def test_a_live_graph_is_rewritten_cleaned_sorted_and_equal(
    entry: dict[str, Any], assert_parity: Any
) -> None:
    graph = gs.import_onnx(onnx.load(path_of(entry)))
    found = len(graph.find_nonzero())
    held = dict(graph.tensors())
    nodes = {id(node) for node in graph.nodes}
    assert graph.rewrite_nonzero().cleanup().toposort() is graph
    left = rewrite_model(path_of(entry)).plan.count("left")
    assert len(graph.find_nonzero()) == left
    assert found <= entry["nonzero"] + entry["nonzero_inside"]
    after = graph.tensors()
    assert all(after[name] is tensor for name, tensor in held.items() if name in after)
    expected = onnx.ModelProto()
    expected.CopyFrom(rewrite_model(onnx.load(path_of(entry))).model)
    originals = {node.SerializeToString() for node in onnx.load(path_of(entry)).graph.node}
    untouched = sum(node.SerializeToString() in originals for node in expected.graph.node)
    assert sum(id(node) in nodes for node in graph.nodes) >= untouched - len(graph.nodes) // 10
    assert_consistent(graph)
    model = gs.export_onnx(graph)
    onnx.checker.check_model(model, full_check=True)
    assert_parity(path_of(entry), model, time_budget=1.0)


def assert_consistent(graph: gs.Graph) -> None:
    """Every node is known to its tensors, and to no others."""
    for node in graph.nodes:
        for ends, back in ((node.inputs, "outputs"), (node.outputs, "inputs")):
            for tensor in ends:
                assert any(each is node for each in getattr(tensor, back)), (node, tensor)
    known = {id(node) for node in graph.nodes}
    for subgraph in graph.subgraphs(recursive=True):
        known |= {id(node) for node in subgraph.nodes}
    for tensor in graph.tensors().values():
        assert {id(node) for node in (*tensor.inputs, *tensor.outputs)} <= known, tensor


def test_options_are_those_of_rewrite_model() -> None:
    graph = load("yolo_score_head")
    plan = rewrite_graph(graph, backend="cupy", max_nonzero=9)
    (node,) = [node for node in graph.nodes if node.op == "NonZeroPlugin"]
    assert (node.attrs["backend"], node.attrs["max_nonzero"]) == ("cupy", 9)
    assert node.domain == "nonzero_rewrite"
    assert len(node.outputs) == 2
    assert plan.count("plugin") == 3
    with pytest.raises(TypeError, match="not both"):
        rewrite_graph(graph, nonzero_rewrite.options.Options(), backend="cupy")


def test_an_error_leaves_the_graph_as_it_was() -> None:
    graph = load("keypoints")
    before = gs.export_onnx(graph).SerializeToString()
    with pytest.raises(PlanError, match="no NonZero is called"):
        graph.rewrite_nonzero(only=("nobody",))
    assert gs.export_onnx(graph).SerializeToString() == before


def test_two_tensors_of_one_name_are_refused() -> None:
    graph = load("keypoints")
    (node,) = graph.find_nonzero()
    node.outputs[0].outputs[0].outputs[0].name = graph.inputs[0].name
    with pytest.raises(UnsupportedModelError, match="two tensors of the graph are called"):
        graph.rewrite_nonzero()


def test_a_graph_made_from_scratch() -> None:
    x = gs.Variable("x", np.float32, ("n", 3))
    indices = gs.Variable("indices", np.int64, (2, None))
    graph = gs.Graph([gs.Node("NonZero", "nz", {}, [x], [indices])], [x], [indices], opset=17)
    graph.rewrite_nonzero()
    (node,) = graph.nodes
    assert node.op == "NonZeroPlugin"
    assert node.outputs[0] is indices
    assert node.inputs[0] is x
    assert graph.rewrite_nonzero() is graph
    assert graph.nodes == [node]  # twice is once
    onnx.checker.check_model(gs.export_onnx(graph), full_check=True)


def test_toposort_ends_where_graphsurgeons_own_does_not() -> None:
    graph = load("early_exit")
    graph.rewrite_nonzero(rules=frozenset({"plugin"}))
    assert any(True for _ in graph.subgraphs())
    assert graph.functions
    graph.nodes.reverse()
    graph.toposort()
    seen: set[int] = set()
    for node in graph.nodes:
        makers = {id(maker) for tensor in node.inputs for maker in tensor.inputs}
        assert makers <= seen
        seen.add(id(node))
    assert [f.name for f in graph.toposort(mode="functions").functions] == ["NonZeroPlugin"]
