"""Who makes and who uses each value of one graph, and of the graphs that its nodes carry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import onnx
from onnx import FunctionProto, GraphProto, NodeProto

from nonzero_rewrite.errors import UnsupportedModelError
from nonzero_rewrite.node import CONTROL_FLOW, ONNX_DOMAINS, node_label, subgraphs
from nonzero_rewrite.order import check_names, check_order

if TYPE_CHECKING:
    from nonzero_rewrite.graph import Scope

MAX_NESTING = 33
"""Graphs within graphs; protobuf reads 100 messages within each other, three for each graph."""


class Index:
    """One graph with its uses; ``Scope`` adds edits.

    Args:
        proto: the graph or function.
        path: where it is, for people: ``""`` for the main graph, ``If 'name'/then_branch`` below
            it, ``function 'domain::name'`` for a function.
        parent: the scope whose node carries this graph, with ``holder`` as that node's handle.
    """

    def __init__(
        self,
        proto: GraphProto | FunctionProto,
        path: str = "",
        parent: Scope | None = None,
        holder: int = -1,
    ) -> None:
        self.proto: Any = proto  # GraphProto or FunctionProto; they share what is used here
        self.path = path
        self.parent = parent
        self.holder = holder
        self._nesting: int = 0 if parent is None else parent._nesting + 1
        if self._nesting > MAX_NESTING:
            raise UnsupportedModelError(
                f"its graphs lie in each other deeper than the {MAX_NESTING} that protobuf reads; "
                "build it without so many nested If or Loop"
            )
        self._held: dict[int, list[Scope]] = {}  # by the handle of the node that carries them
        self.captures: dict[str, list[Scope]] = {}
        self.nodes: list[NodeProto] = list(proto.node)
        self._original = len(self.nodes)
        # Order as a linked list, so that a node goes in front of any other in constant time.
        self._prev = list(range(-1, self._original - 1))
        self._next = [*range(1, self._original), -1] if self.nodes else []
        self._removed: set[int] = set()
        self.producer: dict[str, int] = {}
        self.uses: dict[str, list[int]] = {}
        self.is_function = isinstance(proto, FunctionProto)
        if isinstance(proto, FunctionProto):
            self.inputs = list(proto.input)
            self.outputs = list(proto.output)
            self.initializers: dict[str, onnx.TensorProto] = {}
            self._sparse: set[str] = set()
        else:
            self.inputs = [value.name for value in proto.input]
            self.outputs = [value.name for value in proto.output]
            self.initializers = {tensor.name: tensor for tensor in proto.initializer}
            self._sparse = {tensor.values.name for tensor in proto.sparse_initializer}
        self._output_set = frozenset(self.outputs)
        self._input_set = frozenset(self.inputs)
        self._index()

    def _as_scope(self) -> Scope:
        return self  # type: ignore[return-value]  # only Scope is ever made

    def _index(self) -> None:
        """Note who makes and who uses each value, and the graphs below."""
        producer, uses = self.producer, self.uses
        by_type: dict[str, list[int]] = {}
        foreign = []
        in_order = True
        for handle, node in enumerate(self.nodes):
            for name in node.input:
                if name in uses:
                    uses[name].append(handle)
                else:
                    uses[name] = [handle]
            for name in node.output:
                if (name in uses or name in producer) and name:
                    in_order = False
                producer[name] = handle
            op_type = node.op_type
            if op_type in by_type:
                by_type[op_type].append(handle)
            else:
                by_type[op_type] = [handle]
            if node.domain not in ONNX_DOMAINS:
                foreign.append(handle)
        self._by_type = by_type
        self.foreign = tuple(foreign)
        carriers = {*foreign, *(h for op_type in CONTROL_FLOW for h in by_type.get(op_type, ()))}
        producer.pop("", None)
        uses.pop("", None)
        check_names(self, by_type)
        if not in_order:
            check_order(self)
        for handle in sorted(carriers):
            node = self.nodes[handle]
            for name, graph in subgraphs(node):
                label = f"{node.op_type} {node_label(node, handle)!r}/{name}"
                path = f"{self.path}/{label}" if self.path else label
                child = type(self._as_scope())(graph, path, self._as_scope(), handle)
                self._held.setdefault(handle, []).append(child)
        for child in self.children:
            self._note_captures(child)

    def _note_captures(self, child: Scope) -> None:
        for name in child.free_names():
            children = self.captures.setdefault(name, [])
            if child not in children:
                children.append(child)

    # -- reading -------------------------------------------------------------------------------

    def defines(self, name: str) -> bool:
        """True when ``name`` is an input, an initializer or a node's output of this very graph."""
        return (
            name in self.producer
            or name in self._input_set
            or name in self.initializers
            or name in self._sparse
        )

    def is_output(self, name: str) -> bool:
        """True when ``name`` is an output of this graph."""
        return name in self._output_set

    def is_input(self, name: str) -> bool:
        """True when ``name`` is an input of this graph, be it one with a default."""
        return name in self._input_set

    def owner(self, name: str) -> Scope | None:
        """The scope, this one or an outer one, that defines ``name``."""
        scope: Scope | None = self._as_scope()
        while scope is not None and not scope.defines(name):
            scope = scope.parent
        return scope

    def name_is_fixed(self, name: str) -> bool:
        """True when ``name`` is an output of this graph or, captured, of one below it."""
        return self.is_output(name) or any(
            child.name_is_fixed(name) for child in self.captures.get(name, ())
        )

    def made_by(self, name: str) -> NodeProto | None:
        """The node of this graph that makes ``name``, or None."""
        handle = self.producer.get(name)
        return None if handle is None else self.nodes[handle]

    def is_used(self, name: str) -> bool:
        """True when ``name`` is used by a node, captured by a nested graph, or an output."""
        return bool(self.uses.get(name) or self.captures.get(name)) or self.is_output(name)

    def users(self, name: str) -> list[int]:
        """Handles of the nodes of this graph that take ``name`` as an input, each once."""
        return list(dict.fromkeys(self.uses.get(name, ())))

    def is_removed(self, handle: int) -> bool:
        """True once ``remove`` was called for ``handle``."""
        return handle in self._removed

    def removed(self) -> list[NodeProto]:
        """The nodes that were taken out."""
        return [self.nodes[handle] for handle in sorted(self._removed)]

    def live(self) -> Iterator[tuple[int, NodeProto]]:
        """Handles and nodes that are not removed; those inserted stand last."""
        for handle, node in enumerate(self.nodes):
            if handle not in self._removed:
                yield handle, node

    def ancestors(self, names: Iterable[str], known: Callable[[str], bool]) -> list[int]:
        """Handles of the nodes that ``names`` are computed from, producers first.

        Walks no further up than values for which ``known`` is true; the ``names`` themselves are
        always walked. Values captured by nested graphs count as inputs of the node that holds them.
        """
        order: list[int] = []
        state: dict[int, bool] = {}  # False while open, True once listed
        roots = set(names)
        stack: list[tuple[int, bool]] = [
            (self.producer[name], False) for name in roots if name in self.producer
        ]
        while stack:
            handle, leaving = stack.pop()
            if leaving:
                state[handle] = True
                order.append(handle)
                continue
            if handle in state:
                continue
            state[handle] = False
            stack.append((handle, True))
            for name in self.inputs_of(handle):
                above = self.producer.get(name)
                if above is not None and above not in state and not known(name):
                    stack.append((above, False))
        return order

    def inputs_of(self, handle: int) -> list[str]:
        """The values a node needs, those captured by the graphs it carries included."""
        names = [name for name in self.nodes[handle].input if name]
        for child in self.held_by(handle):
            names += child.free_names()
        return names

    def free_names(self) -> list[str]:
        """The values this graph, or one below it, takes from outside."""
        named = dict.fromkeys([*self.uses, *self.captures, *self.outputs])
        return [name for name in named if not self.defines(name)]

    def of_type(self, op_type: str) -> list[int]:
        """Handles of the nodes of this graph, not removed, whose operator is called so."""
        handles = self._by_type.get(op_type, ())
        return [handle for handle in handles if handle not in self._removed]

    @property
    def children(self) -> list[Scope]:
        """The graphs that nodes of this one carry."""
        return [child for children in self._held.values() for child in children]

    def held_by(self, handle: int) -> list[Scope]:
        """The graphs that one node carries."""
        return self._held.get(handle, [])

    def walk(self) -> Iterator[Scope]:
        """This scope and all below it."""
        yield self._as_scope()
        for child in self.children:
            yield from child.walk()

    @property
    def root(self) -> Scope:
        """The outermost scope above this one."""
        return self._as_scope() if self.parent is None else self.parent.root

    def label(self, handle: int) -> str:
        """The node's name, or its stand-in."""
        return node_label(self.nodes[handle], handle)
