"""What becomes of each NonZero, as plain data that a person can read, edit and apply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nonzero_rewrite.errors import PlanError
from nonzero_rewrite.find import Site
from nonzero_rewrite.options import Options, SiteOptions
from nonzero_rewrite.rules import SkipReason

PLAN_FORMAT = 1


@dataclass(frozen=True)
class Decision:
    """What becomes of one NonZero.

    Attributes:
        site: the NonZero.
        outcome: ``"plugin"``, ``"removed"`` or ``"left"``.
        rules: the rules that were applied, in order.
        reason: why it is left, for ``"left"``.
        node: the plugin node that serves it, for ``"plugin"``.
        rank_last: the plugin's layout, for ``"plugin"``.
        backend: the plugin's backend, for ``"plugin"``.
        max_nonzero: the plugin's cap.
        near_misses: rules whose pattern was there, with the condition that failed.
    """

    site: Site
    outcome: str
    rules: tuple[str, ...] = ()
    reason: SkipReason | None = None
    node: str | None = None
    rank_last: bool | None = None
    backend: str | None = None
    max_nonzero: int | None = None
    near_misses: tuple[tuple[str, str], ...] = ()

    @property
    def summary(self) -> str:
        """What became of it, in a few words."""
        if self.outcome == "left":
            assert self.reason is not None
            return self.reason.value
        if self.outcome == "removed":
            return f"not needed any more ({', '.join(self.rules)})"
        layout = "[num_nonzero, rank]" if self.rank_last else "[rank, num_nonzero]"
        return f"NonZeroPlugin {self.node!r}, {layout}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "id": self.site.id,
            "outcome": self.outcome,
            "rules": list(self.rules),
            "reason": self.reason.name if self.reason else None,
            "node": self.node,
            "layout": None
            if self.rank_last is None
            else ("num_nonzero,rank" if self.rank_last else "rank,num_nonzero"),
            "backend": self.backend,
            "max_nonzero": self.max_nonzero,
            "near_misses": [
                {"rule": rule, "condition": condition} for rule, condition in self.near_misses
            ],
            "site": self.site.to_dict(),
        }


@dataclass(frozen=True)
class RewritePlan:
    """The options of a rewrite and what they make of each NonZero.

    ``to_json`` writes it; a person may then change an entry's ``outcome`` (``left``, ``plugin``,
    ``removed``), ``backend`` or ``max_nonzero``, and the general ``options``; ``options_from_json``
    turns the file into the options that do just that.
    """

    options: Options
    decisions: tuple[Decision, ...]

    def count(self, outcome: str) -> int:
        """How many NonZero have this outcome."""
        return sum(decision.outcome == outcome for decision in self.decisions)

    @property
    def leftovers(self) -> int:
        """How many NonZero stay NonZero in the main graph, where TensorRT may still build them."""
        return sum(d.outcome == "left" and not d.site.graph for d in self.decisions)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "format": PLAN_FORMAT,
            "options": self.options.to_dict(),
            "decisions": [decision.to_dict() for decision in self.decisions],
        }

    def to_json(self) -> str:
        """The plan file's text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"


def read_plan(path: Path) -> Options:
    """The options that a plan file asks for.

    Raises:
        PlanError: when the file is no plan, with the entry that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as err:
        raise PlanError(
            f"{path}: the plan cannot be read: {err.strerror or err}; "
            "write one with --dry-run --plan FILE"
        ) from err
    except UnicodeDecodeError as err:
        raise PlanError(
            f"{path}: not a rewrite plan, which is UTF-8 text; write one with --dry-run --plan FILE"
        ) from err
    try:
        return options_from_json(text)
    except PlanError as err:
        raise PlanError(f"{path}: {err}") from err


def options_from_json(text: str) -> Options:
    """As ``read_plan``, from the text itself."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as err:
        raise PlanError(
            f"not JSON ({err}); mend it, or write one with --dry-run --plan FILE"
        ) from err
    except (RecursionError, ValueError) as err:  # too deep, or a number of thousands of digits
        raise PlanError("not a rewrite plan; write one with --dry-run --plan FILE") from err
    if not isinstance(data, dict) or data.get("format") != PLAN_FORMAT:
        raise PlanError(
            f"not a rewrite plan of format {PLAN_FORMAT}; write one with --dry-run --plan FILE"
        )
    general = _take(data, "options", Mapping)
    rules = _take(general, "rules", list)
    sites: dict[str, SiteOptions] = {}
    for number, entry in enumerate(_take(data, "decisions", list)):
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            raise PlanError(
                f"decisions[{number}] has no id; remove it, or make the plan again from the model"
            )
        wanted = SiteOptions(
            _wish(entry),
            _optional(entry, "backend", str),
            _optional(entry, "max_nonzero", int),
        )
        before = sites.setdefault(entry["id"], wanted)
        if before != wanted:  # a function's NonZero that is inlined several times
            sites[entry["id"]] = replace(wanted, outcome=None)
    return Options(
        backend=_take(general, "backend", str),
        rules=frozenset(str(rule) for rule in rules),
        max_nonzero=_optional(general, "max_nonzero", int),
        function=bool(_take(general, "function", bool)),
        sites=sites,
    )


def _wish(entry: Mapping[str, Any]) -> str | None:
    """The outcome that an entry demands; None where it says what the rules made of it anyway.

    Rules may have taken some users from a NonZero that stays; a demand would keep them from it.
    """
    outcome: str | None = _optional(entry, "outcome", str)
    rules, reason = entry.get("rules"), entry.get("reason")
    if outcome == "plugin" and isinstance(rules, list) and "plugin" in rules:
        return None
    if outcome == "left" and reason not in (None, SkipReason.EXCLUDED.name):
        return None
    return outcome


_KINDS: dict[type, str] = {
    Mapping: "an object",
    bool: "true or false",
    int: "a whole number",
    list: "an array",
    str: "a string",
}
"""What JSON calls them."""


def _take(data: Any, key: str, kind: type) -> Any:
    value = data.get(key) if isinstance(data, Mapping) else None
    if not isinstance(value, kind):
        raise PlanError(
            f"{key!r} is missing or not {_KINDS[kind]}; "
            "mend it, or write one with --dry-run --plan FILE"
        )
    return value


def _optional(data: Mapping[str, Any], key: str, kind: type) -> Any:
    value = data.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise PlanError(f"{key!r} is {value!r}; it must be null or {_KINDS[kind]}")
    return value
