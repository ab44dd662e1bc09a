"""Makes onnxruntime's CPU provider look at FLOAT16 values as they are, rounded."""

from __future__ import annotations

import onnx
from nonzero_plugin import contract


def keep_rounding(model: onnx.ModelProto) -> None:
    """Put two Identity nodes in front of each NonZero and NonZeroPlugin of the main graph.

    onnxruntime computes FLOAT16 in FLOAT where it has no FLOAT16 kernel. It then drops the Cast to
    FLOAT16 and back between two such nodes, and does the same to a single FLOAT16 node between
    them: NonZero would look at a value that was never rounded, and 1e-8 would count although it is
    zero in FLOAT16. Two nodes with a kernel of their own are left alone. With ONNX, and in
    TensorRT, NonZero looks at the rounded value.
    """
    taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if (node.op_type, node.domain) in _LOOKING and node.input:
            for _ in range(2):
                rounded = f"{node.input[0]}_rounded"
                while rounded in taken:
                    rounded += "_"
                taken.add(rounded)
                identity = onnx.helper.make_node("Identity", [node.input[0]], [rounded])
                model.graph.node.append(identity)
                node.input[0] = rounded
        model.graph.node.append(node)


_LOOKING = {("NonZero", ""), ("NonZero", "ai.onnx"), (contract.OP_TYPE, contract.DOMAIN)}


def has_float16(model: onnx.ModelProto) -> bool:
    """True when some tensor may be FLOAT16, by what the file says about types."""
    half = onnx.TensorProto.FLOAT16
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    if any(value.type.tensor_type.elem_type == half for value in values):
        return True
    if any(tensor.data_type == half for tensor in model.graph.initializer):
        return True
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    return any(
        (attribute.name in ("to", "dtype") and attribute.i == half)
        or (attribute.name == "value" and attribute.t.data_type == half)
        for node in nodes
        for attribute in node.attribute
    )
