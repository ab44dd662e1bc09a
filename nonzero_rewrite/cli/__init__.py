"""The command line: parse, call, print, choose the exit code.

    nonzero-rewrite MODEL -o OUT [options]

is short for ``nonzero-rewrite rewrite MODEL -o OUT``. Subcommands live in one module each and are
imported when they run, so that ``--help`` stays fast.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem
from nonzero_plugin.errors import NonZeroPluginError

from nonzero_rewrite.cli.interrupt import interruptible
from nonzero_rewrite.cli.streams import outlive_readers
from nonzero_rewrite.errors import EXIT_INTERRUPTED, NonZeroRewriteError

if TYPE_CHECKING:
    from rich.console import Console


DEFAULT_COMMAND = "rewrite"
LOG_WIDTH = 140

COMMANDS = {
    "rewrite": "Rewrite a model; the default: nonzero-rewrite MODEL -o OUT.",
    "scan": "List every NonZero of models and what rewrite would make of it.",
    "verify": "Compare a patched model, or an engine, with the original.",
    "build": "Build a TensorRT engine from a patched model.",
    "run": "Run an engine on inputs from a file.",
    "doctor": "Say what is installed, loaded and missing.",
    "restore": "Undo a rewrite: make a patched file plain ONNX again.",
}


def user_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what a user can fix into one sentence on stderr and exit code 1."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (NonZeroRewriteError, NonZeroPluginError) as err:
            raise click.ClickException(str(err)) from err

    return wrapper


def results_console(*, quiet: bool = False) -> Console:
    """Where results go. A pipe or a log has no width of its own, and room for a long line."""
    from rich.console import Console

    console = Console(quiet=quiet)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(quiet=quiet, width=LOG_WIDTH)


class _Group(click.Group):
    """Imports a subcommand when it is asked for; without one, it is ``rewrite``."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        outlive_readers()
        return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"nonzero_rewrite.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interruptible():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(EXIT_INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        return found or [CompletionItem(incomplete, type="file")]  # rewrite's MODEL

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"--help", "-h", "--version"}
        if args and args[0] not in COMMANDS and args[0] not in own:
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


def _print_versions(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from nonzero_rewrite.versions import installed_versions

    for name, version in installed_versions().items():
        click.echo(f"{name} {version or 'not installed'}")
    ctx.exit()


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_versions,
    help="Print the version of this tool and of every library it uses, and exit.",
)
def main() -> None:
    """Rewrite ONNX NonZero so that TensorRT and TensorRT for RTX build the model.

    \b
    nonzero-rewrite MODEL -o OUT                  rewrite a model,
    nonzero-rewrite MODEL -o OUT --verify         compare both in onnxruntime,
    nonzero-rewrite MODEL -o OUT --build ENGINE   build an engine
    """
