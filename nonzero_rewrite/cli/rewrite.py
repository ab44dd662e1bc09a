"""``nonzero-rewrite MODEL -o OUT``: rewrite, and if asked verify and build."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nonzero_rewrite.cli import EXIT_BUILD_FAILED, EXIT_DIFFERENT, user_errors
from nonzero_rewrite.cli.options import make_options, rewrite_options

if TYPE_CHECKING:
    from nonzero_rewrite.load import LoadedModel
    from nonzero_rewrite.rewrite import RewriteResult
    from nonzero_rewrite.verification import Verification


@click.command("rewrite")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="OUT", help="The patched model."
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
    help="Build a TensorRT engine from the patched model.",
)
@click.option(
    "--trt",
    type=click.Choice(["auto", "tensorrt", "tensorrt_rtx"]),
    default="auto",
    show_default=True,
    help="Which TensorRT builds.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="TEXT",
    help="Shapes of dynamic inputs, such as 'x=1x3x64x64:4x3x64x64:8x3x64x64'. Repeatable.",
)
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
    model: Path,
    output: Path | None,
    verify: bool,
    input_files: tuple[Path, ...],
    engine: Path | None,
    trt: str,
    profiles: tuple[str, ...],
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

    Exits with 0 when done, also when there was nothing to rewrite (OUT is then a copy), 1 for an
    error that you can fix, 2 for a wrong command line, 3 when --verify finds a difference, 4 when
    the model was rewritten but the engine could not be built.
    """
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

    from nonzero_rewrite.load import load_model
    from nonzero_rewrite.rewrite import rewrite
    from nonzero_rewrite.write import write_model, write_text

    options = make_options(plan=None if dry_run else plan, **choices)
    source = load_model(model)
    result = rewrite(source.model, options)
    account = _Account(source, result, as_json, dry_run)
    account.plan()
    if dry_run:
        if plan is not None:
            write_text(plan, result.plan.to_json())
            account.file("plan", plan)
        account.finish(0)
    assert output is not None
    original = model
    if in_place and verify:
        original = _keep_original(model)
    try:
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
        code = 0
        if verify:
            code = account.verified(_verify(original, output, input_files, options.rules))
    finally:
        if original != model:
            original.unlink(missing_ok=True)
    if engine is not None and code == 0:
        code = account.built(_build(output, engine, trt, profiles, model, account), engine)
    account.finish(code)


def _keep_original(model: Path) -> Path:
    """A copy of the model beside it, to compare with after it is replaced."""
    import shutil
    import tempfile

    with (
        tempfile.NamedTemporaryFile(
            prefix=f".{model.name}.", suffix=".onnx", dir=model.parent, delete=False
        ) as file,
        model.open("rb") as data,
    ):
        shutil.copyfileobj(data, file)
    return Path(file.name)


def _verify(
    original: Path, patched: Path, input_files: tuple[Path, ...], rules: frozenset[str]
) -> Verification:
    from nonzero_rewrite.inputs import load_inputs
    from nonzero_rewrite.rules import EXACT_RULES
    from nonzero_rewrite.verify import verify_models

    exact = rules <= EXACT_RULES
    rtol, atol = (0.0, 0.0) if exact else (1e-5, 1e-6)
    feeds = [load_inputs(path) for path in input_files]
    return verify_models(original, patched, inputs=feeds, rtol=rtol, atol=atol)


def _build(
    patched: Path,
    engine: Path,
    trt: str,
    profiles: tuple[str, ...],
    original: Path,
    account: _Account,
) -> Any:
    """The build's result, or the error that ended it."""
    from nonzero_plugin.build import BuildOptions
    from nonzero_plugin.engine import build_engine
    from nonzero_plugin.errors import NonZeroPluginError

    options = BuildOptions(
        trt=trt, profiles=profiles, original=original, command=" ".join(sys.argv)
    )
    try:
        return build_engine(patched, engine, options)
    except NonZeroPluginError as err:
        return err


class _Account:
    """What the run tells its user, as text while it goes on or as one JSON object at its end."""

    def __init__(
        self, source: LoadedModel, result: RewriteResult, as_json: bool, dry: bool
    ) -> None:
        from rich.console import Console

        self._result = result
        self._json = as_json
        self._dry = dry
        self._console = Console(quiet=as_json)
        self._files: list[tuple[str, Path]] = []
        self._data: dict[str, Any] = {
            "model": str(source.path),
            "changed": result.changed,
            **result.plan.to_dict(),
            "blockers": [blocker.to_dict() for blocker in result.blockers],
        }

    def plan(self) -> None:
        from nonzero_rewrite.report import render_blockers, render_plan

        render_plan(self._result.plan, self._console, would=self._dry)
        render_blockers(self._result.blockers, self._console)

    def file(self, what: str, path: Path) -> None:
        self._files.append((what, path))
        self._data.setdefault("files", {}).setdefault(what, []).append(str(path))

    def verified(self, verification: Verification) -> int:
        from nonzero_rewrite.cli.verify import exit_code
        from nonzero_rewrite.verify_report import render_verification

        render_verification(verification, self._console)
        self._data["verification"] = verification.to_dict()
        code = exit_code(verification)
        if code == EXIT_DIFFERENT:
            click.echo(
                "Error: the patched model differs from the original; it was written for inspection",
                err=True,
            )
        elif code:
            click.echo(f"Error: the models cannot be compared: {verification.reason}", err=True)
        return code

    def built(self, outcome: Any, engine: Path) -> int:
        from nonzero_plugin.errors import NonZeroPluginError

        if isinstance(outcome, NonZeroPluginError):
            self._data["engine"] = {"error": str(outcome)}
            click.echo(f"Error: rewritten, but no engine was built: {outcome}", err=True)
            return EXIT_BUILD_FAILED
        self._data["engine"] = outcome.to_dict()
        for note in outcome.notes:
            self._console.print(f"note: {note}", highlight=False, markup=False)
        self.file("engine", outcome.engine)
        self._engine_version = f"{outcome.flavour} {outcome.version}"
        return 0

    _engine_version = ""

    def finish(self, code: int) -> None:
        from nonzero_rewrite.report import render_files, render_versions
        from nonzero_rewrite.versions import loaded_versions

        versions = loaded_versions()
        if self._engine_version:
            name, _, version = self._engine_version.partition(" ")
            versions[name] = version
        self._data["versions"] = versions
        self._data["exit_code"] = code
        if self._json:
            click.echo(json.dumps(self._data, indent=2))
        else:
            render_files(self._files, self._console)
            render_versions(versions, self._console)
        sys.exit(code)
