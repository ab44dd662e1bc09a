"""Equal NonZero nodes of one graph together, with everybody who uses their indices."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx import NodeProto, TensorProto

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import CONTROL_FLOW, ONNX_DOMAINS, attribute, int_attribute, is_onnx
from nonzero_rewrite.values import Facts, keeps_nonzero

RANK_FIRST = False
"""Layout ``[rank, num_nonzero]``, ONNX NonZero's own."""
RANK_LAST = True
"""Layout ``[num_nonzero, rank]``, after Transpose."""

_VALUE_NUMBER_DEPTH = 8


@dataclass(frozen=True)
class Use:
    """Input ``slot`` of the node ``handle`` takes ``value``, an alias of the indices."""

    handle: int
    slot: int
    value: str
    layout: bool


@dataclass
class Group:
    """NonZero nodes of ``scope`` that have equal results.

    Attributes:
        mask: the value whose non-zeros are meant, before casts that keep them.
        members: handles of the NonZero nodes, in node order.
        aliases: every name of the indices, each with its layout.
        links: handles of the Transpose and Identity nodes between aliases.
        uses: who takes an alias and is no such link.
        fixed: aliases whose names must stay: graph outputs, and what nested graphs take.
    """

    scope: Scope
    mask: str
    members: list[int]
    aliases: dict[str, bool] = field(default_factory=dict)
    links: list[int] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[NodeProto]:
        """The NonZero nodes."""
        return [self.scope.nodes[handle] for handle in self.members]

    def refresh(self) -> None:
        """Find aliases and uses again after an edit; drops members that are gone."""
        scope = self.scope
        self.members = [handle for handle in self.members if not scope.is_removed(handle)]
        self.aliases, self.links, self.uses, self.fixed = {}, [], [], []
        queue = [(scope.nodes[handle].output[0], RANK_FIRST) for handle in self.members]
        while queue:
            value, layout = queue.pop(0)
            self.aliases[value] = layout
            if scope.is_output(value) or scope.captures.get(value):
                self.fixed.append(value)
            for handle in scope.users(value):
                node = scope.nodes[handle]
                turned = _link(node, layout)
                if turned is not None and node.output[0]:
                    self.links.append(handle)
                    queue.append((node.output[0], turned))
                    continue
                for slot, name in enumerate(node.input):
                    if name == value:
                        self.uses.append(Use(handle, slot, value, layout))

    def unlink(self) -> None:
        """Take every Transpose and Identity for an ordinary user of the indices."""
        outputs = [node.output[0] for node in self.nodes]
        self.aliases = dict.fromkeys(outputs, RANK_FIRST)
        self.fixed = [name for name in self.fixed if name in self.aliases]
        self.uses, self.links = [], []  # every user takes what NonZero gives


def _link(node: NodeProto, layout: bool) -> bool | None:
    """The layout of the node's output when it only turns or renames the indices, else None."""
    if is_onnx(node, "Identity"):
        return layout
    if not is_onnx(node, "Transpose"):
        return None
    perm = attribute(node, "perm")
    # NonZero's result has two dimensions, so the default perm, which reverses them, is [1, 0].
    if perm is None or list(perm.ints) == [1, 0]:
        return not layout
    return layout if list(perm.ints) == [0, 1] else None


class Grouper:
    """Puts NonZero nodes with surely equal results into one group."""

    def __init__(self, scope: Scope, facts: Facts, through_casts: bool, share: bool) -> None:
        self._scope = scope
        self._facts = facts
        self._through_casts = through_casts
        self._share = share
        self._numbers: dict[object, int] = {}
        self._known: dict[tuple[str, int], int] = {}

    def groups(self, handles: list[int]) -> list[Group]:
        """Groups in node order; every handle is in exactly one."""
        found: dict[object, Group] = {}
        for handle in handles:
            source = self._scope.nodes[handle].input[0]
            mask = self._source(source) if self._through_casts else source
            key: object = self._number(mask, 0) if self._share else handle
            if key in found:
                found[key].members.append(handle)
            else:
                found[key] = Group(self._scope, mask, [handle])
        for group in found.values():
            group.refresh()
        return list(found.values())

    def _source(self, name: str) -> str:
        """The value before casts and copies that change no zero and no shape."""
        while True:
            node = self._scope.made_by(name)
            if node is None:
                return name
            if is_onnx(node, "Identity"):
                name = node.input[0]
            elif is_onnx(node, "Cast"):
                source = self._facts.types.of(self._scope, node.input[0]).elem_type
                if source and keeps_nonzero(source, int_attribute(node, "to", 0)):
                    name = node.input[0]
                    continue
                flags = self._flags(node)
                if flags is None:
                    return name
                name = flags
            elif is_onnx(node, "Expand") and self._changes_nothing(node):
                name = node.input[0]
            else:
                return name

    def _flags(self, node: NodeProto | None) -> str | None:
        """The BOOL value at the start of a chain of casts: 0 and 1 survive every one of them."""
        while node is not None and is_onnx(node, "Cast", "Identity"):
            if int_attribute(node, "to", 0) == TensorProto.STRING:
                return None
            source: str = node.input[0]
            if self._facts.types.of(self._scope, source).elem_type == TensorProto.BOOL:
                return source
            node = self._scope.made_by(source)
        return None

    def _changes_nothing(self, node: NodeProto) -> bool:
        """True for an Expand to the size that its input has already."""
        types = self._facts.types
        types.need([(self._scope, node.input[0]), (self._scope, node.output[0])])
        return self._facts.same_shape(self._scope, node.input[0], node.output[0])

    def _number(self, name: str, depth: int) -> int:
        """Equal numbers mean equal values: same operator, attributes and equal inputs."""
        known = self._known.get((name, depth))
        if known is not None:
            return known
        node = self._scope.made_by(name)
        key: object = name
        if node is not None and depth < _VALUE_NUMBER_DEPTH and _is_deterministic(node):
            inputs = tuple(self._number(each, depth + 1) if each else None for each in node.input)
            slot = (list(node.output).index(name), len(node.output))  # Split splits by their number
            attributes = tuple(sorted(attr.SerializeToString() for attr in node.attribute))
            if sum(map(len, attributes)) <= 4096:
                key = (node.op_type, attributes, inputs, slot)
        number = self._numbers.setdefault(key, len(self._numbers))
        self._known[name, depth] = number
        return number


_RANDOM = ("RandomNormal", "RandomUniform", "Multinomial", "Bernoulli", "Dropout")


def _is_deterministic(node: NodeProto) -> bool:
    op_type = node.op_type
    return (
        node.domain in ONNX_DOMAINS
        and op_type not in CONTROL_FLOW
        and not op_type.startswith(_RANDOM)
    )
