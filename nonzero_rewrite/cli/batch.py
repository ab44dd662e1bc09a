"""The part of ``nonzero-rewrite`` that takes several models: ``MODEL... -O OUTDIR -j N``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nonzero_rewrite.cli import results_console

if TYPE_CHECKING:
    from nonzero_plugin.build import BuildOptions
    from rich.console import Console
    from rich.progress import Progress

    from nonzero_rewrite.file_task import FileResult
    from nonzero_rewrite.options import Options

_WORDS = {0: "done", 1: "error", 3: "DIFFERS", 4: "no engine"}
_COLOURS = {0: "green", 1: "red", 3: "red", 4: "yellow"}


def rewrite_many(
    models: Sequence[Path],
    folder: Path,
    options: Options,
    *,
    jobs: int,
    verify: bool,
    engines: Path | None,
    build: BuildOptions,
    external_data: str,
    as_json: bool,
) -> int:
    """Rewrite every model into ``folder``, print a table (or JSON), and return the exit code.

    Raises:
        NonZeroRewriteError: the models cannot be told apart, or a folder has none.
    """
    from rich.console import Console

    from nonzero_rewrite.batch import find_models, rewrite_files, worst_code
    from nonzero_rewrite.file_task import FileTask
    from nonzero_rewrite.write import check_outputs

    tasks = [
        FileTask(
            source,
            target,
            options,
            verify=verify,
            engine=_engine(target, folder, engines),
            build=build,
            external_data=external_data,
        )
        for source, target in find_models(models, folder)
    ]
    check_outputs([build.timing_cache], *(task.source for task in tasks))
    console = Console(stderr=True)
    with _progress(console, len(tasks)) as progress:

        def show(result: FileResult) -> None:
            if result.error:
                console.print(
                    f"Error: {_sentence(result)}", markup=False, highlight=False, soft_wrap=True
                )
            for task in progress.task_ids:
                progress.advance(task)

        results = rewrite_files(tasks, jobs=jobs, on_result=show)
    code = worst_code(results)
    if as_json:
        account = {"models": [result.to_dict() for result in results], "exit_code": code}
        click.echo(json.dumps(account, indent=2))
    else:
        _summary(results, results_console(), verify=verify, build=engines is not None)
    return code


def _engine(target: Path, folder: Path, engines: Path | None) -> Path | None:
    return engines and (engines / target.relative_to(folder)).with_suffix(".engine")


def _sentence(result: FileResult) -> str:
    name = str(result.source)
    return result.error if name in result.error else f"{name}: {result.error}"


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        progress.add_task("models", total=total)
        yield progress


def _summary(results: Sequence[FileResult], console: Console, **asked: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("model", "NonZero", "plugin", "removed", "left"):
        table.add_column(name, justify="left" if name == "model" else "right", overflow="fold")
    for name in ("verify", "build"):
        if asked[name]:
            table.add_column({"verify": "parity", "build": "engine"}[name])
    table.add_column("result")
    table.add_column("seconds", justify="right")
    base = os.path.commonpath([result.source.absolute().parent for result in results])
    for result in results:
        counts = [result.outcomes.get(name, 0) for name in ("plugin", "removed", "left")]
        numbers = map(str, (sum(counts), *counts)) if result.plan else ["-"] * 4
        row = [escape(os.path.relpath(result.source.absolute(), base)), *numbers]
        if asked["verify"]:
            row.append(result.verification.outcome.value if result.verification else "-")
        if asked["build"]:
            row.append("built" if result.engine else "-")
        row.append(f"[{_COLOURS[result.code]}]{_WORDS[result.code]}[/]")
        table.add_row(*row, f"{result.seconds:.1f}")
    console.print(table)
    console.print(_totals(results), highlight=False)


def _totals(results: Sequence[FileResult]) -> str:
    counts: dict[str, int] = {}
    for result in results:
        counts[_WORDS[result.code]] = counts.get(_WORDS[result.code], 0) + 1
    parts = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{len(results)} models: {parts}"


def refuse_single(given: dict[str, Any]) -> None:
    """Options that belong to one model only are a wrong command line with -O."""
    for option, value in given.items():
        if value:
            raise click.UsageError(f"{option} works on one model; do without --output-dir")
