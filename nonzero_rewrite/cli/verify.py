"""``nonzero-rewrite verify``: compare a patched model, or an engine, with the original."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nonzero_rewrite.cli import user_errors

if TYPE_CHECKING:
    from nonzero_rewrite.verification import Verification

EXIT_NOT_COMPARABLE = 1
EXIT_DIFFERENT = 3
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
    "--rtol", type=click.FloatRange(min=0), default=0.0, show_default=True, help="For floats."
)
@click.option(
    "--atol", type=click.FloatRange(min=0), default=0.0, show_default=True, help="For floats."
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
@user_errors
def command(
    *,
    original: Path,
    patched: Path,
    input_files: tuple[Path, ...],
    seed: int,
    time_budget: float,
    rtol: float,
    atol: float,
    json_file: str | None,
    junit_file: Path | None,
) -> None:
    """Compare PATCHED (a model or an engine) with ORIGINAL (a model) and say what differs.

    Searches inputs on which every NonZero selects none, some and all of its items, runs both
    models in onnxruntime, and compares types, shapes, counts, indices and every value.

    Exits with 0 when equal, 3 when different, 1 when they cannot be compared.
    """
    if json_file and json_file.endswith(".onnx"):
        raise click.UsageError("--json took a model for its FILE; write it after the models")
    result = _verify(
        original, patched, input_files, seed=seed, time_budget=time_budget, rtol=rtol, atol=atol
    )
    write_reports(result, json_file, junit_file)
    sys.exit(exit_code(result))


def exit_code(result: Verification) -> int:
    """0 equal, 3 different, 1 not comparable."""
    from nonzero_rewrite.verification import Outcome

    codes = {Outcome.EQUAL: 0, Outcome.DIFFERENT: EXIT_DIFFERENT}
    return codes.get(result.outcome, EXIT_NOT_COMPARABLE)


def write_reports(
    result: Verification, json_file: str | None = None, junit_file: Path | None = None
) -> None:
    """Print the account unless stdout carries JSON, and write the files asked for."""
    from rich.console import Console

    from nonzero_rewrite.verify_report import junit_xml, render_verification
    from nonzero_rewrite.write import write_text

    if json_file == STDOUT:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        render_verification(result, Console())
        if json_file:
            write_text(Path(json_file), json.dumps(result.to_dict(), indent=2) + "\n")
    if junit_file:
        write_text(junit_file, junit_xml(result))


def _verify(
    original: Path,
    patched: Path,
    input_files: tuple[Path, ...],
    *,
    seed: int,
    time_budget: float,
    rtol: float,
    atol: float,
) -> Verification:
    from nonzero_rewrite.inputs import load_inputs

    inputs = [load_inputs(path) for path in input_files]
    if patched.suffix.lower() == ".onnx":
        from nonzero_rewrite.verify import verify_models

        return verify_models(
            original,
            patched,
            inputs=inputs,
            seed=seed,
            time_budget=time_budget,
            rtol=rtol,
            atol=atol,
        )
    from nonzero_rewrite.verify_engine import verify_engine

    return verify_engine(
        original,
        patched,
        inputs=inputs,
        seed=seed,
        time_budget=time_budget,
        rtol=rtol,
        atol=atol,
    )
