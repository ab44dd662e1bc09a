"""What ``nonzero-rewrite MODEL -o OUT`` tells its user, as text or as one JSON object."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from nonzero_rewrite.cli import results_console
from nonzero_rewrite.errors import EXIT_BUILD_FAILED, EXIT_DIFFERENT

if TYPE_CHECKING:
    from nonzero_rewrite.load import LoadedModel
    from nonzero_rewrite.rewrite import RewriteResult
    from nonzero_rewrite.verification import Verification


class Account:
    """What the run tells its user, as text while it goes on or as one JSON object at its end."""

    def __init__(
        self, source: LoadedModel, result: RewriteResult, as_json: bool, dry: bool
    ) -> None:
        self._result = result
        self._json = as_json
        self._dry = dry
        self._console = results_console(quiet=as_json)
        self._files: list[tuple[str, Path]] = []
        self._data: dict[str, Any] = {
            "model": str(source.path),
            "changed": result.changed,
            **result.plan.to_dict(),
            "blockers": [blocker.to_dict() for blocker in result.blockers],
        }

    def plan(self) -> None:
        """What became of each NonZero."""
        from nonzero_rewrite.report import render_blockers, render_plan

        render_plan(self._result.plan, self._console, would=self._dry)
        render_blockers(self._result.blockers, self._console)

    def file(self, what: str, path: Path) -> None:
        """A file that was written."""
        self._files.append((what, path))
        self._data.setdefault("files", {}).setdefault(what, []).append(str(path))

    def verified(self, verification: Verification) -> int:
        """The comparison; returns the exit code it asks for."""
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
        """The engine, or the error that ended its build; returns the exit code."""
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

    def finish(self, code: int) -> NoReturn:
        """Print the rest and exit."""
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
