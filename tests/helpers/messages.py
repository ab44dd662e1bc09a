"""Rows of a table of sentences: a way to provoke each, and what is said, to the letter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Case:
    """What a row may use.

    Attributes:
        path: an empty folder; ``FOLDER`` in a row's sentence stands for it.
        patch: pytest's ``monkeypatch``.
        said: where a row puts what was said, if that is neither an exception nor a log.
    """

    path: Path
    patch: pytest.MonkeyPatch
    said: list[str]

    def without(self, *modules: str) -> None:
        """Imports of these modules fail from now on."""
        import sys

        for name in modules:
            self.patch.setitem(sys.modules, name, None)


Row = tuple[str, Callable[[Case], Any]]


def exact_test(rows: list[Row]) -> Callable[..., None]:
    """A test that provokes each row and holds what was said to its sentence."""

    @pytest.mark.parametrize("row", rows, ids=[sentence[:60] for sentence, _ in rows])
    def test(
        row: Row,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        from nonzero_plugin.errors import NonZeroPluginError

        from nonzero_rewrite.errors import NonZeroRewriteError

        sentence, provoke = row
        case = Case(tmp_path, monkeypatch, [])
        try:
            provoke(case)
        except (NonZeroPluginError, NonZeroRewriteError) as error:
            case.said.append(str(error))
        said = [*case.said, *caplog.messages, *capsys.readouterr().err.splitlines()]
        wanted = sentence.replace("FOLDER", str(tmp_path))
        assert wanted in said, f"said: {said}\nwanted: {wanted}"

    return test
