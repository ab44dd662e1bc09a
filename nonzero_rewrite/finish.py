"""Puts the edits of a rewrite into the protobuf, and adds what the new nodes need."""

from __future__ import annotations

from typing import Any

from nonzero_plugin.contract import OP_TYPE
from onnx import ModelProto

from nonzero_rewrite.function import add_function, import_domain, is_ours
from nonzero_rewrite.graph import Scope
from nonzero_rewrite.infer import Types
from nonzero_rewrite.tensor_type import value_info


def write_edits(scopes: list[Scope], types: Types) -> bool:
    """Flush the scopes of a model, types and weights included; False when nothing was edited."""
    every = [scope for root in scopes for scope in root.walk()]
    if not any(scope.changed for scope in every):
        return False
    for scope in every:
        _update_value_info(scope, types)
        _drop_initializers(scope)
    for root in scopes:
        root.flush()
    return True


def add_operator(
    model: ModelProto, opset: int, *, function: bool, capped: bool, guarded: bool
) -> None:
    """Let ``model`` know the operator: by its function, or by its domain alone."""
    if function:
        add_function(model, opset, capped=capped, guarded=guarded)
    else:
        import_domain(model)


def _drop_initializers(scope: Scope) -> None:
    """Remove weights that only removed nodes used."""
    freed = {
        name
        for node in scope.removed()
        for name in node.input
        if name in scope.initializers and not scope.is_input(name) and not scope.is_used(name)
    }
    if freed:
        _drop(scope.proto.initializer, freed)


def _update_value_info(scope: Scope, types: Types) -> None:
    """Drop types of values that are gone; add those of the plugin's outputs."""
    proto = scope.proto
    gone = {name for node in scope.removed() for name in node.output}
    gone -= scope.producer.keys()
    known = _drop(proto.value_info, gone)
    for node in (scope.nodes[handle] for handle in scope.of_type(OP_TYPE)):
        if is_ours(node):
            for name in node.output:
                if name not in known and not scope.is_output(name):
                    of = types.of(scope, name)
                    proto.value_info.append(value_info(name, of))


def _drop(entries: Any, names: set[str]) -> set[str]:
    """Remove the protobuf entries that are called so, at once; returns the names of the others."""
    all_names = [entry.name for entry in entries]
    gone = [name in names for name in all_names]
    if any(gone):
        in_order = iter(gone)
        entries.sort(key=lambda _: next(in_order))
        del entries[len(gone) - sum(gone) :]
    return set(all_names) - names
