"""Formats what a scan found, for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nonzero_rewrite.find import Site
from nonzero_rewrite.report import MAX_ROWS, escape, grouped, render_blockers, render_plan
from nonzero_rewrite.rewrite import RewriteResult

if TYPE_CHECKING:
    from rich.console import Console


def render_scan(path: Path, result: RewriteResult, console: Console, *, brief: bool) -> None:
    """Print one model's NonZero and blockers; ``brief`` leaves the details of each out."""
    plan = result.plan
    if brief and not plan.decisions and not result.blockers:
        console.print(f"{escape(str(path))}: no NonZero", highlight=False, soft_wrap=True)
        return
    console.print(f"[bold]{escape(str(path))}[/bold]", highlight=False, soft_wrap=True)
    render_plan(plan, console, would=True)
    render_blockers(result.blockers, console)
    if not brief:
        groups = [[decision.site for decision in group] for group in grouped(plan.decisions)]
        for sites in groups[:MAX_ROWS]:
            _details(sites[0], len(sites) - 1, console)
        if len(groups) > MAX_ROWS:
            more = sum(map(len, groups[MAX_ROWS:]))
            console.print(f"  ... and {more} more in --json", highlight=False)
    console.print()


def _details(site: Site, more: int, console: Console) -> None:
    chain = " <- ".join(site.mask_from) or "?"
    users = ", ".join(site.consumers) or "nobody"
    name = f"{site.node} and {more} more" if more else site.node
    console.print(f"  {escape(name)}: {escape(chain)}; used by {escape(users)}", highlight=False)
    if site.trace:
        console.print(f"    {escape(site.trace)}", style="dim", highlight=False)
