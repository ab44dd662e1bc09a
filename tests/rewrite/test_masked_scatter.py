"""masked-scatter: x[mask] = source in order, without a data-dependent shape."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nonzero_rewrite import rewrite_model, verify_models
from nonzero_rewrite.rewrite import RewriteResult
from nonzero_rewrite.rules import DEFAULT_RULES

RULES = DEFAULT_RULES | {"masked-scatter"}


def masked_scatter(
    x: list[int | str],
    mask: list[int | str],
    source: list[int | str],
    *,
    opset: int = 17,
    expand: bool = False,
) -> onnx.ModelProto:
    """``x.masked_scatter(mask, source)`` as PyTorch's exporters write it."""
    name = "wide" if expand else "mask"
    nodes = [
        helper.make_node("NonZero", [name], ["nz"]),
        helper.make_node("Transpose", ["nz"], ["idx"], perm=[1, 0]),
        helper.make_node("Reshape", ["source", "minus"], ["flat"]),
        helper.make_node("Shape", ["idx"], ["extents"]),
        helper.make_node("Gather", ["extents", "zero"], ["count"], axis=0),
        helper.make_node("Slice", ["flat", "zero", "count", "zero"], ["used"]),
        helper.make_node("ScatterND", ["x", "idx", "used"], ["y"]),
    ]
    if expand:
        nodes.insert(0, helper.make_node("Shape", ["x"], ["size"]))
        nodes.insert(1, helper.make_node("Expand", ["mask", "size"], ["wide"]))
    graph = helper.make_graph(
        nodes,
        "masked_scatter",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, x),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, mask),
            helper.make_tensor_value_info("source", TensorProto.FLOAT, source),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x)],
        [
            numpy_helper.from_array(np.array([-1]), "minus"),
            numpy_helper.from_array(np.array([0]), "zero"),
        ],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def rewritten(model: onnx.ModelProto) -> RewriteResult:
    return rewrite_model(model, rules=RULES)


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
@pytest.mark.parametrize(
    ("x", "source"),
    [(["n"], [64]), (["a", "b"], ["k", 8]), ([2, "b", 3], [96])],
    ids=["rank1", "rank2", "rank3"],
)
def test_single_items(opset: int, x: list[int | str], source: list[int | str]) -> None:
    model = masked_scatter(x, x, source, opset=opset)
    result = rewritten(model)
    assert [d.rules for d in result.plan.decisions] == [("masked-scatter",)]
    assert "ScatterND" not in {node.op_type for node in result.model.graph.node}
    assert verify_models(model, result.model).ok


def test_whole_rows_move_where_the_mask_repeats_a_flag() -> None:
    model = masked_scatter(["b", "t", 16], ["b", "t", 1], ["patches", 16], expand=True)
    result = rewritten(model)
    assert result.plan.count("removed") == 1
    gathers = [n for n in result.model.graph.node if n.op_type == "Gather"]
    (rows,) = [n for n in result.model.graph.node if n.op_type == "Reshape"]
    shape = next(n for n in result.model.graph.node if n.output[0] == rows.input[1])
    assert numpy_helper.to_array(shape.attribute[0].t).tolist() == [-1, 16]
    assert len(gathers) == 1
    assert verify_models(model, result.model).ok


def test_a_source_that_falls_into_no_rows_moves_item_by_item() -> None:
    model = masked_scatter(["b", "t", 4], ["b", "t", 1], [96], expand=True)
    result = rewritten(model)
    assert result.plan.count("removed") == 1
    assert verify_models(model, result.model).ok
    feeds = {
        "x": np.zeros((1, 3, 4), np.float32),
        "mask": np.array([[[True], [False], [True]]]),
        "source": np.arange(96, dtype=np.float32),
    }
    assert verify_models(model, result.model, inputs=[feeds]).ok


@pytest.mark.parametrize(
    ("x", "mask", "source", "rows"),
    [
        (["b", 4], ["b", 1], ["k", 4], [-1, 4]),
        (["b", "t", 4], ["b", "t", 1], ["k", 8], [-1, 4]),
        (["b", "t", 4], ["b", "t", 1], ["k", 6], [-1]),  # not whole rows
        (["b", "t", 4], ["b", "t", 1], ["k", "c"], [-1]),
        (["b", "t", 4], ["b", 1, 1], ["k", 4], [-1]),  # repeated along another dim too
        (["b", "t", 4], [1, "t", 4], ["k", 4], [-1]),
        (["b", "t", 4], ["t", 1], ["k", 4], [-1]),
        (["b", "t", "c"], ["b", "t", 1], ["k", 4], [-1]),
        ([4], [1], ["k", 4], [-1]),
        (["b", "t", 0], ["b", "t", 1], ["k", 4], [-1]),
    ],
)
def test_when_whole_rows_move(
    x: list[int | str], mask: list[int | str], source: list[int | str], rows: list[int]
) -> None:
    model = masked_scatter(x, mask, source, expand=True)
    result = rewritten(model)
    assert result.plan.count("removed") == 1
    (reshape,) = [n for n in result.model.graph.node if n.op_type == "Reshape"]
    shape = next(n for n in result.model.graph.node if n.output[0] == reshape.input[1])
    assert numpy_helper.to_array(shape.attribute[0].t).tolist() == rows
    sizes = {"b": 2, "t": 3, "k": 12, "c": 4}
    rng = np.random.default_rng(0)
    dims = {name: [sizes.get(str(d), d) for d in of] for name, of in
            (("x", x), ("mask", mask), ("source", source))}  # fmt: skip
    feeds = {name: rng.random(of).astype(np.float32) for name, of in dims.items()}
    feeds["mask"] = feeds["mask"] < 0.6
    assert verify_models(model, result.model, inputs=[feeds]).ok


