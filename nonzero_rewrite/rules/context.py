"""What every rule is given, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from nonzero_rewrite.graph import Scope
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

    def finish(self, scope: Scope, handle: int, tape: Tape) -> list[int]:
        """Put the tape's nodes where ``handle`` stood, and remove what nobody needs any more.

        Returns the handles that went, ``handle`` first.
        """
        inputs = [name for name in scope.nodes[handle].input if name]
        scope.replace(handle, tape.nodes)
        above = [scope.producer[name] for name in inputs if name in scope.producer]
        return [handle, *scope.sweep(above)]
