"""``nonzero-rewrite build``: from a patched model to an engine."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from nonzero_plugin.contract import BACKENDS, DEFAULT_BACKEND

from nonzero_rewrite.cli import user_errors
from nonzero_rewrite.cli.engine_options import build_options, engine_options
from nonzero_rewrite.errors import EXIT_BUILD_FAILED

if TYPE_CHECKING:
    from nonzero_plugin.engine import BuildEvent, BuildOptions, BuildResult
    from nonzero_plugin.errors import EngineBuildError

_FAILED_IN_TENSORRT = ("parse", "build", "abort")

NEEDS_PYTHON = (
    "the engine needs Python and this package where it runs: call nonzero_plugin.register() before "
    "loading it; trtexec, Triton's TensorRT backend and C++ programs cannot load a Python plugin"
)
UNPATCHED_LOSES = (
    "unpatched: each NonZero is served where it stands; the Transpose behind it stays a layer of "
    "its own, equal masks are not shared, and there is no count (rewrite the model for those)"
)


@click.command("build")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The engine; default: MODEL with the suffix .engine.",
)
@engine_options
@click.option(
    "--unpatched",
    is_flag=True,
    help="TensorRT for RTX only: build a model that still holds ONNX NonZero.",
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=DEFAULT_BACKEND,
    show_default=True,
    help="With --unpatched: what runs its NonZero nodes.",
)
@click.option(
    "--original",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The model before rewriting; its SHA-256 goes into the sidecar.",
)
@click.option("--verbose", is_flag=True, help="Pass on everything TensorRT logs.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@user_errors
def command(
    *,
    model: Path,
    output: Path | None,
    unpatched: bool,
    backend: str,
    original: Path | None,
    verbose: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Build MODEL, as nonzero-rewrite writes it, into a TensorRT engine.

    The plugin is registered by this command. TensorRT runs in a process of its own; whatever
    happens to it, no half-written engine is left. Beside the engine lies ENGINE.json with its
    plugin, versions, profiles and checksums, which nothing needs to run it.

    Exits with 0 when built, 4 when TensorRT failed on the model, 1 for anything else.
    """
    options = build_options(
        **how, unpatched=unpatched, backend=backend, original=original, verbose=verbose
    )
    if unpatched:
        click.echo(f"Note: {UNPATCHED_LOSES}", err=True)
    sys.exit(build_and_report(model, output or model.with_suffix(".engine"), options, as_json))


def build_and_report(model: Path, engine: Path, options: BuildOptions, as_json: bool) -> int:
    """Builds, prints the account, and returns the exit code (0 or 4).

    Raises:
        EngineBuildError: the build did not come as far as the model.
    """
    from nonzero_plugin.engine import build_engine
    from nonzero_plugin.errors import EngineBuildError

    try:
        with build_progress(options.verbose) as show:
            result = build_engine(model, engine, options, show)
    except EngineBuildError as error:
        if error.phase not in _FAILED_IN_TENSORRT:
            raise
        if as_json:
            click.echo(json.dumps({"built": False, **failure_dict(error)}, indent=2))
        click.echo(f"Error: {error}", err=True)
        return EXIT_BUILD_FAILED
    for text in result.notes:
        click.echo(f"Note: {text}", err=True)
    for text in () if options.verbose else dict.fromkeys(result.warnings):
        click.echo(f"TensorRT warns: {text}", err=True)
    if as_json:
        click.echo(json.dumps({"built": True, **result.to_dict()}, indent=2))
    else:
        click.echo(describe(result))
        if result.plugin_nodes:
            click.echo(f"Note: {NEEDS_PYTHON}")
    return 0


def failure_dict(error: EngineBuildError) -> dict[str, Any]:
    """A failed build as plain JSON values."""
    return {
        "error": str(error),
        "phase": error.phase,
        "node": error.node,
        "messages": list(error.messages),
    }


def describe(result: BuildResult) -> str:
    """The account of a finished build, a few lines."""
    lines = [
        f"{result.engine}: {_human(result.engine_bytes)}, built by {result.flavour} "
        f"{result.version} in {result.seconds:.1f} s",
        *(f"  profile {number}: {text}" for number, text in enumerate(result.profiles) if text),
    ]
    if result.compute_capabilities:
        lines.append(f"  compute capabilities: {', '.join(result.compute_capabilities)}")
    if result.plugin_nodes:
        lines.append(f"  NonZeroPlugin: {', '.join(result.plugin_nodes)}")
    lines.append(f"  sidecar: {result.sidecar}")
    return "\n".join(lines)


def _human(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024  # type: ignore[assignment]
    return f"{size:.1f} GiB"


@contextlib.contextmanager
def build_progress(verbose: bool = False) -> Iterator[Callable[[BuildEvent], None]]:
    """Shows TensorRT's phases on a terminal and, if asked, its log anywhere; both on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    tasks: dict[str, Any] = {}
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:

        def show(event: BuildEvent) -> None:
            data = event.data
            if event.kind == "stage":
                if "" in tasks:
                    progress.remove_task(tasks.pop(""))
                tasks[""] = progress.add_task(f"TensorRT: {data['name']}", total=None)
            elif event.kind == "log" and verbose:
                click.echo(f"[{data['severity']}] {data['text']}", err=True)
            elif event.kind == "progress":
                _show_phase(progress, tasks, data)

        yield show


def _show_phase(progress: Any, tasks: dict[str, Any], data: Any) -> None:
    phase = data["phase"]
    if data.get("done"):
        if phase in tasks:
            progress.remove_task(tasks.pop(phase))
    elif "steps" in data:
        indent = "  " if data.get("parent") else ""
        tasks[phase] = progress.add_task(f"{indent}{phase}", total=data["steps"])
    elif phase in tasks:
        progress.update(tasks[phase], completed=data["step"])
