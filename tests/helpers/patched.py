"""Patched models written by hand, so that the engine side is tested apart from the rewriter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

DOMAIN = "nonzero_rewrite"


def plugin_function(opset: int = 17) -> onnx.FunctionProto:
    """What onnxruntime runs: NonZero of the flags, transposed by the node's perm, and its count."""
    transpose = helper.make_node("Transpose", ["found"], ["indices"])
    transpose.attribute.append(
        onnx.AttributeProto(name="perm", type=onnx.AttributeProto.INTS, ref_attr_name="perm")
    )
    nodes = [
        helper.make_node("Cast", ["x"], ["flags"], to=TensorProto.BOOL),
        helper.make_node("NonZero", ["flags"], ["found"]),
        transpose,
        helper.make_node("Shape", ["found"], ["extents"]),
        helper.make_node("Constant", [], ["one"], value_int=1),
        helper.make_node("Gather", ["extents", "one"], ["count"]),
    ]
    return helper.make_function(
        DOMAIN,
        "NonZeroPlugin",
        ["x"],
        ["indices", "count"],
        nodes,
        [helper.make_opsetid("", opset)],
        ["perm", "backend", "plugin_version", "plugin_namespace", "index_type", "max_nonzero"],
    )


def plugin_node(x: str, indices: str, name: str = "nz", **attributes: Any) -> onnx.NodeProto:
    """A NonZeroPlugin node; attributes set to None are left out."""
    values: dict[str, Any] = {
        "backend": "cuda_python",
        "perm": [0, 1],
        "plugin_version": "1",
        "plugin_namespace": DOMAIN,
        **attributes,
    }
    return helper.make_node(
        "NonZeroPlugin",
        [x],
        [indices, f"{indices}_count"],
        name=name,
        domain=DOMAIN,
        **{key: value for key, value in values.items() if value is not None},
    )


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, Sequence[Any]]],
    outputs: Sequence[tuple[str, int, Sequence[Any]]],
    *,
    opset: int = 17,
    function: bool = True,
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A model of IR 8 over tensors given as (name, element type, shape)."""
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(
        helper.make_graph(
            list(nodes),
            "patched",
            [helper.make_tensor_value_info(*item) for item in inputs],
            [helper.make_tensor_value_info(*item) for item in outputs],
            initializer=list(initializers),
        ),
        opset_imports=opsets,
        ir_version=8,
        functions=[plugin_function(opset)] if function else [],
    )


def single(
    element: int = TensorProto.FLOAT,
    shape: Sequence[Any] = ("n", 4),
    *,
    function: bool = True,
    **attributes: Any,
) -> onnx.ModelProto:
    """x -> NonZeroPlugin -> indices."""
    perm = attributes.get("perm", [0, 1])
    dims: list[Any] = [len(shape), None] if perm == [0, 1] else [None, len(shape)]
    return make_model(
        [plugin_node("x", "indices", **attributes)],
        [("x", element, shape)],
        [("indices", TensorProto.INT64, dims)],
        function=function,
    )


def gather_nd(mask: Sequence[Any] = ("n",)) -> onnx.ModelProto:
    """x[mask]: mask -> NonZeroPlugin [K, rank] -> GatherND(x)."""
    return make_model(
        [
            plugin_node("mask", "indices", perm=[1, 0]),
            helper.make_node("GatherND", ["x", "indices"], ["y"], name="select"),
        ],
        [("x", TensorProto.FLOAT, ["n", 4]), ("mask", TensorProto.BOOL, list(mask))],
        [("y", TensorProto.FLOAT, [None, 4] if len(mask) == 1 else [None])],
    )


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Checks and saves."""
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def in_branch() -> onnx.ModelProto:
    """A NonZero in both branches of an If."""
    branch = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["inner"], name="nz_in")],
        "then",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.INT64, [1, None])],
    )
    choose = helper.make_node(
        "If", ["c"], ["y"], name="choose", then_branch=branch, else_branch=branch
    )
    graph_inputs = [("x", TensorProto.FLOAT, ["n"]), ("c", TensorProto.BOOL, [])]
    return make_model([choose], graph_inputs, [("y", 7, None)])
