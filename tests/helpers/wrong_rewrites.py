"""A small hand-made rewrite, and every way in which it is wrong.

A mutant changes the body of the plugin's model function, or the graph around the node. The right
body is here too: a verifier that calls everything different would pass no test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from nonzero_plugin import contract
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
Nodes = list[onnx.NodeProto]


def const(name: str, value: object, dtype: type = np.int64) -> onnx.NodeProto:
    tensor = numpy_helper.from_array(np.asarray(value, dtype=dtype), name)
    return helper.make_node("Constant", [], [name], value=tensor)


def node(op: str, inputs: Sequence[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], name=f"n_{output}", **attributes)


def original(
    elem_type: int = TensorProto.FLOAT, rank: int = 2, hide_order: bool = False
) -> onnx.ModelProto:
    """Two masks, ``x`` itself and ``y > 0``; each used to pick items of ``x``, rows and columns.

    With ``hide_order`` the outputs are sums over what was picked, so that they cannot show the
    order of the indices.
    """
    dims = ["n", 5, 3, 2][:rank]
    nodes = [
        const("zero", 0, np.float32),
        node("Greater", ["y", "zero"], "y_mask"),
        node("NonZero", ["x"], "x_indices"),
        node("Transpose", ["x_indices"], "x_pairs", perm=[1, 0]),
        node("GatherND", ["y", "x_pairs"], "x_picked"),
        node("NonZero", ["y_mask"], "y_indices"),
        node("Transpose", ["y_indices"], "y_pairs", perm=[1, 0]),
        node("GatherND", ["y", "y_pairs"], "y_picked"),
    ]
    outputs = {"x_picked": TensorProto.FLOAT, "y_picked": TensorProto.FLOAT}
    shapes: dict[str, list[str | int]] = {"x_picked": ["k"], "y_picked": ["m"]}
    if hide_order:
        nodes += [
            node("ReduceMax", ["x_picked_padded"], "x_max", keepdims=0),
            node("ReduceMax", ["y_picked_padded"], "y_max", keepdims=0),
        ]
        pad = const("pad", [-9.0], np.float32)
        nodes[-2:-2] = [
            pad,
            node("Concat", ["x_picked", "pad"], "x_picked_padded", axis=0),
            node("Concat", ["y_picked", "pad"], "y_picked_padded", axis=0),
        ]
        outputs = {"x_max": TensorProto.FLOAT, "y_max": TensorProto.FLOAT}
        shapes = {"x_max": [], "y_max": []}
    graph = helper.make_graph(
        nodes,
        "two_masks",
        [
            helper.make_tensor_value_info("x", elem_type, dims),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, dims),
        ],
        [helper.make_tensor_value_info(k, t, shapes[k]) for k, t in outputs.items()],
    )
    return _model(graph)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def patched(model: onnx.ModelProto, body: Nodes | None = None) -> onnx.ModelProto:
    """``model`` with each NonZero and its Transpose as one plugin node, computed by ``body``."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept: Nodes = []
    source = {n.output[0]: n.input[0] for n in result.graph.node if n.op_type == "NonZero"}
    for item in result.graph.node:
        if item.op_type == "Transpose":
            made = helper.make_node(
                contract.OP_TYPE,
                [source[item.input[0]]],
                [item.output[0], f"{item.output[0]}_count"],
                name=item.name,
                domain=contract.DOMAIN,
                backend="cuda_python",
                perm=[1, 0],
            )
            kept.append(made)
        elif item.op_type != "NonZero":
            kept.append(item)
    del result.graph.node[:]
    result.graph.node.extend(kept)
    result.opset_import.append(helper.make_opsetid(contract.DOMAIN, 1))
    result.functions.append(
        helper.make_function(
            contract.DOMAIN,
            contract.OP_TYPE,
            ["x"],
            ["indices", "count"],
            body if body is not None else right_body(),
            [helper.make_opsetid("", OPSET)],
            ["backend", "perm"],
        )
    )
    return result


def _transpose(source: str, output: str) -> onnx.NodeProto:
    made = helper.make_node("Transpose", [source], [output])
    made.attribute.append(
        onnx.AttributeProto(name="perm", ref_attr_name="perm", type=onnx.AttributeProto.INTS)
    )
    return made


def _ending(nonzero: str = "nz") -> Nodes:
    return [
        _transpose(nonzero, "indices"),
        helper.make_node("Shape", [nonzero], ["shape"]),
        const("one", 1),
        helper.make_node("Gather", ["shape", "one"], ["count"]),
    ]


def right_body() -> Nodes:
    return [helper.make_node("NonZero", ["x"], ["nz"]), *_ending()]


def swapped_layout() -> Nodes:
    body = [helper.make_node("NonZero", ["x"], ["nz"]), *_ending()]
    body[1].output[0] = "as_asked"
    return [*body, helper.make_node("Transpose", ["as_asked"], ["indices"], perm=[1, 0])]


