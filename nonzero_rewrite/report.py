"""Formats what a rewrite found and did, for people; ``plan.to_dict`` is the form for machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape as escape_markup
from rich.table import Table

from nonzero_rewrite.blockers import Blocker
from nonzero_rewrite.find import Site
from nonzero_rewrite.plan import Decision, RewritePlan

if TYPE_CHECKING:
    from rich.console import Console

MAX_ROWS = 24
"""More NonZero than this are shown in groups that have all but the name in common."""

_COLOUR = {"plugin": "green", "removed": "cyan", "left": "yellow"}


def escape(text: str) -> str:
    """Text from a model or a path, for a console: neither markup nor what a terminal obeys."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return escape_markup("".join(shown))


def render_plan(plan: RewritePlan, console: Console, *, would: bool = False) -> None:
    """Print what became (or ``would`` become) of each NonZero, grouped where there are many."""
    total = len(plan.decisions)
    if not total:
        console.print("No NonZero found: nothing to rewrite.", highlight=False)
        return
    counts = ", ".join(
        f"{plan.count(outcome)} {text}"
        for outcome, text in (
            ("plugin", "to NonZeroPlugin"),
            ("removed", "not needed any more"),
            ("left", "left alone"),
        )
        if plan.count(outcome)
    )
    nodes = len({d.node for d in plan.decisions if d.outcome == "plugin"})
    shared = f" (as {_plural(nodes, 'node')})" if 0 < nodes < plan.count("plugin") else ""
    verb = "would go: " if would else ""
    console.print(f"{total} NonZero found; {verb}{counts}{shared}", highlight=False)
    table = _table("NonZero", "mask", "would become" if would else "became", "rules")
    leaders: set[str | None] = set()
    for group in grouped(plan.decisions):
        first = group[0]
        place = f"{first.site.graph}/" if first.site.graph else ""
        name = escape(place + first.site.node)
        if len(group) > 1:
            name += f" [dim]and {len(group) - 1} more[/dim]"
        colour = _COLOUR[first.outcome]
        became = _became(first, shares=len(group) == 1 and first.node in leaders)
        leaders.add(first.node)
        table.add_row(
            name,
            escape(_mask(first.site)),
            f"[{colour}]{escape(became)}[/{colour}]",
            escape(" ".join(rule for rule in first.rules if rule != "plugin")),
        )
    console.print(table)
    misses = {
        (rule, condition)
        for decision in plan.decisions
        if decision.outcome != "removed"
        for rule, condition in decision.near_misses
    }
    for rule, condition in sorted(misses)[:8]:
        console.print(f"  {escape(rule)} did not apply: {escape(condition)}", highlight=False)


def render_blockers(blockers: Sequence[Blocker], console: Console) -> None:
    """Warn of operators that keep the model from being built whatever becomes of NonZero."""
    by_type: dict[str, list[Blocker]] = {}
    for blocker in blockers:
        by_type.setdefault(blocker.op_type, []).append(blocker)
    for op_type, found in by_type.items():
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        console.print(
            f"[yellow]Still in the way:[/yellow] {op_type} {escape(repr(found[0].node))}{more}: "
            f"{escape(found[0].reason)}",
            highlight=False,
        )


def render_files(files: Iterable[tuple[str, Path]], console: Console) -> None:
    """Print where things are, and how large."""
    for what, path in files:
        console.print(
            f"{what:<8}{escape(str(path))} ({_size(path)})", highlight=False, soft_wrap=True
        )


def render_versions(versions: dict[str, str], console: Console) -> None:
    """Print the versions in one line."""
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    console.print(f"[dim]with {escape(text)}[/dim]", highlight=False)


def _size(path: Path) -> str:
    size = float(path.stat().st_size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def grouped(decisions: Sequence[Decision]) -> list[list[Decision]]:
    """Each by itself or, where they are more than ``MAX_ROWS``, those that differ in name alone."""
    if len(decisions) <= MAX_ROWS:
        return [[decision] for decision in decisions]
    groups: dict[object, list[Decision]] = {}
    for decision in decisions:
        site = decision.site
        key = (decision.outcome, decision.reason, decision.rules, decision.rank_last, site.rank)
        groups.setdefault((*key, site.dtype, site.mask_from[:1], site.graph), []).append(decision)
    return list(groups.values())


def _plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _mask(site: Site) -> str:
    source = f" < {site.mask_from[0]}" if site.mask_from else ""
    return f"{site.mask}{source}"


def _became(decision: Decision, *, shares: bool) -> str:
    if decision.outcome == "left":
        return f"left: {decision.summary}"
    if decision.outcome == "removed":
        return "not needed"
    if shares:
        return f"shares {decision.node}"
    layout = "[K, rank]" if decision.rank_last else "[rank, K]"
    cap = f", K <= {decision.max_nonzero}" if decision.max_nonzero else ""
    return f"plugin {layout}{cap}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        # Names of nodes end in what tells them apart, so they wrap rather than lose their ends.
        table.add_column(column, overflow="fold", no_wrap=number == len(columns) - 1)
    return table
