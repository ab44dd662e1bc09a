"""What every rule is given, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.node import attribute, is_onnx
from nonzero_rewrite.options import Options
from nonzero_rewrite.rules.tape import Names, Tape
from nonzero_rewrite.values import Facts


@dataclass(frozen=True)
class Verdict:
    """A rule's answer: applied, or the condition that failed; without one, no such pattern."""

    applied: bool
    condition: str = ""


APPLIED = Verdict(True)
NO_MATCH = Verdict(False)


def near_miss(condition: str) -> Verdict:
    """The pattern is there, but ``condition`` could not be proved."""
    return Verdict(False, condition)


@dataclass
class Context:
    """The means of one rewrite, shared by all rules.

    Attributes:
        facts: types, constants and proofs.
        names: gives out unused names.
        options: what the user wants.
    """

    facts: Facts
    names: Names
    options: Options

    @property
    def opset(self) -> int:
        """Version of the ONNX domain the model imports."""
        return self.facts.opset

    def tape(self, rule: str, prefix: str) -> Tape:
        """A new tape for one replacement."""
        return Tape(self.names, self.opset, rule, prefix)

    def flags(self, tape: Tape, scope: Scope, mask: str) -> str:
        """``mask``, which is of one dim or more, as BOOL.

        onnxruntime up to 1.23 makes one of two Casts in a row, and FLOAT -> INT64 -> BOOL is not
        FLOAT -> BOOL: a Concat of one keeps them apart.
        """
        if behind_cast(scope, mask):
            mask = tape.op("Concat", [mask], axis=0)
        return tape.op("Cast", [mask], to=TensorProto.BOOL)

    def finish(self, scope: Scope, handle: int, tape: Tape) -> list[int]:
        """Put the tape's nodes where ``handle`` stood, and remove what nobody needs any more.

        Returns the handles that went, ``handle`` first.
        """
        inputs = [name for name in scope.nodes[handle].input if name]
        scope.replace(handle, tape.nodes)
        above = [scope.producer[name] for name in inputs if name in scope.producer]
        return [handle, *scope.sweep(above)]


def behind_cast(scope: Scope, name: str) -> bool:
    """True when ``name`` comes straight from a Cast."""
    node = scope.made_by(name)
    while node is not None and is_onnx(node, "Identity"):
        node = scope.made_by(node.input[0])
    return node is not None and is_onnx(node, "Cast")


def axes_of(facts: Facts, scope: Scope, node: NodeProto) -> list[int] | None:
    """What an attribute or the second input says; None where that is not known, or no integers."""
    attr = attribute(node, "axes")
    if attr is not None:
        return list(attr.ints)
    given = facts.constant(scope, node.input[1]) if len(node.input) > 1 else None
    if given is None or given.dtype.kind not in "iu":
        return None
    axes: list[int] = given.ravel().tolist()
    return axes
