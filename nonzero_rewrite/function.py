"""The model-local function that lets plain onnxruntime run a patched model."""

from __future__ import annotations

import numpy as np
from nonzero_plugin.contract import (
    ATTR_BACKEND,
    ATTR_INDEX_TYPE,
    ATTR_MAX_NONZERO,
    ATTR_PERM,
    ATTR_PLUGIN_NAMESPACE,
    ATTR_PLUGIN_VERSION,
    DOMAIN,
    DOMAIN_VERSION,
    MAX_MAX_NONZERO,
    OP_TYPE,
)
from onnx import (
    AttributeProto,
    FunctionProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from nonzero_rewrite.errors import UnsupportedModelError

FUNCTION_IR_VERSION = 8
"""The first ONNX IR version with model-local functions."""

CAP_OPSET = 12
"""``max_nonzero`` in the function needs Constant's ``value_int``, which opset 12 brought."""


def nonzero_function(opset: int, capped: bool, guarded: bool) -> FunctionProto:
    """``(indices, count) = NonZeroPlugin(x)`` in operators of the ONNX domain.

    The Cast to BOOL comes first because onnxruntime's NonZero takes six types only and its Cast
    takes all; NaN and subnormals become true there, -0.0 false. ``perm`` drives a Transpose, so one
    function serves both layouts.

    Args:
        opset: version of the ONNX domain; must equal the model's, onnx.checker refuses another.
        guarded: whether a node's input comes straight from a Cast. onnxruntime up to 1.23 makes
            one of two Casts in a row, and FLOAT -> INT64 -> BOOL is not FLOAT -> BOOL; a Concat of
            one keeps them apart.
        capped: whether a node has ``max_nonzero``; the indices are then cut to the first so many.
    """
    nodes = [
        *([helper.make_node("Concat", ["x"], ["apart"], axis=0)] if guarded else []),
        helper.make_node("Cast", ["apart" if guarded else "x"], ["mask"], to=TensorProto.BOOL),
        helper.make_node("NonZero", ["mask"], ["all_indices"]),
    ]
    rows = "all_indices"
    attributes = [
        ATTR_BACKEND,
        ATTR_PERM,
        ATTR_INDEX_TYPE,
        ATTR_PLUGIN_NAMESPACE,
        ATTR_PLUGIN_VERSION,
    ]
    defaults = []
    if capped:
        cap = _reference(helper.make_node("Constant", [], ["cap"]), "value_int", ATTR_MAX_NONZERO)
        nodes += [
            cap,
            _int64("zero", [0]),
            _int64("one", [1]),
            _int64("scalar_as_list", [-1]),
            helper.make_node("Reshape", ["cap", "scalar_as_list"], ["end"]),
            helper.make_node("Slice", ["all_indices", "zero", "end", "one"], ["rows"]),
        ]
        rows = "rows"
        defaults.append(helper.make_attribute(ATTR_MAX_NONZERO, MAX_MAX_NONZERO))
    turn = helper.make_node("Transpose", [rows], ["turned"])
    cast = helper.make_node("Cast", ["turned"], ["indices"])
    nodes += [
        _reference(turn, "perm", ATTR_PERM, AttributeProto.INTS),
        _reference(cast, "to", ATTR_INDEX_TYPE),
        helper.make_node("Shape", [rows], ["extents"]),
        _int64("second", 1),
        helper.make_node("Gather", ["extents", "second"], ["count"], axis=0),
    ]
    function = helper.make_function(
        DOMAIN,
        OP_TYPE,
        ["x"],
        ["indices", "count"],
        nodes,
        [helper.make_opsetid("", opset)],
        attributes,
        doc_string="Indices of the non-zero items in row-major order, and how many there are.",
    )
    function.attribute_proto.extend(defaults)
    return function


def _reference(
    node: NodeProto, name: str, of: str, kind: AttributeProto.AttributeType = AttributeProto.INT
) -> NodeProto:
    """Let attribute ``name`` of ``node`` be the function's attribute ``of``."""
    node.attribute.append(AttributeProto(name=name, ref_attr_name=of, type=kind))
    return node


def _int64(name: str, value: int | list[int]) -> NodeProto:
    tensor = numpy_helper.from_array(np.array(value, dtype=np.int64), f"{name}_value")
    return helper.make_node("Constant", [], [name], value=tensor)


def is_ours(node: NodeProto) -> bool:
    """True for a NonZeroPlugin node of this project's domain."""
    return node.op_type == OP_TYPE and node.domain == DOMAIN


def is_our_function(function: FunctionProto) -> bool:
    """True for the function that gives such nodes their meaning."""
    return function.domain == DOMAIN and function.name == OP_TYPE


def add_function(model: ModelProto, opset: int, *, capped: bool, guarded: bool) -> None:
    """Let ``model`` carry the function, the opset import and the IR version it needs."""
    import_domain(model)
    for number, function in enumerate(model.functions):
        if is_our_function(function):
            # What one node needs serves the others too: a cap has a default.
            had = {node.op_type for node in function.node}
            if (capped and "Slice" not in had) or (guarded and "Concat" not in had):
                both = nonzero_function(opset, capped or "Slice" in had, guarded or "Concat" in had)
                model.functions[number].CopyFrom(both)
            return
    model.functions.append(nonzero_function(opset, capped, guarded))
    model.ir_version = max(model.ir_version, FUNCTION_IR_VERSION)


def import_domain(model: ModelProto) -> None:
    """Let ``model`` import the operator's domain."""
    if all(entry.domain != DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))


def check_model(model: ModelProto, opset: int, *, capped: bool) -> None:
    """Refuse a model that cannot carry the operator.

    Args:
        model: the model.
        opset: version of the ONNX domain, 0 for none.
        capped: whether its function would have to cut the indices.

    Raises:
        UnsupportedModelError: with the reason.
    """
    if not opset:
        raise UnsupportedModelError(
            "the model imports no version of the ONNX operators, so its nodes have no meaning; "
            "export it again"
        )
    versions = {e.version for e in model.opset_import if e.domain in ("", "ai.onnx")}
    if len(versions) > 1:
        raise UnsupportedModelError(
            f"the model imports {len(versions)} versions of the ONNX operators "
            f"({', '.join(map(str, sorted(versions)))}), so its nodes have no one meaning; "
            "export it again"
        )
    for function in model.functions:
        if function.name == OP_TYPE and function.domain != DOMAIN:
            raise UnsupportedModelError(
                f"the model has a function '{function.domain}::{function.name}'; TensorRT's "
                f"parser matches functions by name alone and would mistake it for ours: "
                "rename that function"
            )
    if capped and opset < CAP_OPSET:
        raise UnsupportedModelError(
            f"a cap on num_nonzero needs opset {CAP_OPSET} or newer, the model imports "
            f"{opset}: convert the model or rewrite it with --no-function"
        )


def onnx_opset(model: ModelProto) -> int:
    """The version of the ONNX domain that ``model`` imports, 0 when it imports none."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return int(entry.version)
    return 0
