"""Masked writes as exporters spell them: the update goes through Reshape, Slice or Expand first."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nonzero_rewrite import rewrite_model, verify_models

SHAPE = ["rows", 5]


def masked_write(forms: list[onnx.NodeProto], update: str) -> onnx.ModelProto:
    """y = x with x[mask] replaced by what ``forms`` make of 2 * x[mask], called ``update``."""
    nodes = [
        helper.make_node("NonZero", ["mask"], ["nz"]),
        helper.make_node("Transpose", ["nz"], ["idx"], perm=[1, 0]),
        helper.make_node("GatherND", ["x", "idx"], ["picked"]),
        helper.make_node("Add", ["picked", "picked"], ["twice"]),
        helper.make_node("Shape", ["idx"], ["extents"]),
        helper.make_node("Gather", ["extents", "zero_list"], ["count"], axis=0),
        *forms,
        helper.make_node("ScatterND", ["x", "idx", update], ["y"]),
    ]
    constants = {"zero_list": [0], "one_list": [1], "minus_list": [-1], "two_list": [2]}
    graph = helper.make_graph(
        nodes,
        "masked_write",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, SHAPE),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)],
        [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


RESHAPE = helper.make_node("Reshape", ["twice", "minus_list"], ["flat"])
SLICE = helper.make_node("Slice", ["flat", "zero_list", "count", "zero_list"], ["cut"])
EXPAND = helper.make_node("Expand", ["twice", "count"], ["wide"])


@pytest.mark.parametrize(
    ("forms", "update"),
    [
        ([], "twice"),
        ([RESHAPE], "flat"),
        ([RESHAPE, SLICE], "cut"),
        ([EXPAND], "wide"),
    ],
    ids=["plain", "reshape", "reshape-slice", "expand"],
)
def test_what_keeps_the_vector_is_looked_through(forms: list[onnx.NodeProto], update: str) -> None:
    model = masked_write(forms, update)
    result = rewrite_model(model)
    assert [d.outcome for d in result.plan.decisions] == ["removed"]
    assert result.plan.decisions[0].rules[0] == "elementwise"
    assert "Where" in {node.op_type for node in result.model.graph.node}
    assert verify_models(model, result.model).ok


@pytest.mark.parametrize(
    "middle",
    [
        # The first item alone, spread over all by broadcasting: a Slice that is no identity.
        [
            helper.make_node("Slice", ["twice", "zero_list", "one_list", "zero_list"], ["first"]),
            helper.make_node("Mul", ["twice", "first"], ["out"]),
        ],
        # From the second item on: not from the start.
        [
            helper.make_node("Slice", ["twice", "one_list", "count", "zero_list"], ["tail"]),
            helper.make_node("Concat", ["twice", "tail"], ["long"], axis=0),
            helper.make_node("Slice", ["long", "zero_list", "count", "zero_list"], ["out"]),
        ],
        # x[mask] = x[mask][:1]: the first item alone, spread over all by Expand.
        [
            helper.make_node("Slice", ["twice", "zero_list", "one_list", "zero_list"], ["first"]),
            helper.make_node("Expand", ["first", "count"], ["out"]),
        ],
    ],
    ids=["prefix-broadcast", "shifted", "prefix-expanded"],
)
def test_a_slice_that_moves_items_is_not(middle: list[onnx.NodeProto]) -> None:
    model = masked_write(middle, "out")
    result = rewrite_model(model)
    assert [d.outcome for d in result.plan.decisions] == ["plugin"]
    assert dict(result.plan.decisions[0].near_misses)["elementwise"]
    assert verify_models(model, result.model).ok


def test_a_mask_expanded_to_its_own_size_is_the_mask() -> None:
    model = masked_write([], "twice")
    graph = model.graph
    graph.node.insert(0, helper.make_node("Shape", ["x"], ["size"]))
    graph.node.insert(1, helper.make_node("Expand", ["mask", "size"], ["same"]))
    graph.node.insert(2, helper.make_node("NonZero", ["same"], ["other"]))
    graph.output.append(helper.make_tensor_value_info("other", TensorProto.INT64, None))
    result = rewrite_model(model)
    placed = next(node for node in result.model.graph.node if node.op_type == "NonZeroPlugin")
    assert placed.input[0] == "mask"
    assert all(node.op_type != "Expand" for node in result.model.graph.node)
    assert verify_models(model, result.model).ok
