"""Makes a patched model plain ONNX again: NonZeroPlugin becomes NonZero and Transpose.

What rules removed for good (a Where for a masked write, a shared NonZero) stays as it is: it is
plain ONNX already, and equal. A ``max_nonzero`` promise is dropped. The IR version stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nonzero_plugin.contract import ATTR_INDEX_TYPE, ATTR_PERM, DOMAIN, INDEX_INT64
from onnx import ModelProto, NodeProto, TensorProto, helper

from nonzero_rewrite.errors import UnsupportedModelError
from nonzero_rewrite.function import is_our_function, is_ours, onnx_opset
from nonzero_rewrite.graph import Scope, scopes_of
from nonzero_rewrite.node import attribute, int_attribute, readable_names
from nonzero_rewrite.rules.tape import REPLACES_KEY, RULE_KEY, Names, Tape

_OWN_KEYS = (RULE_KEY, REPLACES_KEY)


@readable_names()
def restore_model(model: ModelProto) -> int:
    """Undo a rewrite in place; returns how many NonZeroPlugin nodes became plain ONNX.

    The result equals the patched model in onnxruntime, and with it the original.

    Raises:
        UnsupportedModelError: when a NonZeroPlugin node is none that a rewrite writes.
    """
    scopes = scopes_of(model)
    names, opset = Names(scopes), onnx_opset(model)
    restored = 0
    for root in scopes:
        for scope in root.walk():
            for handle, node in list(scope.live()):
                if is_ours(node):
                    _check(node, scope.label(handle))
                    scope.replace(handle, _plain(node, scope, names, opset))
                    _drop_value_info(scope, node)
                    restored += 1
                else:
                    _drop_metadata(node)
        root.flush()
    _drop(model.functions, is_our_function)
    _drop(model.opset_import, lambda each: each.domain == DOMAIN)
    return restored


@readable_names()
def is_patched(model: ModelProto) -> bool:
    """True when a rewrite left anything in ``model``: a NonZeroPlugin node or a mark on a node."""
    return any(
        is_ours(node) or any(entry.key in _OWN_KEYS for entry in node.metadata_props)
        for root in scopes_of(model)
        for scope in root.walk()
        for _, node in scope.live()
    )


def _check(node: NodeProto, label: str) -> None:
    if len(node.input) != 1 or not node.input[0] or not node.output or not node.output[0]:
        raise UnsupportedModelError(
            f"node {label!r} (NonZeroPlugin) has {len(node.input)} inputs and {len(node.output)} "
            "outputs instead of one and two, so this tool did not write it; rewrite the original "
            "model again"
        )


def _plain(node: NodeProto, scope: Scope, names: Names, opset: int) -> list[NodeProto]:
    """The nodes of the ONNX domain that give what ``node`` gives, under the same names."""
    mask, indices = node.input[0], node.output[0]
    count = node.output[1] if len(node.output) > 1 else ""
    perm = attribute(node, ATTR_PERM)
    turned = perm is not None and list(perm.ints) == [1, 0]
    index_type = int_attribute(node, ATTR_INDEX_TYPE, INDEX_INT64)
    last = f"{indices}_nonzero"
    direct = not turned and index_type == INDEX_INT64
    first = indices if direct else names.new(last)
    plain = helper.make_node("NonZero", [mask], [first], name=node.name)
    plain.doc_string = node.doc_string
    plain.metadata_props.extend(node.metadata_props)
    _drop_metadata(plain)
    nodes = [plain]
    tape = Tape(names, opset, "restore", indices)
    value = first
    if turned:
        out = indices if index_type == INDEX_INT64 else None
        value = tape.op("Transpose", [first], out, perm=[1, 0])
    if index_type != INDEX_INT64:
        tape.op("Cast", [value], indices, to=TensorProto.INT32)
    if count and scope.is_used(count):
        shape = tape.op("Shape", [first])
        tape.op("Gather", [shape, tape.scalar(1)], count, axis=0)
    for each in tape.nodes:
        _drop_metadata(each)
    return [*nodes, *tape.nodes]


def _drop_metadata(node: NodeProto) -> None:
    _drop(node.metadata_props, lambda each: each.key in _OWN_KEYS)


def _drop_value_info(scope: Scope, node: NodeProto) -> None:
    count = node.output[1] if len(node.output) > 1 else ""
    if not scope.is_used(count):
        _drop(scope.proto.value_info, lambda each: each.name == count)


def _drop(entries: Any, unwanted: Callable[[Any], bool]) -> None:
    for number in reversed(range(len(entries))):
        if unwanted(entries[number]):
            del entries[number]
