"""An index over one graph: who makes a value, who uses it, and edits that keep both right.

A ``Scope`` is the main graph, the body of an If, Loop or Scan, or a model-local function. Nodes are
addressed by handles (small integers that never change); edits are collected and written into
the protobuf once by ``flush``, so that any number of edits costs linear time and every node that
no edit touches stays the same message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from nonzero_rewrite.errors import UnsupportedModelError

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_ONNX_DOMAINS = frozenset({"", "ai.onnx"})
_NEWEST = 2**31 - 1
"""As an opset version: the newest that the installed onnx knows."""
_FIRST_OPSET = 9
"""The one that brought NonZero; operators older than that are in no model that matters here."""


MAX_NESTING = 33
"""Graphs within graphs; protobuf reads 100 messages within each other, three for each graph."""
NOT_UTF8 = (
    "a name in the model is not UTF-8 text, so the file is damaged or its exporter is; "
    "export or download it again"
)


@contextmanager
def readable_names() -> Iterator[None]:
    """Turn what protobuf raises for text that is not UTF-8 into a sentence.

    Raises:
        UnsupportedModelError: for that.
    """
    try:
        yield
    except UnicodeDecodeError as err:
        raise UnsupportedModelError(NOT_UTF8) from err


def is_onnx(node: NodeProto, *op_types: str) -> bool:
    """True when ``node`` is one of the named operators of the ONNX domain.

    A node with fewer or more inputs or outputs than any version of its operator since opset 9 takes
    is none of it, so that callers may rely on them. A NonZero always counts, to be reported.
    """
    if node.op_type not in op_types or node.domain not in _ONNX_DOMAINS:
        return False
    least_in, most_in, least_out, most_out = _arity(node.op_type)
    return least_in <= len(node.input) <= most_in and least_out <= len(node.output) <= most_out


@functools.cache
def _arity(op_type: str) -> tuple[int, int, int, int]:
    """Least and most inputs, least and most outputs of an ONNX operator; see above."""
    found = []
    version = _NEWEST
    while version >= _FIRST_OPSET and op_type != "NonZero" and onnx.defs.has(op_type, version, ""):
        schema = onnx.defs.get_schema(op_type, version, "")
        found.append((schema.min_input, schema.max_input, schema.min_output, schema.max_output))
        version = schema.since_version - 1
    if not found:
        return 0, _NEWEST, 0, _NEWEST
    least_in, most_in, least_out, most_out = zip(*found, strict=True)
    return min(least_in), max(most_in), min(least_out), max(most_out)


def attribute(node: NodeProto, name: str) -> AttributeProto | None:
    """The attribute called ``name``, or None."""
    found: AttributeProto
    for found in node.attribute:
        if found.name == name:
            return found
    return None


def int_attribute(node: NodeProto, name: str, default: int) -> int:
    """The INT attribute called ``name``, or ``default`` where it is absent."""
    attr = attribute(node, name)
    return default if attr is None else int(attr.i)


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """The graphs that ``node`` carries as attributes, with the attribute's name."""
    if node.domain in _ONNX_DOMAINS and node.op_type not in _CONTROL_FLOW:
        return
    for attr in node.attribute:
        if attr.type == AttributeProto.GRAPH:
            yield attr.name, attr.g
        elif attr.type == AttributeProto.GRAPHS:
            for number, graph in enumerate(attr.graphs):
                yield f"{attr.name}[{number}]", graph


def node_label(node: NodeProto, number: int) -> str:
    """The node's name, or a stand-in made of its operator and its place in the node list."""
    return text(node.name) or f"{node.op_type}#{number}"


