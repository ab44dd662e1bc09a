"""Other operators that keep a model from being built, so that nobody believes it is ready.

What TensorRT for RTX refuses was measured with its builder, 1.7.1; see docs/troubleshooting.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nonzero_plugin.contract import DOMAIN
from onnx import ModelProto, NodeProto

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import attribute, is_onnx

_UNBUILDABLE = {
    "NonMaxSuppression": "TensorRT-RTX has no implementation of NonMaxSuppression",
    "RoiAlign": "TensorRT-RTX makes its RoiAlign plugin only on a machine with a GPU",
    "Unique": "TensorRT-RTX has no implementation of Unique",
}

_REDUCING = ("ScatterND", "ScatterElements")

# Domains whose operators TensorRT's parser looks up as plugins, besides ours.
_KNOWN_DOMAINS = frozenset({"trt.plugins"})


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
        for scope in root.walk():
            for handle in scope.foreign:
                node = scope.nodes[handle]
                if node.domain not in _KNOWN_DOMAINS | {DOMAIN} and (
                    (node.domain, node.op_type) not in functions
                ):
                    reason = f"TensorRT needs a plugin for {node.domain}::{node.op_type}"
                    found.append(Blocker(scope.path, scope.label(handle), node.op_type, reason))
            for op_type in (*_UNBUILDABLE, *_REDUCING):
                for handle in scope.of_type(op_type):
                    why = _reason(scope.nodes[handle])
                    if why:
                        found.append(Blocker(scope.path, scope.label(handle), op_type, why))
    return found


def _reason(node: NodeProto) -> str | None:
    if not is_onnx(node, node.op_type):
        return None
    if node.op_type in _UNBUILDABLE:
        return _UNBUILDABLE[node.op_type]
    reduction = attribute(node, "reduction")
    if reduction is None or reduction.s in (b"", b"none"):
        return None
    how = reduction.s.decode(errors="replace")
    return f"TensorRT-RTX's parser refuses {node.op_type} with reduction {how!r}"
