"""Draws the nodes around a NonZero as SVG: what feeds it and what uses it, a few steps each way."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from nonzero_rewrite.function import is_ours
from nonzero_rewrite.node import attribute, is_onnx, node_label
from nonzero_rewrite.rules.tape import REPLACES_KEY, RULE_KEY

RADIUS = 2
MAX_BOXES = 13
MAX_PER_ROW = 3
BOX_WIDTH, BOX_HEIGHT = 134, 40
GAP_X, GAP_Y = 10, 30
_NAME_CHARS = 20

_Makers = ChainMap[str, int]
"""Tensor name to the number of the node that makes it; the innermost graph first."""


@dataclass
class _Node:
    """A node, where it stands in the list of all, and its neighbours there."""

    proto: NodeProto
    label: str
    path: str
    parents: list[int] = field(default_factory=list)
    users: list[int] = field(default_factory=list)

    @property
    def metadata(self) -> dict[str, str]:
        return {entry.key: entry.value for entry in self.proto.metadata_props}


class Neighbourhood:
    """The nodes of a model, bodies included, with their neighbours; of no use for editing."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes: list[_Node] = []
        self._by_output: dict[str, int] = {}
        self._stands_for: dict[str, int] = {}
        self._walk(model.graph, "", ChainMap())
        for number, node in enumerate(self.nodes):
            if is_ours(node.proto):
                for name in filter(None, node.metadata.get(REPLACES_KEY, "").split(",")):
                    self._stands_for.setdefault(name, number)
            for parent in node.parents:
                self.nodes[parent].users.append(number)

    def _walk(self, graph: GraphProto, path: str, outer: _Makers) -> _Makers:
        known = outer.new_child()
        for position, proto in enumerate(graph.node):
            node = _Node(proto, node_label(proto, position), path)
            parents = [known[name] for name in proto.input if name in known]
            for name, body in _bodies(proto):
                inner = self._walk(body, f"{path}/{node.label}.{name}", known)
                parents += [inner[out.name] for out in body.output if out.name in inner]
                used = {n for each in body.node for n in each.input}
                parents += [known[n] for n in used if n in known]
            node.parents = sorted(set(parents))
            self.nodes.append(node)
            for name in filter(None, proto.output):
                known[name] = len(self.nodes) - 1
                self._by_output.setdefault(name, len(self.nodes) - 1)
        return known

    def nonzeros(self) -> Iterator[int]:
        """The NonZero nodes."""
        for number, node in enumerate(self.nodes):
            if is_onnx(node.proto, "NonZero"):
                yield number

    def plugins(self) -> Iterator[int]:
        """The NonZeroPlugin nodes."""
        for number, node in enumerate(self.nodes):
            if is_ours(node.proto):
                yield number

    def counterparts(self, other: Neighbourhood, number: int) -> tuple[str, list[int]]:
        """What became of node ``number`` of the original ``other``, and which nodes show it.

        One of "left as it is", "served by NonZeroPlugin" and "not needed any more".
        """
        original = other.nodes[number]
        same = self._by_output.get(original.proto.output[0])
        if same is not None and is_onnx(self.nodes[same].proto, "NonZero"):
            return "left as it is", [same]
        server = self._stands_for.get(original.label)
        if server is None:  # a node without a name: by what it made
            made = [original, *(other.nodes[n] for n in original.users)]
            makers = [self._by_output.get(name) for node in made for name in node.proto.output]
            server = next((n for n in makers if n is not None and self._is_plugin(n)), None)
        if server is not None:
            return "served by NonZeroPlugin", [server]
        # Not needed any more: the nodes that rules put where its neighbours were.
        names = {n for near in other.around([number]) for n in other.nodes[near].proto.output}
        names |= set(original.proto.input)
        close = {self._by_output[name] for name in names if name in self._by_output}
        close |= {user for near in close for user in self.nodes[near].users}
        near_rules = sorted(near for near in close if RULE_KEY in self.nodes[near].metadata)
        written = [near for near in near_rules if not self._is_plugin(near)]
        return "not needed any more", written or sorted(close)[:1]

    def _is_plugin(self, number: int) -> bool:
        return is_ours(self.nodes[number].proto)

    def around(self, centres: Iterable[int]) -> list[int]:
        """``centres`` and the nearest nodes, constants left out, in the order of the graph."""
        chosen = list(dict.fromkeys(centres))[:MAX_BOXES]
        ring = chosen
        for _ in range(RADIUS):
            found = [n for c in ring for n in (*self.nodes[c].users, *self.nodes[c].parents)]
            ring = [
                n
                for n in dict.fromkeys(found)
                if n not in chosen and not is_onnx(self.nodes[n].proto, "Constant")
            ]
            chosen = (chosen + ring)[:MAX_BOXES]
        return sorted(chosen)

    def svg(self, centres: Sequence[int], title: str) -> str:
        """The picture, an inline ``<svg>`` that takes its colours from the page's style sheet."""
        chosen = self.around(centres)
        rows = self._rows(chosen)
        places: dict[int, tuple[int, int]] = {}
        width = max(map(len, rows)) * (BOX_WIDTH + GAP_X) + GAP_X
        for row, members in enumerate(rows):
            indent = (width - len(members) * (BOX_WIDTH + GAP_X) + GAP_X) // 2
            for column, number in enumerate(members):
                x = indent + column * (BOX_WIDTH + GAP_X)
                places[number] = (x, GAP_Y + row * (BOX_HEIGHT + GAP_Y))
        height = len(rows) * (BOX_HEIGHT + GAP_Y) + GAP_Y
        parts = [
            f'<svg class="graph" role="img" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}">',
            f"<title>{safe(title)}</title>",
            *(self._edges(number, places) for number in chosen),
            *(self._box(number, places[number], number in centres) for number in chosen),
            "</svg>",
        ]
        return "".join(parts)

    def _rows(self, chosen: Sequence[int]) -> list[list[int]]:
        """Rows by the longest way from above; a full row goes on below it."""
        depth: dict[int, int] = {}
        for number in chosen:
            above = [depth[parent] for parent in self.nodes[number].parents if parent in depth]
            depth[number] = max(above, default=-1) + 1
        rows: list[list[int]] = []
        for level in range(max(depth.values()) + 1):
            members = [number for number in chosen if depth[number] == level]
            rows += [
                members[start : start + MAX_PER_ROW]
                for start in range(0, len(members), MAX_PER_ROW)
            ]
        return rows

    def _edges(self, number: int, places: dict[int, tuple[int, int]]) -> str:
        x, y = places[number]
        node, end = self.nodes[number], x + BOX_WIDTH // 2
        lines = []
        for parent in node.parents:
            if parent in places:
                left, top = places[parent]
                start, below = left + BOX_WIDTH // 2, top + BOX_HEIGHT
                lines.append(
                    f'<path class="edge" d="M{start} {below} C{start} {below + GAP_Y // 2} '
                    f'{end} {y - GAP_Y // 2} {end} {y - 2}"/>'
                )
        if any(parent not in places for parent in node.parents) or not node.parents:
            lines.append(f'<path class="edge far" d="M{end} {y - GAP_Y // 2} V{y - 2}"/>')
        if any(user not in places for user in node.users) or not node.users:
            low = y + BOX_HEIGHT
            lines.append(f'<path class="edge far" d="M{end} {low} V{low + GAP_Y // 2}"/>')
        return "".join(lines)

    def _box(self, number: int, place: tuple[int, int], centre: bool) -> str:
        node, (x, y) = self.nodes[number], place
        kind = "plugin" if is_ours(node.proto) else "nonzero" if centre else "plain"
        if kind == "plain" and RULE_KEY in node.metadata:
            kind = "written"
        where = f" in {node.path}" if node.path else ""
        hint = f"{node.proto.op_type} {node.label}{where}{_layout(node.proto)}"
        middle = x + BOX_WIDTH // 2
        return (
            f'<g class="node {kind}"><title>{safe(hint)}</title>'
            f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
            f'<text class="op" x="{middle}" y="{y + 17}">{safe(_short(node.proto.op_type))}</text>'
            f'<text class="name" x="{middle}" y="{y + 32}">{safe(_short(node.label))}</text></g>'
        )


def _bodies(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    for attr in node.attribute:
        if attr.type == AttributeProto.GRAPH:
            yield attr.name, attr.g
        elif attr.type == AttributeProto.GRAPHS:
            for graph in attr.graphs:
                yield attr.name, graph


def _layout(node: NodeProto) -> str:
    perm = attribute(node, "perm")
    return f", perm {list(perm.ints)}" if perm is not None else ""


def _short(name: str) -> str:
    """The end of a name says more than its beginning."""
    return name if len(name) <= _NAME_CHARS else "\N{HORIZONTAL ELLIPSIS}" + name[1 - _NAME_CHARS :]


def safe(text: str) -> str:
    """``text`` for HTML: escaped, and without the control characters that names may hold."""
    plain = "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return escape(plain, quote=True)
