"""Finds the NonZero nodes whose input and indices can be watched from outside the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from nonzero_plugin import contract

from nonzero_rewrite.function import is_our_function, is_ours
from nonzero_rewrite.node import is_onnx

_RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial")
)


@dataclass(frozen=True)
class Mask:
    """A top-level node that computes indices of non-zero items.

    ``input`` is the tensor looked at, ``indices`` the node's first output. ``rank_last`` says that
    ``indices`` is ``[num_nonzero, rank]``. ``count`` is the plugin's second output, "" for NonZero.
    ``max_nonzero`` is the plugin's promise, ``int32`` its index type. ``transposed`` are tensors
    which hold the same indices in the other layout.
    """

    node: str
    input: str
    indices: str
    count: str = ""
    rank_last: bool = False
    max_nonzero: int | None = None
    int32: bool = False
    transposed: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The node's name, or the output's where the node has none."""
        return self.node or self.indices

    @property
    def along(self) -> int:
        """The axis of ``indices`` that has one place for each selected item."""
        return 0 if self.rank_last else -1

    def as_nonzero(self, indices: Any) -> np.ndarray:
        """The node's indices as NonZero-13 gives them: INT64, ``[rank, num_nonzero]``."""
        array = np.asarray(indices)
        return array.T.astype(np.int64) if self.rank_last else array.astype(np.int64)


def find_masks(model: onnx.ModelProto) -> tuple[Mask, ...]:
    """NonZero and NonZeroPlugin nodes of the main graph, in graph order."""
    transposes: dict[str, list[str]] = {}
    for node in model.graph.node:
        if is_onnx(node, "Transpose"):
            perm = _ints(node, "perm")
            if perm in (None, (1, 0)):
                transposes.setdefault(node.input[0], []).append(node.output[0])
    masks = []
    for node in model.graph.node:
        if not node.input or not node.output or not node.output[0]:
            continue
        found = tuple(transposes.get(node.output[0], ()))
        if is_onnx(node, "NonZero"):
            masks.append(Mask(node.name, node.input[0], node.output[0], transposed=found))
        elif is_ours(node):
            promise = _ints(node, contract.ATTR_MAX_NONZERO)
            masks.append(
                Mask(
                    node.name,
                    node.input[0],
                    node.output[0],
                    count=node.output[1] if len(node.output) > 1 else "",
                    rank_last=_ints(node, contract.ATTR_PERM) == contract.PERM_RANK_LAST,
                    max_nonzero=promise[0] if promise else None,
                    int32=_ints(node, contract.ATTR_INDEX_TYPE) == (contract.INDEX_INT32,),
                    transposed=found,
                )
            )
    return tuple(masks)


def find_unobserved(model: onnx.ModelProto) -> tuple[str, ...]:
    """NonZero nodes inside subgraphs and model functions, as ``node (NonZero) in place``."""
    found = []
    for node in model.graph.node:
        found += [
            _label(inner, where) for inner, where in _inside(node) if is_onnx(inner, "NonZero")
        ]
    for function in model.functions:
        if is_our_function(function):
            continue
        place = f"function {function.domain}::{function.name}"
        for node in function.node:
            if is_onnx(node, "NonZero"):
                found.append(_label(node, place))
            found += [
                _label(inner, f"{place}/{where}")
                for inner, where in _inside(node)
                if is_onnx(inner, "NonZero")
            ]
    return tuple(found)


def match_masks(original: tuple[Mask, ...], patched: tuple[Mask, ...]) -> Mapping[str, Mask]:
    """Which node of the patched model stands for which NonZero (by ``indices`` of the original).

    A rewriter keeps names: first the indices' own name or that of a folded Transpose decides, then
    the name of the tensor looked at.
    """
    by_output: dict[str, Mask] = {}
    by_input: dict[str, Mask] = {}
    for mask in patched:
        by_output[mask.indices] = mask
        by_input.setdefault(mask.input, mask)
    matched = {}
    for mask in original:
        names = (mask.indices, *mask.transposed)
        found = next((by_output[name] for name in names if name in by_output), None)
        found = found or by_input.get(mask.input)
        if found is not None:
            matched[mask.indices] = found
    return matched


def fixed_masks(model: onnx.ModelProto, masks: tuple[Mask, ...]) -> frozenset[int]:
    """Positions of masks that no input value can change: constants, and ramps made of shapes."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    varying = {value.name for value in model.graph.input if value.name not in defaults}
    for node in model.graph.node:
        if node.op_type in ("Shape", "Size"):
            continue
        used = [*node.input, *(name for inner, _ in _inside(node) for name in inner.input)]
        if node.op_type in _RANDOM or not varying.isdisjoint(used):
            varying.update(node.output)
    return frozenset(i for i, mask in enumerate(masks) if mask.input not in varying)


def observable_names(model: onnx.ModelProto, names: Iterator[str] | list[str]) -> list[str]:
    """Those of ``names`` that must be added as outputs: produced by a node, not yet an output."""
    produced = {name for node in model.graph.node for name in node.output if name}
    outputs = {value.name for value in model.graph.output}
    return [name for name in dict.fromkeys(names) if name in produced and name not in outputs]


def _label(node: onnx.NodeProto, where: str) -> str:
    return f"{node.name or (node.output[0] if node.output else '?')} in {where}"


def _inside(node: onnx.NodeProto) -> Iterator[tuple[onnx.NodeProto, str]]:
    """Nodes of the subgraphs of ``node`` with their path, without recursion."""
    stack = [(node, "")]
    while stack:
        owner, where = stack.pop()
        for attribute in owner.attribute:
            graphs = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else []
            for graph in (*graphs, *attribute.graphs):
                path = f"{where}/" if where else ""
                path += f"{owner.op_type} '{owner.name}' {attribute.name}"
                for inner in graph.node:
                    yield inner, path
                    stack.append((inner, path))


def _ints(node: onnx.NodeProto, name: str) -> tuple[int, ...] | None:
    for attribute in node.attribute:
        if attribute.name == name:
            if attribute.type == onnx.AttributeProto.INT:
                return (attribute.i,)
            return tuple(attribute.ints)
    return None