def unsorted_order() -> Nodes:
    return [
        helper.make_node("NonZero", ["x"], ["sorted"]),
        const("start", [-1]),
        const("end", [np.iinfo(np.int64).min]),
        const("axis", [1]),
        const("step", [-1]),
        helper.make_node("Slice", ["sorted", "start", "end", "axis", "step"], ["nz"]),
        *_ending(),
    ]


def column_major_order() -> Nodes:
    """Order of the last axis first: what a kernel indexed by columns writes (rank 2)."""
    return [
        helper.make_node("Transpose", ["x"], ["x_t"], perm=[1, 0]),
        helper.make_node("NonZero", ["x_t"], ["swapped"]),
        const("flip", [1, 0]),
        helper.make_node("Gather", ["swapped", "flip"], ["nz"], axis=0),
        *_ending(),
    ]


def last_one_missing() -> Nodes:
    return [
        helper.make_node("NonZero", ["x"], ["full"]),
        const("start", [0]),
        const("end", [-1]),
        const("axis", [1]),
        helper.make_node("Slice", ["full", "start", "end", "axis"], ["nz"]),
        *_ending(),
    ]


def last_one_twice() -> Nodes:
    return [
        helper.make_node("NonZero", ["x"], ["full"]),
        const("start", [-1]),
        const("end", [np.iinfo(np.int64).max]),
        const("axis", [1]),
        helper.make_node("Slice", ["full", "start", "end", "axis"], ["last"]),
        helper.make_node("Concat", ["full", "last"], ["nz"], axis=1),
        *_ending(),
    ]


def count_off_by_one() -> Nodes:
    """Indices are right; only the count, which nobody in the graph uses, is one too many."""
    body = right_body()
    body[-1].output[0] = "right_count"
    return [*body, helper.make_node("Add", ["right_count", "one"], ["count"])]


def wrong_dtype() -> Nodes:
    body = [helper.make_node("NonZero", ["x"], ["nz"]), *_ending()]
    body[1].output[0] = "as_int64"
    return [*body, helper.make_node("Cast", ["as_int64"], ["indices"], to=TensorProto.INT32)]


def swapped_when_square() -> Nodes:
    """Right, but for num_nonzero == rank: there a swap does not change the shape."""
    then = helper.make_graph(
        [helper.make_node("Transpose", ["nz_right"], ["then_out"], perm=[1, 0])],
        "then",
        [],
        [helper.make_tensor_value_info("then_out", TensorProto.INT64, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["nz_right"], ["else_out"])],
        "else",
        [],
        [helper.make_tensor_value_info("else_out", TensorProto.INT64, None)],
    )
    return [
        helper.make_node("NonZero", ["x"], ["nz_right"]),
        helper.make_node("Shape", ["nz_right"], ["dims"]),
        const("first", 0),
        const("second", 1),
        helper.make_node("Gather", ["dims", "first"], ["rank"]),
        helper.make_node("Gather", ["dims", "second"], ["extent"]),
        helper.make_node("Equal", ["rank", "extent"], ["square"]),
        helper.make_node("If", ["square"], ["nz"], then_branch=then, else_branch=other),
        *_ending(),
    ]


def negative_zero_counts() -> Nodes:
    return [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Reciprocal", ["wide"], ["inverse"]),
        const("minus_infinity", -np.inf, np.float32),
        helper.make_node("Equal", ["inverse", "minus_infinity"], ["negative_zero"]),
        helper.make_node("Cast", ["x"], ["nonzero"], to=TensorProto.BOOL),
        helper.make_node("Or", ["negative_zero", "nonzero"], ["either"]),
        helper.make_node("NonZero", ["either"], ["nz"]),
        *_ending(),
    ]


def nan_is_zero() -> Nodes:
    return [
        helper.make_node("IsNaN", ["x"], ["nan"]),
        helper.make_node("Not", ["nan"], ["number"]),
        helper.make_node("Cast", ["x"], ["nonzero"], to=TensorProto.BOOL),
        helper.make_node("And", ["number", "nonzero"], ["both"]),
        helper.make_node("NonZero", ["both"], ["nz"]),
        *_ending(),
    ]


def subnormal_is_zero() -> Nodes:
    return [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Abs", ["wide"], ["size"]),
        const("smallest", 1.17549435e-38, np.float32),
        helper.make_node("Less", ["size", "smallest"], ["small"]),
        helper.make_node("Not", ["small"], ["large"]),
        helper.make_node("NonZero", ["large"], ["nz"]),
        *_ending(),
    ]


def fails_when_empty() -> Nodes:
    """Takes item 0 of the indices, as post-processing that never saw an empty mask does."""
    return [
        helper.make_node("NonZero", ["x"], ["nz"]),
        *_ending(),
        const("item", 0),
        helper.make_node("Gather", ["nz", "item"], ["unused"], axis=1),
    ]


BODIES: dict[str, Callable[[], Nodes]] = {
    f.__name__: f
    for f in (
        swapped_layout,
        unsorted_order,
        column_major_order,
        last_one_missing,
        last_one_twice,
        count_off_by_one,
        wrong_dtype,
        swapped_when_square,
        negative_zero_counts,
        nan_is_zero,
        subnormal_is_zero,
        fails_when_empty,
    )
}
