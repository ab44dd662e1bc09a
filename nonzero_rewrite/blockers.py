"""Other operators that keep a model from being built, so that nobody believes it is ready.

What TensorRT for RTX refuses was measured with its builder, 1.7.1; see docs/troubleshooting.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from onnx import ModelProto, NodeProto

from nonzero_plugin.contract import DOMAIN
from nonzero_rewrite.graph import Scope, attribute, is_onnx

_UNBUILDABLE = {
    "NonMaxSuppression": "TensorRT-RTX has no implementation of NonMaxSuppression",
    "RoiAlign": "TensorRT-RTX's parser asks for a plugin that it does not find",
    "Unique": "TensorRT-RTX has no implementation of Unique",
}

# Domains whose operators TensorRT's parser knows or looks up as plugins.
_KNOWN_DOMAINS = frozenset({"", "ai.onnx", DOMAIN, "trt.plugins"})


@dataclass(frozen=True)
class Blocker:
    """An operator, not NonZero, that TensorRT or TensorRT-RTX is known not to build."""

    graph: str
    node: str
    op_type: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def find_blockers(model: ModelProto, scopes: list[Scope]) -> list[Blocker]:
    """Operators that keep the model from being built whatever becomes of NonZero."""
    functions = {(function.domain, function.name) for function in model.functions}
    found = []
    for root in scopes:
        if root.is_function and root.proto.domain == DOMAIN:
            continue
        for scope in root.walk():
            for handle, node in scope.live():
                reason = _reason(node, functions)
                if reason:
                    found.append(Blocker(scope.path, scope.label(handle), node.op_type, reason))
    return found


def _reason(node: NodeProto, functions: set[tuple[str, str]]) -> str | None:
    if node.domain not in _KNOWN_DOMAINS:
        if (node.domain, node.op_type) in functions:
            return None
        return f"TensorRT needs a plugin for {node.domain}::{node.op_type}"
    if node.op_type in _UNBUILDABLE and is_onnx(node, node.op_type):
        return _UNBUILDABLE[node.op_type]
    if node.op_type in ("ScatterND", "ScatterElements") and is_onnx(node, node.op_type):
        reduction = attribute(node, "reduction")
        if reduction is not None and reduction.s not in (b"", b"none"):
            how = reduction.s.decode(errors="replace")
            return f"TensorRT-RTX's parser refuses {node.op_type} with reduction {how!r}"
    return None
