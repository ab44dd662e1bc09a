"""``nonzero-rewrite verify``: compare a patched model, or an engine, with the original."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nonzero_rewrite.cli import results_console, user_errors
from nonzero_rewrite.errors import EXIT_DIFFERENT, EXIT_ERROR

if TYPE_CHECKING:
    from nonzero_rewrite.verification import Verification

STDOUT = "-"


@click.command("verify")
@click.argument("original", type=click.Path(path_type=Path))
@click.argument("patched", type=click.Path(path_type=Path))
@click.option(
    "--inputs",
    "input_files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE.npz",
    help="Compare on these arrays too; keys are input names, or i0, i1, ... Repeatable.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of searched inputs.")
@click.option(
    "--time-budget",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="How long inputs that exercise the masks may be searched.",
)
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    help="Relative deviation allowed for floats; 0 for models, 0.01 for engines by default.",
)
@click.option(
    "--atol",
    type=click.FloatRange(min=0),
    help="Absolute deviation allowed for floats; 0 for models, 0.001 for engines by default.",
)
@click.option(
    "--json",
    "json_file",
    is_flag=False,
    flag_value=STDOUT,
    metavar="[FILE]",
    help="Write the whole result as JSON, to stdout without a FILE.",
)
@click.option(
    "--junit", "junit_file", type=click.Path(path_type=Path), help="Write JUnit XML for CI."
)
@click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path),
    help="Write one self-contained HTML page: parity, counts, and each NonZero before and after.",
)
@user_errors
def command(
    *,
    original: Path,
    patched: Path,
    input_files: tuple[Path, ...],
    seed: int,
    time_budget: float,
    rtol: float | None,
    atol: float | None,
    json_file: str | None,
    junit_file: Path | None,
    html_file: Path | None,
) -> None:
    """Compare PATCHED (a model or an engine) with ORIGINAL (a model) and say what differs.

    Searches inputs on which every NonZero selects none, some and all of its items, runs both
    models in onnxruntime, and compares types, shapes, counts, indices and every value.

    Exits with 0 when equal, 3 when different, 1 when they cannot be compared.
    """
    from nonzero_rewrite.input_files import load_inputs
    from nonzero_rewrite.write import check_outputs

    if json_file and json_file.endswith(".onnx"):
        raise click.UsageError("--json took a model for its FILE; write it after the models")
    json_path = Path(json_file) if json_file and json_file != STDOUT else None
    check_outputs([json_path, junit_file, html_file], original, patched, *input_files)
    tolerances = {"rtol": rtol, "atol": atol}
    settings = {name: value for name, value in tolerances.items() if value is not None}
    inputs = [load_inputs(path) for path in input_files]
    verify = _verifier(patched)
    result = verify(
        original, patched, inputs=inputs, seed=seed, time_budget=time_budget, **settings
    )
    write_reports(result, json_file, junit_file)
    if html_file:
        from nonzero_rewrite.html_report import render_html
        from nonzero_rewrite.write import write_text

        is_model = patched.suffix.lower() == ".onnx"
        write_text(html_file, render_html(result, original, patched if is_model else None))
    sys.exit(exit_code(result))


def exit_code(result: Verification) -> int:
    """0 equal, 3 different, 1 not comparable."""
    from nonzero_rewrite.verification import Outcome

    codes = {Outcome.EQUAL: 0, Outcome.DIFFERENT: EXIT_DIFFERENT}
    return codes.get(result.outcome, EXIT_ERROR)


def write_reports(
    result: Verification, json_file: str | None = None, junit_file: Path | None = None
) -> None:
    """Print the account unless stdout carries JSON, and write the files asked for."""
    from nonzero_rewrite.verify_report import junit_xml, render_verification
    from nonzero_rewrite.write import write_text

    if json_file == STDOUT:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        render_verification(result, results_console())
        if json_file:
            write_text(Path(json_file), json.dumps(result.to_dict(), indent=2) + "\n")
    if junit_file:
        write_text(junit_file, junit_xml(result))


def _verifier(patched: Path) -> Callable[..., Verification]:
    """The comparison for a model, or for an engine."""
    if patched.suffix.lower() == ".onnx":
        from nonzero_rewrite.verify import verify_models

        return verify_models
    from nonzero_rewrite.verify_engine import verify_engine

    return verify_engine
