"""Follows an update back to the items it was computed from, and repeats the way on all items."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx import NodeProto, TensorProto

from nonzero_rewrite.node import int_attribute, is_onnx
from nonzero_rewrite.rules.context import Context
from nonzero_rewrite.rules.group import RANK_LAST, Group
from nonzero_rewrite.rules.tape import Tape
from nonzero_rewrite.tensor_type import TensorType

_FLOAT_TYPES = frozenset(
    {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
)

# Correctly rounded or exact, item by item, in any implementation that follows IEEE 754.
_EXACT = frozenset(
    {
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Floor", "Greater"),
        *("GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Max", "Min"),
        *("Mul", "Neg", "Not", "Or", "Relu", "Round", "Sign", "Sqrt", "Sub", "Where", "Xor"),
    }
)

# Starts, axes and steps of a Slice that takes the first items along the first axis, by input.
_FIRST_ITEMS = {1: [0], 3: [0], 4: [1]}


@dataclass
class Chain:
    """The item-by-item computation from GatherND on the same indices to an update.

    Args:
        group: the indices.
        context: facts to prove conditions by.
        data: what is written into.
        update: what is written; ``root`` is the value behind it once reshapes are looked through.
        through: operators that are looked through.
    """

    group: Group
    context: Context
    data: str
    update: str
    through: tuple[str, ...] = ("Expand", "Reshape", "Slice")
    root: str = ""
    order: list[NodeProto] = field(default_factory=list)
    gathers: dict[str, str] = field(default_factory=dict)  # GatherND's output -> what it reads
    reason: str = ""
    _seen: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self._look_through(self.update)

    def _look_through(self, name: str) -> str:
        """What ``name`` equals if it is written whole; see ``scatter``'s text.

        Not through a Slice that an Expand follows: it may leave one item, and that spreads again.
        """
        scope, row = self.group.scope, self._row()
        root, spread = name, False
        node = scope.made_by(root)
        while (
            node is not None
            and row is not None
            and is_onnx(node, *self.through)
            and (self._keeps_rows(node, row) if row else self._keeps_vector(node))
            and not (spread and is_onnx(node, "Slice"))
        ):
            spread = spread or is_onnx(node, "Expand")
            root = node.input[0]
            node = scope.made_by(root)
        return root if root == name or not row or self._has_rows(root, row) else name

    def _row(self) -> tuple[int | str, ...] | None:
        """The sizes of one selected place, ``()`` for a single item; None where not known."""
        scope, types = self.group.scope, self.context.facts.types
        types.need([(scope, self.data), (scope, self.group.mask)])
        of_data, rank = types.of(scope, self.data), types.of(scope, self.group.mask).rank
        if of_data.dims is None or rank is None or len(of_data.dims) < rank:
            return None
        row = tuple(dim for dim in of_data.dims[rank:] if dim is not None)
        return row if len(row) == len(of_data.dims) - rank else None

    def _has_rows(self, name: str, row: tuple[int | str, ...]) -> bool:
        """True for a value of one dim more than ``row`` that ends in it."""
        types = self.context.facts.types
        types.need([(self.group.scope, name)])
        dims = types.of(self.group.scope, name).dims
        return dims is not None and len(dims) == len(row) + 1 and dims[1:] == row

    def _keeps_rows(self, node: NodeProto, row: tuple[int | str, ...]) -> bool:
        """True for what keeps the items and their order, or makes whole rows more or fewer."""
        if is_onnx(node, "Reshape"):
            return True
        if is_onnx(node, "Expand"):
            return self._has_rows(node.input[0], row) and self._has_rows(node.output[0], row)
        return self._from_the_start(node) and self._has_rows(node.input[0], ())

    def _keeps_vector(self, node: NodeProto) -> bool:
        """True for what can only give a vector of as many items back, or one of another size."""
        if not is_onnx(node, "Reshape", "Expand"):
            return self._from_the_start(node)
        return self._is_one_number(node.input[1])

    def _is_one_number(self, name: str) -> bool:
        types = self.context.facts.types
        types.need([(self.group.scope, name)])
        return types.of(self.group.scope, name).dims == (1,)

    def _from_the_start(self, node: NodeProto) -> bool:
        """True for a Slice that takes the first items along the first axis."""
        scope, facts = self.group.scope, self.context.facts
        return all(
            (value := facts.constant(scope, name)) is not None
            and value.tolist() == _FIRST_ITEMS[slot]
            for slot, name in enumerate(node.input)
            if name and slot in _FIRST_ITEMS
        )

    def collect(self, name: str, depth: int) -> bool:
        """Walk up from ``name``; False with ``reason`` where something is not item by item.

        Walks on after that, because only what reaches a GatherND was near at all.
        """
        if name not in self._seen:
            self._seen[name] = self._collect(name, depth)
        return self._seen[name]

    def _collect(self, name: str, depth: int) -> bool:
        scope, facts = self.group.scope, self.context.facts
        node = scope.made_by(name)
        if node is not None and is_onnx(node, "GatherND") and node.input[1] in self.group.aliases:
            return self._gather(name, node)
        if facts.scalar(scope, name) is not None or self._is_trailing_constant(name):
            return True
        if node is None:
            return self._fail(f"{name!r} is not taken from the same places")
        if depth > 32:
            return self._fail("the computation is too long")
        fits = self._works_item_by_item(node)
        for each in node.input:
            if each:
                fits = self.collect(each, depth + 1) and fits
        if fits:
            self.order.append(node)
        return fits

    def _works_item_by_item(self, node: NodeProto) -> bool:
        if node.op_type not in _EXACT or not is_onnx(node, node.op_type):
            return self._fail(f"{node.op_type} is not exact item by item")
        if node.op_type in ("Div", "Cast") and not self._is_float(node):
            return self._fail(f"{node.op_type} of unselected integers may differ or fail")
        return True

    def _gather(self, name: str, node: NodeProto) -> bool:
        scope, facts = self.group.scope, self.context.facts
        if self.group.aliases[node.input[1]] is not RANK_LAST or int_attribute(
            node, "batch_dims", 0
        ):
            return self._fail("GatherND uses the indices in another way")
        facts.types.need([(scope, node.input[0])])
        self.gathers[name] = node.input[0]
        if not facts.same_shape(scope, node.input[0], self.data):
            return self._fail(f"{node.input[0]!r} is not surely shaped like {self.data!r}")
        return True

    def _is_trailing_constant(self, name: str) -> bool:
        """True for a constant that broadcasts over the dims behind the mask's only."""
        scope, types = self.group.scope, self.context.facts.types
        data, mask = types.of(scope, self.data).rank, types.of(scope, self.group.mask).rank
        value = self.context.facts.constant(scope, name)
        return (
            value is not None
            and data is not None
            and mask is not None
            and value.ndim <= data - mask
        )

    def _is_float(self, node: NodeProto) -> bool:
        types = self.context.facts.types
        self.context.facts.types.need([(self.group.scope, node.input[0])])
        of: TensorType = types.of(self.group.scope, node.input[0])
        if node.op_type == "Cast":
            return of.elem_type == TensorProto.BOOL or (
                of.elem_type in _FLOAT_TYPES and int_attribute(node, "to", 0) in _FLOAT_TYPES
            )
        return of.elem_type in _FLOAT_TYPES

    def _fail(self, reason: str) -> bool:
        self.reason = self.reason or reason
        return False

    def write(self, tape: Tape, mask: str) -> str:
        """The same computation on all items; returns the value that stands for the update."""
        renamed = dict(self.gathers)
        for node in self.order:
            inputs = [renamed.get(each, each) for each in node.input]
            renamed[node.output[0]] = tape.op(node.op_type, inputs)
            tape.nodes[-1].attribute.extend(node.attribute)
        return renamed[self.root]