@pytest.mark.parametrize("expand", [False, True])
def test_an_empty_source_where_nothing_is_selected(expand: bool) -> None:
    model = masked_scatter(["b", 4], ["b", 1 if expand else 4], ["k", 4], expand=expand)
    feeds = {
        "x": np.ones((3, 4), np.float32),
        "mask": np.zeros((3, 1 if expand else 4), bool),
        "source": np.zeros((0, 4), np.float32),
    }
    verification = verify_models(model, rewritten(model).model, inputs=[feeds])
    assert verification.ok and verification.cases[0].name, verification


def test_it_runs_only_on_request() -> None:
    model = masked_scatter(["a", "b"], ["a", "b"], [64])
    assert [d.outcome for d in rewrite_model(model).plan.decisions] == ["plugin"]


@pytest.mark.parametrize(
    ("model", "condition"),
    [
        (masked_scatter(["a", "b"], ["a", "b"], [64], opset=10), "opset 11"),
        (masked_scatter(["a", "b", 3], ["a", "b"], [64]), "single items"),
        (masked_scatter(["a", "b"], ["c", "d"], [64]), "as large as the data"),
    ],
    ids=["opset10", "row-mask", "unequal-dims"],
)
def test_near_misses_name_the_condition(model: onnx.ModelProto, condition: str) -> None:
    (decision,) = rewritten(model).plan.decisions
    assert decision.outcome == "plugin"
    assert condition in dict(decision.near_misses)["masked-scatter"]


def test_a_short_source_spread_by_expand_is_no_source() -> None:
    """Expand may repeat one item for every place: only its result has them all."""
    model = masked_scatter(["a", "b"], ["a", "b"], ["k"])
    graph = model.graph
    graph.node[2].CopyFrom(helper.make_node("Expand", ["source", "count"], ["flat"]))
    order = [0, 1, 3, 4, 2, 5, 6]
    nodes = [onnx.NodeProto.FromString(graph.node[i].SerializeToString()) for i in order]
    del graph.node[:]
    graph.node.extend(nodes)
    assert [d.outcome for d in rewritten(model).plan.decisions] == ["plugin"]


def test_a_source_made_from_the_indices_keeps_them() -> None:
    model = masked_scatter(["a", "b"], ["a", "b"], [64])
    graph = model.graph
    graph.node[2].CopyFrom(helper.make_node("Cast", ["idx"], ["floats"], to=TensorProto.FLOAT))
    graph.node.insert(3, helper.make_node("Neg", ["floats"], ["negated"]))
    graph.node.insert(4, helper.make_node("Reshape", ["negated", "minus"], ["flat"]))
    (decision,) = rewritten(model).plan.decisions
    assert decision.outcome == "plugin"
    assert "from the indices" in dict(decision.near_misses)["masked-scatter"]


def test_every_second_item_of_the_source_is_not_the_source() -> None:
    model = masked_scatter(["n"], ["n"], [64])
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
    graph.node[5].input.append("two")
    graph.node[5].input[2] = "double"
    graph.node.insert(5, helper.make_node("Mul", ["count", "two"], ["double"]))
    result = rewritten(model)
    assert verify_models(model, result.model).ok
    feeds = {
        "x": np.zeros(4, np.float32),
        "mask": np.array([True, False, True, True]),
        "source": np.arange(64, dtype=np.float32),
    }
    assert verify_models(model, result.model, inputs=[feeds]).ok


@pytest.mark.parametrize("axis", [1, -1])
def test_the_first_column_of_the_source_is_not_the_source(axis: int) -> None:
    model = masked_scatter(["n"], ["n"], ["k", 2])
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array([axis]), "axis"))
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    cut = helper.make_node("Slice", ["source", "zero", "one", "axis"], ["column"])
    flat = helper.make_node("Reshape", ["column", "minus"], ["used"])
    graph.node[2].CopyFrom(cut)
    graph.node[5].CopyFrom(flat)
    feeds = {
        "x": np.zeros(4, np.float32),
        "mask": np.array([True, False, True, True]),
        "source": np.arange(6, dtype=np.float32).reshape(3, 2),
    }
    assert verify_models(model, rewritten(model).model, inputs=[feeds]).ok
