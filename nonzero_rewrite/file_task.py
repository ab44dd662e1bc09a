"""One model from file to file, as plain data in and out.

``rewrite_file`` is the unit: it takes and returns picklable values and imports what it needs where
it runs, so any executor can carry it (``concurrent.futures``, Dask, Ray; examples/cluster.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nonzero_plugin.errors import NonZeroPluginError

from nonzero_rewrite.errors import (
    EXIT_BUILD_FAILED,
    EXIT_DIFFERENT,
    EXIT_ERROR,
    ModelWriteError,
    NonZeroRewriteError,
)
from nonzero_rewrite.options import Options
from nonzero_rewrite.rules import EXACT_RULES

if TYPE_CHECKING:
    from nonzero_plugin.build import BuildOptions

    from nonzero_rewrite.verification import Verification


@dataclass(frozen=True)
class FileTask:
    """What to do with one model.

    Attributes:
        source: the model; only read.
        target: the patched model; its folder is made.
        options: of the rewrite.
        verify: compare both in onnxruntime.
        time_budget: seconds that may be spent on searching inputs for that.
        engine: build an engine there, unless verification finds a difference.
        build: how to build it.
        external_data: what becomes of data files; see ``write_model``.
    """

    source: Path
    target: Path
    options: Options = field(default_factory=Options)
    verify: bool = False
    time_budget: float = 20.0
    engine: Path | None = None
    build: BuildOptions | None = None
    external_data: str = "copy"


@dataclass(frozen=True)
class FileResult:
    """What became of one model.

    Attributes:
        source: the model.
        code: 0 done, 1 an error to fix or models that cannot be compared, 3 the patched model
            differs, 4 rewritten, but no engine was built.
        error: one sentence, unless ``code`` is 0.
        patched: the file written, None when none was.
        engine: the engine built, None when none was.
        plan: what became of each NonZero, as ``RewritePlan.to_dict``.
        outcomes: how many NonZero have which outcome.
        verification: the comparison, where one was made.
        seconds: wall time.
    """

    source: Path
    code: int
    error: str = ""
    patched: Path | None = None
    engine: Path | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    verification: Verification | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "model": str(self.source),
            "exit_code": self.code,
            "error": self.error or None,
            "patched": str(self.patched) if self.patched else None,
            "engine": str(self.engine) if self.engine else None,
            "outcomes": self.outcomes,
            **self.plan,
            "verification": self.verification.to_dict() if self.verification else None,
            "seconds": self.seconds,
        }


def rewrite_file(task: FileTask) -> FileResult:
    """Rewrite, and if asked verify and build, one model.

    Never raises what a user can fix: it is in the result, so that one model does not end a run over
    many. Nothing is left half written.
    """
    started = time.monotonic()
    facts: dict[str, Any] = {}
    try:
        code, error = _run(task, facts)
    except (NonZeroRewriteError, NonZeroPluginError) as err:
        code, error = EXIT_ERROR, str(err)
    return FileResult(
        task.source, code, error, **facts, seconds=round(time.monotonic() - started, 3)
    )


def _run(task: FileTask, facts: dict[str, Any]) -> tuple[int, str]:
    from nonzero_rewrite.load import about, load_model
    from nonzero_rewrite.rewrite import rewrite
    from nonzero_rewrite.write import write_model

    source = load_model(task.source)
    with about(task.source):
        result = rewrite(source.model, task.options)
    facts["plan"] = result.plan.to_dict()
    facts["outcomes"] = {
        outcome: result.plan.count(outcome)
        for outcome in ("plugin", "removed", "left")
        if result.plan.count(outcome)
    }
    _make_folder(task.target.parent)
    write_model(
        result.model,
        source,
        task.target,
        changed=result.changed,
        external_data=task.external_data,
    )
    facts["patched"] = task.target
    if task.verify:
        verification = _verify(task)
        facts["verification"] = verification
        if not verification.ok:
            differs = verification.outcome.value == "different"
            return (EXIT_DIFFERENT if differs else EXIT_ERROR), verification.reason
    if task.engine is not None:
        return _build(task, task.engine, result.plan.leftovers, facts)
    return 0, ""


def tolerances(rules: frozenset[str]) -> tuple[float, float]:
    """``rtol`` and ``atol``: zero unless a rule may change the order in which floats are added."""
    return (0.0, 0.0) if rules <= EXACT_RULES else (1e-5, 1e-6)


def _verify(task: FileTask) -> Verification:
    from nonzero_rewrite.verify import verify_models

    rtol, atol = tolerances(task.options.rules)
    return verify_models(
        task.source, task.target, time_budget=task.time_budget, rtol=rtol, atol=atol
    )


def _build(task: FileTask, engine: Path, leftovers: int, facts: dict[str, Any]) -> tuple[int, str]:
    from dataclasses import replace

    from nonzero_plugin.build import BuildOptions, build_engine

    _make_folder(engine.parent)
    options = replace(
        task.build or BuildOptions(),
        original=task.source,
        backend=task.options.backend,
        leftovers=leftovers,
    )
    try:
        facts["engine"] = build_engine(task.target, engine, options).engine
    except NonZeroPluginError as err:
        return EXIT_BUILD_FAILED, str(err)
    return 0, ""


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise ModelWriteError(
            f"{folder}: cannot be made: {err.strerror or err}; choose another folder"
        ) from err