def text(value: str | bytes) -> str:
    """A string of a model as text: protobuf gives bytes for one that is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


class Scope:
    """One graph with its uses; see the module's text.

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
            if node.domain not in _ONNX_DOMAINS:
                foreign.append(handle)
        self._by_type = by_type
        self.foreign = tuple(foreign)
        carriers = {*foreign, *(h for op_type in _CONTROL_FLOW for h in by_type.get(op_type, ()))}
        producer.pop("", None)
        uses.pop("", None)
        self._check_names(by_type)
        if not in_order:
            self._check_order()
        for handle in sorted(carriers):
            node = self.nodes[handle]
            for name, graph in subgraphs(node):
                label = f"{node.op_type} {node_label(node, handle)!r}/{name}"
                path = f"{self.path}/{label}" if self.path else label
                child = Scope(graph, path, self, handle)
                self._held.setdefault(handle, []).append(child)
        for child in self.children:
            self._note_captures(child)

    def _check_names(self, by_type: dict[str, list[int]]) -> None:
        """Protobuf gives bytes for what is not UTF-8; no name may be one."""
        groups = (self.producer, self.uses, by_type, self.inputs, self.outputs, self.initializers)
        if any(bytes in set(map(type, names)) for names in groups):
            raise UnsupportedModelError(NOT_UTF8)

    def _check_order(self) -> None:
        """Refuse nodes that wait for each other; those that merely stand in any order pass.

        Raises:
            UnsupportedModelError: two nodes make one value, or a value follows from itself.
        """
        place = self.path or "the main graph"
        made: dict[str, int] = {}
        for handle, node in enumerate(self.nodes):
            for name in node.output:
                if name and made.setdefault(name, handle) != handle:
                    raise UnsupportedModelError(
                        f"value {name!r} in {place} is made by two nodes, "
                        f"{self.label(made[name])!r} and {self.label(handle)!r}, so no runtime "
                        "can run the model; export it again"
                    )
        waiting = [sum(name in self.producer for name in node.input if name) for node in self.nodes]
        ready = [handle for handle, count in enumerate(waiting) if not count]
        for handle in ready:
            for name in self.nodes[handle].output:
                for user in self.uses.get(name, ()):
                    waiting[user] -= 1
                    if not waiting[user]:
                        ready.append(user)
        if len(ready) < len(self.nodes):
            stuck = next(handle for handle, count in enumerate(waiting) if count)
            raise UnsupportedModelError(
                f"node {self.label(stuck)!r} in {place} waits for its own result, so no runtime "
                "can run the model; export it again"
            )

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
        scope: Scope | None = self
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
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def key(self) -> tuple[tuple[int, str], ...]:
        """The place of this graph as handles and attribute names, unique in its root."""
        if self.parent is None:
            return ()
        return (*self.parent.key, (self.holder, self.path.rsplit("/", 1)[-1]))

    @property
    def root(self) -> Scope:
        """The outermost scope above this one."""
        return self if self.parent is None else self.parent.root

    @property
    def changed(self) -> bool:
        """True when an edit waits for ``flush``."""
        return bool(self._removed) or len(self.nodes) > self._original

    def label(self, handle: int) -> str:
        """The node's name, or its stand-in."""
        return node_label(self.nodes[handle], handle)

    # -- editing -------------------------------------------------------------------------------

    def remove(self, handle: int) -> None:
        """Take a node out; its outputs must have been given to another node or be unused."""
        node = self.nodes[handle]
        self._removed.add(handle)
        for name in set(node.input):
            if name:
                self._drop_use(name, handle)
        for name in node.output:
            if self.producer.get(name) == handle:
                del self.producer[name]
        for child in self._held.pop(handle, ()):
            for scope in child.walk():
                self._forget_captures(scope)

    def insert(self, node: NodeProto, before: int) -> int:
        """Put a new node directly in front of the node ``before`` (which may be removed since)."""
        handle = len(self.nodes)
        self.nodes.append(node)
        ahead = self._prev[before]
        self._prev.append(ahead)
        self._next.append(before)
        self._prev[before] = handle
        if ahead >= 0:
            self._next[ahead] = handle
        self._note_node(node, handle)
        return handle

    def replace(self, handle: int, nodes: list[NodeProto]) -> list[int]:
        """Put ``nodes`` where ``handle`` stood."""
        self.remove(handle)
        return [self.insert(node, handle) for node in nodes]

    def rename_uses(self, old: str, new: str) -> None:
        """Let everybody who used ``old`` in this graph or below use ``new``; outputs stay."""
        for handle in self.users(old):
            node = self.nodes[handle]
            for slot, name in enumerate(node.input):
                if name == old:
                    node.input[slot] = new
                    self.uses.setdefault(new, []).append(handle)
        self.uses.pop(old, None)
        for child in self.captures.pop(old, []):
            child.rename_uses(old, new)
            self._capture(new, child)
        if self.parent is not None:
            if not self.defines(new) and (new in self.uses or new in self.captures):
                self.parent._capture(new, self)
            if not self.defines(old):
                self.parent._release(old, self)

    def set_input(self, handle: int, slot: int, new: str) -> None:
        """Let one input of one node be ``new``."""
        node = self.nodes[handle]
        old = node.input[slot]
        node.input[slot] = new
        uses = self.uses[old]
        uses.remove(handle)
        if not uses:
            del self.uses[old]
        self.uses.setdefault(new, []).append(handle)

    def rename_output(self, handle: int, slot: int, new: str) -> None:
        """Let one output of one node be called ``new``; the users are not touched."""
        node = self.nodes[handle]
        self.producer.pop(node.output[slot], None)
        node.output[slot] = new
        self.producer[new] = handle

    def sweep(self, handles: list[int]) -> list[int]:
        """Remove those of ``handles`` whose outputs nobody uses, and then what only they used.

        Nodes that carry graphs stay. Returns the removed handles.
        """
        swept: list[int] = []
        queue = list(handles)
        while queue:
            handle = queue.pop()
            if handle in self._removed:
                continue
            node = self.nodes[handle]
            if any(self.is_used(name) for name in node.output if name):
                continue
            if self.held_by(handle):
                continue
            inputs = [name for name in node.input if name]
            self.remove(handle)
            swept.append(handle)
            queue.extend(self.producer[name] for name in inputs if name in self.producer)
        return swept

    def in_order(self, handles: Iterable[int]) -> list[int]:
        """``handles`` as their nodes stand in the graph; without insertions that is by number."""
        if len(self.nodes) == self._original:
            return sorted(handles)
        return sorted(handles, key=self._places().__getitem__)

    def _places(self) -> list[int]:
        """The place of every handle among the nodes, removed ones counted."""
        place = [0] * len(self.nodes)
        handle = 0
        while self._prev[handle] >= 0:
            handle = self._prev[handle]
        for rank in range(len(self.nodes)):
            place[handle] = rank
            handle = self._next[handle]
        return place

    def flush(self) -> None:
        """Write the edits of this graph and of those below it into the protobuf."""
        for child in self.children:
            child.flush()
        if not self.changed:
            return
        place, end = self._places(), len(self.nodes)
        for handle in self._removed:
            place[handle] += end
        self.proto.node.extend(self.nodes[self._original :])
        in_order = iter(place)
        # Python's sort asks for the keys in list order, so this pairs each node with its key.
        self.proto.node.sort(key=lambda _: next(in_order))
        if self._removed:
            del self.proto.node[len(self.nodes) - len(self._removed) :]

    # -- bookkeeping ---------------------------------------------------------------------------

    def _note_node(self, node: NodeProto, handle: int) -> None:
        self._by_type.setdefault(node.op_type, []).append(handle)
        for name in node.output:
            if name:
                self.producer[name] = handle
        for name in node.input:
            if name:
                self.uses.setdefault(name, []).append(handle)
                if not self.defines(name) and self.parent is not None:
                    self.parent._capture(name, self)

    def _drop_use(self, name: str, handle: int) -> None:
        uses = [user for user in self.uses.get(name, ()) if user != handle]
        if uses:
            self.uses[name] = uses
            return
        self.uses.pop(name, None)
        if self.parent is not None and not self.defines(name) and name not in self.captures:
            self.parent._release(name, self)

    def _capture(self, name: str, child: Scope) -> None:
        children = self.captures.setdefault(name, [])
        if child not in children:
            children.append(child)
        if not self.defines(name) and self.parent is not None:
            self.parent._capture(name, self)

    def _release(self, name: str, child: Scope) -> None:
        children = self.captures.get(name, [])
        if child in children:
            children.remove(child)
        if not children:
            self.captures.pop(name, None)
            if self.parent is not None and not self.defines(name) and name not in self.uses:
                self.parent._release(name, self)

    def _note_captures(self, child: Scope) -> None:
        for name in child.free_names():
            children = self.captures.setdefault(name, [])
            if child not in children:
                children.append(child)

    def _forget_captures(self, child: Scope) -> None:
        for name in list(self.captures):
            if child in self.captures[name]:
                self._release(name, child)


def scopes_of(model: ModelProto) -> list[Scope]:
    """The main graph's scope first, then one for each model-local function."""
    scopes = [Scope(model.graph)]
    for function in model.functions:
        if bytes in (type(function.name), type(function.domain)):
            raise UnsupportedModelError(NOT_UTF8)
        scopes.append(Scope(function, f"function '{function.domain}::{function.name}'"))
    return scopes
