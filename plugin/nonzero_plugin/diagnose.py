"""From TensorRT's last messages to the node it stopped at, the NonZero behind it, and a way on."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx

from nonzero_plugin.onnx_file import node_label, nonzero_ancestors, walk_nodes

NOISE = re.compile(
    r"cudaError 35|CUDA lazy loading is not enabled|driver version is insufficient"
    r"|Attribute (index_type|max_nonzero) not found in plugin node"
    r"|Make sure (input|output) .* has Int64 binding"
)
"""Lines that accompany builds without a GPU, or any build of our nodes, and explain no failure."""

_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"Data-dependent shapes are only allowed in the top-level scope",
        "a NonZero inside an If or Loop body cannot be built; move the mask out of the branch, or "
        "fold the condition to a constant before export",
    ),
    (
        r"NonMaxSuppression|NMSLayer|kNMS|NON_MAX_SUPPRESSION",
        "this TensorRT has no NonMaxSuppression; export without it and select boxes outside the "
        "engine, or use a head that needs none",
    ),
    (
        r"NON_ZERO.*no runners|NonZero plugin creator version",
        "the model still holds ONNX NonZero; rewrite it with nonzero-rewrite first, or build with "
        "--unpatched on TensorRT for RTX",
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
        r"Plugin not found|Cannot find plugin|not found in (the )?[Pp]lugin [Rr]egistry",
        "a plugin other than NonZeroPlugin is missing; `nonzero-rewrite doctor MODEL` lists which",
    ),
)

_LIBRARY_FAULT = re.compile(r"Error Code 2|Internal Error|Assertion|Unexpected exception|outermost")


def find_node(messages: Sequence[str], model: onnx.ModelProto) -> onnx.NodeProto | None:
    """The node that the latest message names; of several in one message the longest name.

    TensorRT names layers after ONNX nodes and tensors after ONNX tensors.
    """
    names: dict[str, onnx.NodeProto] = {}
    for _, node in walk_nodes(model.graph):
        for name in (*node.output, node.name):
            if name:
                names[name] = node
    for message in reversed(messages):
        found = [name for name in names if name in message and _stands_alone(name, message)]
        if found:
            return names[max(found, key=len)]
    return None


def _stands_alone(name: str, message: str) -> bool:
    return re.search(rf"(?<![\w/.]){re.escape(name)}(?![\w/])", message) is not None


def advice(messages: Sequence[str]) -> str | None:
    """What can be done about a failure of this kind, or None where it is not a known one."""
    for message in reversed(messages):
        for pattern, text in _ADVICE:
            if re.search(pattern, message):
                return text
    return None


def explain(messages: Sequence[str], model: onnx.ModelProto | None) -> tuple[str, str | None]:
    """The sentence that follows "TensorRT failed", and the node's label where one was named."""
    told = [message for message in messages if not NOISE.search(message)]
    node = find_node(told, model) if model is not None else None
    parts: list[str] = []
    label = None
    if node is not None and model is not None:
        label = node_label(node)
        parts.append(f"at node {label!r} ({node.op_type})")
        ancestors = [name for name in nonzero_ancestors(model, label) if name != label]
        if ancestors:
            more = f" and {len(ancestors) - 3} more" if len(ancestors) > 3 else ""
            listed = ", ".join(repr(name) for name in ancestors[:3])
            parts.append(f"which descends from NonZero {listed}{more}")
    if told:
        parts.append(f"TensorRT says: {told[-1].strip()}")
    hint = advice(told)
    if hint is None and any(_LIBRARY_FAULT.search(message) for message in told):
        hint = (
            "this is a fault inside TensorRT; a newer version may build it, and the messages above "
            "are what its maintainers need"
        )
    if hint:
        parts.append(f"what can be done: {hint}")
    return "; ".join(parts), label
