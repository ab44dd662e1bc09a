"""``nonzero-rewrite MODEL -o OUT``: rewrite, and if asked verify and build."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nonzero_rewrite.cli import user_errors
from nonzero_rewrite.cli.engine_options import (
    build_options,
    engine_options,
    take_engine_values,
)
from nonzero_rewrite.cli.options import make_options, rewrite_options

if TYPE_CHECKING:
    from nonzero_rewrite.verification import Verification


@click.command("rewrite")
@click.argument(
    "models", metavar="MODEL...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="OUT", help="The patched model."
)
@click.option(
    "-O",
    "--output-dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="OUTDIR",
    help="For several models, or a folder that is searched for .onnx files: where they go.",
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="With -O: so many models at a time.",
)
@rewrite_options
@click.option(
    "--verify",
    "verify",
    is_flag=True,
    help="Compare the patched model with the original in onnxruntime.",
)
@click.option(
    "--inputs",
    "input_files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE.npz",
    help="Verify on these arrays too. Repeatable.",
)
@click.option(
    "--build",
    "engine",
    type=click.Path(path_type=Path),
    metavar="ENGINE",
    help="Build a TensorRT engine from the patched model; with -O, the folder for the engines.",
)
@engine_options
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    metavar="PLAN.json",
    help="With --dry-run: write the plan there. Without: apply the (edited) plan.",
)
@click.option(
    "--dry-run", is_flag=True, help="Say what would become of each NonZero; write no model."
)
@click.option("--in-place", is_flag=True, help="Replace MODEL itself.")
@click.option(
    "--external-data",
    type=click.Choice(["copy", "link", "relative"]),
    default="copy",
    show_default=True,
    help="What becomes of external data files when OUT lies in another folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@user_errors
def command(
    *,
    models: tuple[Path, ...],
    output: Path | None,
    folder: Path | None,
    jobs: int,
    verify: bool,
    input_files: tuple[Path, ...],
    engine: Path | None,
    plan: Path | None,
    dry_run: bool,
    in_place: bool,
    external_data: str,
    as_json: bool,
    **choices: Any,
) -> None:
    """Rewrite the NonZero nodes of MODEL and write the result to OUT.

    Every NonZero becomes part of a NonZeroPlugin node, or is not needed any more, or is left alone
    with the reason. What is not touched stays the same, byte for byte.

    With -O OUTDIR, MODEL may be several models and folders; a failure does not keep the others
    from being rewritten.

    Exits with 0 when done, also when there was nothing to rewrite (OUT is then a copy), 1 for an
    error that you can fix, 2 for a wrong command line, 3 when --verify finds a difference, 4 when
    the model was rewritten but the engine could not be built. With -O: 3 if any model differs,
    else 1 if any failed, else 4 if any engine is missing.
    """
    how = take_engine_values(choices, wanted=engine is not None)
    if folder is not None:
        from nonzero_rewrite.cli.batch import refuse_single, rewrite_many

        refuse_single(
            {"-o": output, "--inputs": input_files, "--plan": plan, "--in-place": in_place}
            | {"--dry-run (see `nonzero-rewrite scan`)": dry_run}
        )
        sys.exit(
            rewrite_many(
                models,
                folder,
                make_options(**choices),
                jobs=jobs,
                verify=verify,
                engines=engine,
                build=build_options(**how),
                external_data=external_data,
                as_json=as_json,
            )
        )
    if len(models) > 1:
        raise click.UsageError("several models need a folder for the results: -O OUTDIR")
    model = models[0]
    if in_place:
        if output is not None:
            raise click.UsageError("give -o or --in-place, not both")
        output = model
    if output is None and not dry_run:
        raise click.UsageError(
            "say where the patched model goes: -o OUT (or --in-place, --dry-run)"
        )
    if dry_run and (verify or engine):
        raise click.UsageError("--dry-run writes no model that --verify or --build could use")
    if input_files and not verify:
        raise click.UsageError("--inputs are for --verify")

    from nonzero_rewrite.cli.account import Account
    from nonzero_rewrite.input_files import load_inputs
    from nonzero_rewrite.load import about, load_model
    from nonzero_rewrite.rewrite import rewrite
    from nonzero_rewrite.write import check_target, write_model, write_text

    _check_outputs(dry_run, model, output, engine, how["timing_cache"], plan, input_files)
    options = make_options(plan=None if dry_run else plan, **choices)
    source = load_model(model)
    if output is not None:
        check_target(output, source, in_place=in_place)
    feeds = [load_inputs(path) for path in input_files]
    with about(model):
        result = rewrite(source.model, options)
    account = Account(source, result, as_json, dry_run)
    account.plan()
    if dry_run:
        if plan is not None:
            write_text(plan, result.plan.to_json())
            account.file("plan", plan)
        account.finish(0)
    assert output is not None
    code = 0
    with _original(model, keep=in_place and verify) as original:
        for put in write_model(
            result.model,
            source,
            output,
            changed=result.changed,
            external_data=external_data,
            in_place=in_place,
        ):
            account.file("data", put)
        account.file("patched", output)
        if verify:
            code = account.verified(_verify(original, output, feeds, options.rules))
    if engine is not None and code == 0:
        how |= {"backend": options.backend, "leftovers": result.plan.leftovers}
        code = account.built(_build(output, engine, model, how), engine)
    account.finish(code)


def _check_outputs(
    dry_run: bool,
    model: Path,
    output: Path | None,
    engine: Path | None,
    timing_cache: Path | None,
    plan: Path | None,
    input_files: tuple[Path, ...],
) -> None:
    """Refuse outputs that would take the place of an input, or of each other."""
    from nonzero_rewrite.write import check_outputs

    if dry_run:
        check_outputs([plan], model)
        return
    check_outputs([output], plan, *input_files)  # and the model itself, unless in place
    if engine is not None:
        from nonzero_plugin.sidecar import sidecar_path

        built = (engine, sidecar_path(engine), timing_cache)
        check_outputs(built, model, plan, *input_files)
        check_outputs([output, *built])


@contextmanager
def _original(model: Path, keep: bool) -> Iterator[Path]:
    """The model, or if asked a copy beside it, to compare with after the model is replaced."""
    from nonzero_plugin.places import remove, temporary_for

    from nonzero_rewrite.write import copy_file

    if not keep:
        yield model
        return
    copy = temporary_for(model)
    try:
        copy_file(model, copy)
        yield copy
    finally:
        remove(copy)


def _verify(
    original: Path, patched: Path, feeds: list[dict[str, Any]], rules: frozenset[str]
) -> Verification:
    from nonzero_rewrite.file_task import tolerances
    from nonzero_rewrite.verify import verify_models

    rtol, atol = tolerances(rules)
    return verify_models(original, patched, inputs=feeds, rtol=rtol, atol=atol)


def _build(patched: Path, engine: Path, original: Path, how: dict[str, Any]) -> Any:
    """The build's result, or the error that ended it."""
    from nonzero_plugin.engine import build_engine
    from nonzero_plugin.errors import NonZeroPluginError

    from nonzero_rewrite.cli.build import build_progress

    try:
        options = build_options(**how, original=original)
        with build_progress() as show:
            return build_engine(patched, engine, options, show)
    except NonZeroPluginError as err:
        return err
