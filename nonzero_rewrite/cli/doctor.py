"""``nonzero-rewrite doctor``: what is loaded, what is needed, whether it fits."""

from __future__ import annotations

import json
from pathlib import Path

import click

from nonzero_rewrite.cli import user_errors


@click.command("doctor")
@click.argument("target", required=False, type=click.Path(path_type=Path))
@click.option(
    "--trt",
    type=click.Choice(["auto", "tensorrt", "tensorrt_rtx"]),
    default="auto",
    show_default=True,
    help="Which TensorRT; auto honours POLYGRAPHY_USE_TENSORRT_RTX.",
)
@click.option("--json", "as_json", is_flag=True, help="The account as JSON on stdout.")
@user_errors
def command(*, target: Path | None, trt: str, as_json: bool) -> None:
    """Say which libraries are really loaded and what TARGET (a model or an engine) needs of them.

    Problems are listed last. The exit code is 0 whatever they are, 1 when TARGET cannot be read.
    """
    from nonzero_rewrite.doctor import diagnose, format_account

    account = diagnose(target, trt)
    click.echo(json.dumps(account, indent=2) if as_json else format_account(account))
    if account["target"] and "error" in account["target"]:
        raise SystemExit(1)
