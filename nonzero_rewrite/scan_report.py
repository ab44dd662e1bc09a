"""Formats what a scan found, for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from nonzero_rewrite.report import render_blockers, render_plan
from nonzero_rewrite.rewrite import RewriteResult

if TYPE_CHECKING:
    from rich.console import Console

MAX_DETAILS = 24


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
        for site in result.sites[:MAX_DETAILS]:
            chain = " <- ".join(site.mask_from) or "?"
            users = ", ".join(site.consumers) or "nobody"
            console.print(
                f"  {escape(site.node)}: {escape(chain)}; used by {escape(users)}", highlight=False
            )
            if site.trace:
                console.print(f"    {escape(site.trace)}", style="dim", highlight=False)
        if len(result.sites) > MAX_DETAILS:
            console.print(
                f"  ... and {len(result.sites) - MAX_DETAILS} more in --json", highlight=False
            )
    console.print()
