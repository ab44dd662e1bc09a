"""Makes onnxruntime's CPU provider look at FLOAT16 values as they are, rounded."""

from __future__ import annotations

import onnx
from nonzero_plugin import contract


def keep_rounding(model: onnx.ModelProto) -> None:
    """Put two Identity nodes behind each node of the main graph, and in front of each NonZero.

    onnxruntime computes FLOAT16 in FLOAT where it has no FLOAT16 kernel. It then drops the Cast to
    FLOAT16 and back between two such nodes, and does the same to a single FLOAT16 node between
    them: NonZero would look at a value that was never rounded, and 1e-8 would count although it is
    zero in FLOAT16; and Where, which has no such kernel, would pass on what ScatterND, which has
    one, rounds. Two nodes with a kernel of their own are left alone. With ONNX, and in TensorRT,
    the result of every node is rounded.
    """
    taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
    nodes = list(model.graph.node)
    del model.graph.node[:]

    def free(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    def copy(source: str, *names: str) -> None:
        for name in names:
            model.graph.node.append(onnx.helper.make_node("Identity", [source], [name]))
            source = name

    for node in nodes:
        if (node.op_type, node.domain) in _LOOKING and node.input:
            rounded = [free(f"{node.input[0]}_rounded") for _ in range(2)]
            copy(node.input[0], *rounded)
            node.input[0] = rounded[-1]
        elif _computes(node):
            made = {name: free(f"{name}_unrounded") for name in node.output if name}
            node.output[:] = [made.get(name, "") for name in node.output]
            model.graph.node.append(node)
            for name, unrounded in made.items():
                copy(unrounded, free(f"{name}_once_rounded"), name)
            continue
        model.graph.node.append(node)


def _computes(node: onnx.NodeProto) -> bool:
    """True for what makes tensors that may be unrounded; of sequences old opsets copy none."""
    return (
        node.domain in ("", "ai.onnx")
        and node.op_type not in ("Constant", "Identity")
        and not any(word in node.op_type for word in ("Sequence", "Optional"))
        and not any(attribute.HasField("g") for attribute in node.attribute)
    )


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
