"""An index over one graph: who makes a value, who uses it, and edits that keep both right.

A ``Scope`` is the main graph, the body of an If, Loop or Scan, or a model-local function. Nodes are
addressed by handles (small integers that never change); edits are collected and written into
the protobuf once by ``flush``, so that any number of edits costs linear time and every node that
no edit touches stays the same message.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, NodeProto

from nonzero_rewrite.errors import UnsupportedModelError
from nonzero_rewrite.index import Index
from nonzero_rewrite.node import NOT_UTF8


class Scope(Index):
    """One graph with its uses, and edits that keep them right; see the module's text."""

    @property
    def changed(self) -> bool:
        """True when an edit waits for ``flush``."""
        return bool(self._removed) or len(self.nodes) > self._original

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
        return sorted(handles, key=self.places().__getitem__)

    def places(self) -> list[int]:
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
        place, end = self.places(), len(self.nodes)
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
