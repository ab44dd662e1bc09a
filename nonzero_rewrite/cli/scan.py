"""``nonzero-rewrite scan``: what is there, and what rewrite would make of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from nonzero_rewrite.cli import results_console, user_errors
from nonzero_rewrite.cli.options import make_options, rewrite_options
from nonzero_rewrite.errors import EXIT_ERROR


@click.command("scan")
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@rewrite_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, one object a model.")
@user_errors
def command(*, models: tuple[Path, ...], as_json: bool, **choices: Any) -> None:
    """List every NonZero of MODELS (files, or folders that are searched for .onnx files).

    Shows its mask, where the mask comes from, who uses the indices, where the exporter says it
    comes from, and what `rewrite` would make of it; and the other operators that TensorRT or
    TensorRT-RTX is known not to build. Exits with 1 when a model cannot be read, or a folder has
    none.
    """
    from nonzero_rewrite.api import scan_model
    from nonzero_rewrite.batch import models_of
    from nonzero_rewrite.errors import NonZeroRewriteError
    from nonzero_rewrite.scan_report import render_scan

    options = make_options(**choices)
    console = results_console(quiet=as_json)
    entries: list[dict[str, Any]] = []
    failed = False

    def fail(path: Path, err: NonZeroRewriteError) -> None:
        nonlocal failed
        failed = True
        click.echo(f"Error: {err}", err=True)
        entries.append({"model": str(path), "error": str(err)})

    paths: list[Path] = []
    for path in models:
        try:
            paths += models_of(path) if path.is_dir() else [path]
        except NonZeroRewriteError as err:
            fail(path, err)
    for path in paths:
        try:
            result = scan_model(path, options)
        except NonZeroRewriteError as err:
            fail(path, err)
            continue
        entries.append(
            {
                "model": str(path),
                **result.plan.to_dict(),
                "blockers": [blocker.to_dict() for blocker in result.blockers],
            }
        )
        render_scan(path, result, console, brief=len(paths) > 1)
    if as_json:
        click.echo(json.dumps(entries, indent=2))
    sys.exit(EXIT_ERROR if failed else 0)
