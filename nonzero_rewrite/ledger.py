"""Keeps account of every NonZero while the rules run, until what becomes of it is decided.

Each NonZero carries its site's id in ``metadata_props`` meanwhile. The mark survives inlining and
hoisting, so a node is known again wherever it goes, and is taken off when its fate is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import NodeProto

from nonzero_rewrite.errors import PlanError
from nonzero_rewrite.find import Site, identified
from nonzero_rewrite.graph import Scope
from nonzero_rewrite.options import SiteOptions
from nonzero_rewrite.plan import Decision
from nonzero_rewrite.rules import SkipReason
from nonzero_rewrite.rules.context import Verdict
from nonzero_rewrite.rules.tape import RULE_KEY, SITE_KEY, set_metadata


@dataclass
class _Record:
    """What is noted about one NonZero node until its decision is made."""

    site: Site
    rules: list[str] = field(default_factory=list)
    misses: dict[str, str] = field(default_factory=dict)


class Ledger:
    """Marks, notes and decisions of one rewrite; ``sites`` are by id, in graph order."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = sites
        self._records: dict[str, _Record] = {}
        self._decisions: list[Decision] = []
        self._inlined: set[str] = set()

    def open(self, scopes: list[Scope]) -> None:
        """Mark every NonZero; one that is malformed is decided at once."""
        for root in scopes:
            for scope in root.walk():
                for handle in scope.of_type("NonZero"):
                    unmark(scope.nodes[handle])  # a mark that somebody else left
        for name, _, _, node in identified(scopes):
            if len(node.input) == len(node.output) == 1 and node.input[0] and node.output[0]:
                set_metadata(node, SITE_KEY, name)
            else:
                left = Decision(self.sites[name], "left", (), SkipReason.MALFORMED)
                self._decisions.append(left)

    def note_inlined(self, main: Scope) -> None:
        """Remember which sites came into the main graph, or below it, out of a function."""
        for scope in main.walk():
            for handle in scope.of_type("NonZero"):
                name = tag(scope.nodes[handle])
                if name and self.sites[name].graph.startswith("function "):
                    self._inlined.add(name)

    def note(self, nodes: Iterable[NodeProto], rule: str, verdict: Verdict) -> None:
        """Remember what a rule said about ``nodes``."""
        for record in map(self._record, nodes):
            if verdict.applied:
                record.rules.append(rule)
                record.misses.pop(rule, None)
            elif verdict.condition and rule not in record.rules:
                record.misses.setdefault(rule, verdict.condition)

    def decide(
        self,
        nonzero: NodeProto,
        outcome: str,
        reason: SkipReason | None = None,
        rules: tuple[str, ...] = (),
        **facts: Any,
    ) -> None:
        """Settle what becomes of a node; ``facts`` are further fields of its ``Decision``."""
        record = self._record(nonzero)
        self._decisions.append(
            Decision(
                record.site,
                outcome,
                tuple(dict.fromkeys((*record.rules, *rules))),
                reason,
                near_misses=tuple(record.misses.items()),
                **facts,
            )
        )
        unmark(nonzero)

    def close(self, wishes: Mapping[str, SiteOptions]) -> tuple[Decision, ...]:
        """All decisions in graph order.

        A NonZero without one went with something else: a function that nobody calls, a branch that
        is never taken.

        Raises:
            PlanError: a decision is not what ``wishes``, by site id, demands.
        """
        decided = {decision.site.id for decision in self._decisions}
        for name, site in self.sites.items():
            if name not in decided:
                rule = "inline-function" if site.graph.startswith("function") else "inline-if"
                rules = (rule if site.graph else "unused",)
                self._decisions.append(Decision(site, "removed", rules))
        for decision in self._decisions:
            _check_wish(decision, wishes.get(decision.site.id, SiteOptions()).outcome)
        order = {name: number for number, name in enumerate(self.sites)}
        return tuple(sorted(self._decisions, key=lambda decision: order[decision.site.id]))

    def _record(self, node: NodeProto) -> _Record:
        key = f"{tag(node)}\n{node.output[0]}"
        if key not in self._records:
            lifted = ["inline-function"] if tag(node) in self._inlined else []
            for entry in node.metadata_props:
                lifted += entry.value.split(",") if entry.key == RULE_KEY else ()
            self._records[key] = _Record(self.sites[tag(node)], lifted)
        return self._records[key]


def tag(node: NodeProto) -> str:
    """The id of the site that ``node`` is, or ``""`` once it is decided."""
    for entry in node.metadata_props:
        if entry.key == SITE_KEY:
            return str(entry.value)
    return ""


def unmark(node: NodeProto) -> None:
    """Take the mark off."""
    for number in reversed(range(len(node.metadata_props))):
        if node.metadata_props[number].key == SITE_KEY:
            del node.metadata_props[number]


def _check_wish(decision: Decision, wish: str | None) -> None:
    if wish in (None, decision.outcome):
        return
    why = decision.summary
    if decision.near_misses:
        why += "; " + "; ".join(f"{rule}: {c}" for rule, c in decision.near_misses)
    raise PlanError(
        f"the plan wants NonZero {decision.site.node!r} to be {wish}, "
        f"but it is {decision.outcome}: {why}"
    )
