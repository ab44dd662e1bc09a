"""Writes new nodes in the words of the model's opset, with names that nothing else has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, StringStringEntryProto, helper, numpy_helper

from nonzero_rewrite.graph import Scope

RULE_KEY = "nonzero_rewrite.rule"
"""``metadata_props`` key on every node the tool writes; the value is the rule's name."""

REPLACES_KEY = "nonzero_rewrite.replaces"
"""``metadata_props`` key: the names of the nodes that the new node stands for, comma separated."""

SITE_KEY = "nonzero_rewrite.site"
"""A mark on each NonZero while the rules run; it survives inlining and is taken off at the end."""


class Names:
    """Hands out value and node names that occur nowhere in the model."""

    def __init__(self, scopes: Iterable[Scope]) -> None:
        self._scopes = tuple(scopes)
        self._taken: set[str] | None = None
        self._node_names: dict[int, set[str]] = {}

    def _all(self) -> set[str]:
        if self._taken is None:
            self._taken = {""}
            for root in self._scopes:
                for scope in root.walk():
                    self._taken.update(scope.producer, scope.uses, scope.initializers)
                    self._taken.update(scope.inputs, scope.outputs)
        return self._taken

    def new(self, wish: str) -> str:
        """``wish`` itself where it is free, else with the first free number behind it."""
        name = _free(wish, self._all())
        self._all().add(name)
        return name

    def node(self, wish: str, graph: Scope | None = None) -> str:
        """As ``new``, for the name of a node; onnxruntime wants those unique within a ``graph``.

        Without a graph the name occurs in none. An empty wish stays empty.
        """
        if not wish:
            return ""
        key = id(graph)
        if key not in self._node_names:
            every = (scope for root in self._scopes for scope in root.walk())
            self._node_names[key] = {
                node.name for scope in ([graph] if graph else every) for node in scope.nodes
            }
        name = _free(wish, self._node_names[key])
        for names in self._node_names.values():
            names.add(name)
        return name


def _free(wish: str, taken: set[str]) -> str:
    name, number = wish, 1
    while name in taken:
        number += 1
        name = f"{wish}_{number}"
    return name


def set_metadata(node: NodeProto, key: str, value: str) -> None:
    """Set one ``metadata_props`` entry."""
    for entry in node.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    node.metadata_props.append(StringStringEntryProto(key=key, value=value))


@dataclass
class Tape:
    """Collects the nodes of one replacement, producers first.

    Args:
        names: where new names come from.
        opset: version of the ONNX domain; decides between attribute and input forms.
        rule: the rule that writes, kept in each node's metadata.
        prefix: what new names start with.
    """

    names: Names
    opset: int
    rule: str
    prefix: str
    nodes: list[NodeProto] = field(default_factory=list)

    def op(
        self, op_type: str, inputs: Sequence[str], output: str | None = None, **attrs: Any
    ) -> str:
        """Add a node of the ONNX domain with one output; returns the output's name."""
        name = output or self.names.new(f"{self.prefix}_{op_type.lower()}")
        label = self.names.node(f"{name}_node")
        node = helper.make_node(op_type, list(inputs), [name], name=label, **attrs)
        set_metadata(node, RULE_KEY, self.rule)
        self.nodes.append(node)
        return name

    def constant(self, value: NDArray[np.generic], output: str | None = None) -> str:
        """Add a Constant."""
        name = output or self.names.new(f"{self.prefix}_constant")
        return self.op("Constant", [], name, value=numpy_helper.from_array(value, f"{name}_value"))

    def ints(self, *values: int) -> str:
        """Add a 1-D INT64 constant."""
        return self.constant(np.array(values, dtype=np.int64))

    def scalar(self, value: int) -> str:
        """Add an INT64 scalar constant."""
        return self.constant(np.array(value, dtype=np.int64))

    def _axes(
        self, op_type: str, x: str, axes: Sequence[int], output: str | None, **attrs: Any
    ) -> str:
        if self.opset < 13:
            return self.op(op_type, [x], output, axes=list(axes), **attrs)
        return self.op(op_type, [x, self.ints(*axes)], output, **attrs)

    def unsqueeze(self, x: str, axes: Sequence[int], output: str | None = None) -> str:
        """Unsqueeze with axes as attribute below opset 13, as input from 13 on."""
        return self._axes("Unsqueeze", x, axes, output)

    def squeeze(self, x: str, axes: Sequence[int], output: str | None = None) -> str:
        """Squeeze with axes as attribute below opset 13, as input from 13 on."""
        return self._axes("Squeeze", x, axes, output)

    def reduce_sum(
        self, x: str, axes: Sequence[int], keepdims: int, output: str | None = None
    ) -> str:
        """ReduceSum with axes as attribute below opset 13, as input from 13 on."""
        return self._axes("ReduceSum", x, axes, output, keepdims=keepdims)

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape to a constant shape."""
        return self.op("Reshape", [x, self.ints(*shape)])
