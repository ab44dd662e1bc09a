"""From TensorRT's last messages to the node it stopped at, the NonZero behind it, and a way on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx

from nonzero_plugin.contract import OP_TYPE
from nonzero_plugin.onnx_file import node_label, nonzero_ancestors, walk_nodes

NOISE = re.compile(
    r"cudaError 35|CUDA lazy loading is not enabled|driver version is insufficient"
    r"|Attribute (index_type|max_nonzero) not found in plugin node"
    r"|Make sure (input|output) .* has Int64 binding"
    r"|--- (Begin|End) node ---|ERROR: .*In node -?\d+ with name:|While parsing node number"
)
"""Lines that accompany builds without a GPU, or any build of our nodes, and explain no failure."""

_IN_BRANCH = (
    "a NonZero inside an If or Loop body cannot be built; move the mask out of the branch, or fold "
    "the condition to a constant before export"
)
_OF_CONSTANT = (
    "a plugin on constants cannot be built; fold it (polygraphy surgeon sanitize "
    "--fold-constants), or remove the initializer if the name is meant to be an input"
)

_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"Data-dependent shapes are only allowed in the top-level scope",
        _IN_BRANCH,
    ),
    (
        r"convertExplicitDDSPluginToImplicit",
        "most likely an extent is computed from data beside the count (ReduceSum over the mask, as "
        "torch.export writes x[mask] = v, or NonMaxSuppression); take it from the Shape of the "
        "indices, or write x[mask] = v as Where (nonzero-rewrite does)",
    ),
    (
        r"NonMaxSuppression\S* has no runners|has no runners.*\[NonMaxSuppression\]",
        "this TensorRT has no NonMaxSuppression; export without it and select boxes outside the "
        "engine, or use a head that needs none",
    ),
    (
        r"NON_ZERO.*no runners|NonZero plugin creator version",
        "the model still holds ONNX NonZero; rewrite it with nonzero-rewrite first "
        "(`nonzero-rewrite scan` says why it leaves one alone), or build with --unpatched",
    ),
    (
        r"formulas need to be set sooner",
        "an If whose condition comes from a count cannot be built; compute both branches and "
        "select with Where",
    ),
    (
        r"value should have been set by symbolic execution",
        "index values are used as a shape, which TensorRT cannot plan; use the number of indices "
        "(Shape of NonZero) or a fixed size",
    ),
    (
        r"shapeContext\.isProxy",
        "only the count is used and the indices lead nowhere; make the indices a graph output too, "
        "or count with ReduceSum over the mask",
    ),
    (
        r"Unsupported ONNX data type|datatype formats are not supported|UNSUPPORTED.*[Tt]ype",
        "this data type does not exist in TensorRT; cast to a supported one before export",
    ),
    (
        r"kMIN|kMAX|optimization profile|profile \d+ .*(not|is) (valid|self-consistent)",
        "the shapes of the optimization profile do not fit the model; say them with --profile",
    ),
    (
        r"[Oo]ut ?[Oo]f ?[Mm]emory|insufficient memory|std::bad_alloc",
        "memory ran out; give a smaller maximum in --profile, --set-max-nonzero, or --workspace",
    ),
    (
        r"ScatterND with reduction|Unsupported reduction type.*\[ScatterElements\]",
        "TensorRT's scatters only overwrite; export index_put without accumulate, or add up with "
        "a matrix product over one-hot indices",
    ),
    (
        r"ROIAlign plugin was not found",
        "TensorRT for RTX makes its own RoiAlign plugin only where it finds a GPU (without one it "
        "logs 'Cuda Error in ROIAlignV3' and says this); build this model on a machine with a GPU",
    ),
    (
        r"Only FLOAT32, FLOAT16.*NonZero|Only FLOAT32, FLOAT16, BFLOAT16",
        "TensorRT's NonZero takes no such type; rewrite the model with nonzero-rewrite, or cast "
        "the mask to BOOL",
    ),
    (
        r"Plugin not found|Cannot find plugin|not found in (the )?[Pp]lugin [Rr]egistry",
        "TensorRT has no such operator and no plugin of that name is registered; register its "
        "plugin, or run that part outside the engine (see `nonzero-rewrite doctor MODEL`)",
    ),
)

_LIBRARY_FAULT = re.compile(r"Error Code 2|Internal Error|Unexpected exception")


def find_node(messages: Sequence[str], model: onnx.ModelProto) -> onnx.NodeProto | None:
    """The node that the latest message names; of several in one message the longest name.

    TensorRT names layers after ONNX nodes and tensors after ONNX tensors.
    """
    names: dict[str, onnx.NodeProto] = {}
    for _, node in walk_nodes(model.graph):
        for name in (*node.output, node.name):
            if len(name) > 2:  # a tensor called "6" stands in half of all messages
                names[name] = node
    for message in reversed(messages):
        found = [name for name in names if name in message and _stands_alone(name, message)]
        if found:
            return names[max(found, key=len)]
    return None


def _stands_alone(name: str, message: str) -> bool:
    # TensorRT appends a number where one ONNX node became several layers.
    return re.search(rf"(?<![\w/.]){re.escape(name)}(_\d+)?(?![\w/])", message) is not None


def advice(messages: Sequence[str]) -> str | None:
    """What can be done about a failure of this kind, or None where it is not a known one."""
    for message in reversed(messages):
        for pattern, text in _ADVICE:
            if re.search(pattern, message):
                return text
    return None


def suspects(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """NonZero nodes that TensorRT cannot build, whatever it says or does about it, and a way on."""
    constants = {tensor.name for tensor in model.graph.initializer}
    found = []
    for where, node in walk_nodes(model.graph):
        if node.op_type not in (OP_TYPE, "NonZero"):
            continue
        label = node_label(node)
        if where:
            found.append((label, f"NonZero {label!r} stands in {where.lstrip('/')}: {_IN_BRANCH}"))
        elif node.input[0] in constants:
            text = f"NonZero {label!r} reads the constant {node.input[0]!r}: {_OF_CONSTANT}"
            found.append((label, text))
    return found


def explain(
    messages: Sequence[str],
    model: onnx.ModelProto | None,
    node: onnx.NodeProto | None = None,
) -> tuple[str, str | None]:
    """The sentence that follows "TensorRT failed", and the node's label where one is known.

    Args:
        messages: TensorRT's errors, latest last.
        model: the model it worked on.
        node: the node it stopped at, where it said so itself.
    """
    told = [message for message in messages if not NOISE.search(message)]
    if node is None and model is not None:
        node = find_node(told, model)
    parts: list[str] = []
    label = None
    if node is not None and model is not None:
        label = node_label(node)
        parts.append(f"at node {label!r} ({node.op_type})")
        ancestors = [name for name in nonzero_ancestors(model, label) if name != label]
        if ancestors:
            more = f" and {len(ancestors) - 3} more" if len(ancestors) > 3 else ""
            listed = ", ".join(repr(name) for name in ancestors[:3])
            parts[-1] += f", which descends from NonZero {listed}{more}"
    if told:
        parts.append(f"TensorRT says: {told[-1].strip()}")
    # TensorRT names the layer, not always the operator.
    hint = advice([f"{text} [{node.op_type}]" for text in told] if node is not None else told)
    found = suspects(model) if model is not None else []
    own = [reason for suspect, reason in found if suspect == label]
    if own:
        hint = own[0]
    elif found and (hint is None or node is None):
        label, hint = label or found[0][0], found[0][1]
    if hint is None and any(_LIBRARY_FAULT.search(message) for message in told):
        hint = (
            "this is a fault inside TensorRT; a newer version may build it, and the messages above "
            "are what its maintainers need"
        )
    if hint:
        parts.append(f"what can be done: {hint}")
    return "; ".join(parts), label
