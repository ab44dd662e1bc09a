"""Change one place of a module at a time and see whether the tests notice.

    python tools/mutate.py nonzero_rewrite/compare.py --tests tests/verify --jobs 2

The tests are run once with a record of the lines that each of them reaches. A mutant is then tried
with the tests that reach its line, the quickest first, in a fork of a process that has everything
loaded and collected; no file is touched. A mutant outside of functions needs a new process, and all
tests where the module has no functions.
Prints every mutant that survived, and exits with 1 unless tools/equivalent_mutants.json explains
all of them. Needs `os.fork`; with --budget MINUTES a random sample is tried.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import click
import coverage
import pytest
from mutants import Finder, LoadedFunctions, Mutant, module_name, mutants

OPTIONS = [
    *("-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-o", "tmp_path_retention_policy=none", "-o", "addopts=--import-mode=importlib"),
]
NOTICED, SURVIVED, CHILD = 1, 0, "NONZERO_MUTANT_CHILD"


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    modules: tuple[Path, ...]
    tests: tuple[str, ...]
    jobs: int
    time_limit: float
    test_seconds: float
    budget: float | None
    seed: int
    explained: Path
    retry: Path | None
    rows: Path | None


@dataclass(frozen=True)
class Record:
    """What one run of the tests as they are showed."""

    seconds: dict[str, float]
    """By test."""
    reached: dict[str, dict[int, list[str]]]
    """By file and line: the tests that reach it."""

    def tests(self, path: Path, mutant: Mutant, limit: float) -> list[str]:
        """Tests that can notice a mutant, the quickest first, as many as ``limit`` seconds take."""
        lines = self.reached.get(str(path), {})
        wanted: Iterable[int] = range(mutant.first, mutant.last + 1) if mutant.function else lines
        able = {test for number in wanted for test in lines.get(number, ())}
        found = sorted(able, key=self.seconds.__getitem__)
        if not mutant.function:  # what runs at the import, such as a default, may matter anywhere
            found += sorted(self.seconds.keys() - able, key=self.seconds.__getitem__)
        total = accumulate(self.seconds[each] for each in found)
        return [each for each, seconds in zip(found, total, strict=True) if seconds <= limit]


@dataclass(frozen=True)
class Outcome:
    """A mutant that was tried."""

    path: Path
    mutant: Mutant
    code: str
    """The changed line."""
    noticed: bool
    tests: int = 0
    """That reach it."""
    seconds: float = 0.0
    why: str = ""
    """For a survivor that is explained: the reason."""

    def __str__(self) -> str:
        reach = "" if self.tests else " (no test reaches it)"
        return f"{self.path.as_posix()}:{self.mutant.line}: {self.mutant.text}: {self.code}{reach}"


class Runner:
    """A pytest plugin that runs the collected tests in forks instead of once."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._failed, self._seconds = plan, False, Counter[str]()
        self._sources = {path.resolve(): path.read_text("utf-8") for path in plan.modules}
        self._paths = dict(zip(self._sources, plan.modules, strict=True))
        self._explained = explanations(plan.explained)
        self.outcomes: list[Outcome] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed
        self._seconds[report.nodeid] += report.duration

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for path in self._plan.modules:  # some are imported late, in functions
            importlib.import_module(module_name(path))
        self._items = {item.nodeid: item for item in session.items}
        self._loaded = LoadedFunctions(self._sources, gc.get_objects())
        gc.freeze()  # a collection in a fork would copy every page
        with tempfile.TemporaryDirectory() as folder:
            self._scratch = Path(folder)
            record = self._record()
            self._try_all(record)
        return True

    def _run(self, names: Iterable[str]) -> bool:
        """Run tests in this process until one fails; True when all passed."""
        items = [self._items[name] for name in names]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return False
        return True

    def _begin(self, item: pytest.Item, folder: Path) -> None:
        """Be a child: silent, in a process group and with a folder of its own."""
        os.setsid()
        folder.mkdir()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        item.config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        item.config.get_terminal_writer()._file = os.fdopen(nowhere, "w")

    def _record(self) -> Record:
        place = self._scratch / "record.json"
        if (process := os.fork()) == 0:
            with _last_words(SURVIVED):
                self._begin(next(iter(self._items.values())), self._scratch / "record")
                place.write_text(json.dumps(self._watch()), encoding="utf-8")
        os.waitpid(process, 0)
        if not place.exists():
            raise click.ClickException("the tests end the process that runs them, as they are")
        seconds, reached, failed = json.loads(place.read_text(encoding="utf-8"))
        if failed:
            raise click.ClickException(f"the tests fail as they are: {failed}")
        by_line = {f: {int(n): t for n, t in lines.items()} for f, lines in reached.items()}
        print(f"{len(seconds)} tests, {sum(seconds.values()):.0f} s", file=sys.stderr, flush=True)
        return Record(seconds, by_line)

    def _watch(self) -> tuple[Any, Any, str]:
        watch = coverage.Coverage(data_file=None, include=[*map(str, self._sources)])
        watch.start()
        for name in self._items:
            watch.switch_context(name)
            if not self._run([name]):
                return {}, {}, name
        watch.switch_context("")
        watch.stop()
        data = watch.get_data()
        reached = {
            file: {n: [t for t in tests if t] for n, tests in data.contexts_by_lineno(file).items()}
            for file in data.measured_files()
        }
        return self._seconds, reached, ""

    def _try_all(self, record: Record) -> None:
        queue = [(path, m) for path, source in self._sources.items() for m in mutants(source)]
        if self._plan.retry:
            known = map(json.loads, self._plan.retry.read_text(encoding="utf-8").splitlines())
            again = {_place(each) for each in known if not each["noticed"]}
            queue = [(p, m) for p, m in queue if _place(_row(self._outcome(p, m))) in again]
        if self._plan.budget is not None:
            random.Random(self._plan.seed).shuffle(queue)
        total, began, running = len(queue), time.monotonic(), dict[int, tuple[Any, ...]]()
        for path, mutant in queue:
            if self._plan.budget and time.monotonic() - began > 60 * self._plan.budget:
                break
            while len(running) >= self._plan.jobs:
                self._wait(running)
            names = record.tests(path, mutant, self._plan.test_seconds)
            running[self._start(path, mutant, names)] = (path, mutant, len(names), time.monotonic())
        while running:
            self._wait(running)
        print(f"{len(self.outcomes)} of {total} mutants tried", file=sys.stderr, flush=True)

    def _start(self, path: Path, mutant: Mutant, names: list[str]) -> int:
        folder = self._scratch / f"{self._paths[path].stem}-{mutant.number}"
        if (process := os.fork()) == 0:
            with _last_words(NOTICED):
                if not names:
                    os._exit(SURVIVED)
                self._begin(self._items[names[0]], folder)
                if mutant.function:
                    self._loaded.become(path, self._sources[path], mutant.number)
                    os._exit(SURVIVED if self._run(names) else NOTICED)
                order = folder / "order.json"
                order.write_text(json.dumps([str(self._paths[path]), mutant.number, names]))
                paths = sorted({name.partition("::")[0] for name in names})
                command = [sys.executable, __file__, *paths]
                environment = {**os.environ, CHILD: str(order)}
                os.execve(sys.executable, command, environment)
        return process

    def _wait(self, running: dict[int, tuple[Any, ...]]) -> None:
        """Until one child has ended or run too long."""
        while True:
            for process, (path, mutant, tests, began) in list(running.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                late = time.monotonic() - began > self._plan.time_limit
                if not ended and not late:
                    continue
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process, signal.SIGKILL)  # also what its tests have started
                if not ended:
                    os.waitpid(process, 0)
                del running[process]
                self._note(path, mutant, tests, bool(status) or late, time.monotonic() - began)
                return
            time.sleep(0.005)

    def _note(self, path: Path, mutant: Mutant, tests: int, noticed: bool, seconds: float) -> None:
        shown = self._paths[path]
        shutil.rmtree(self._scratch / f"{shown.stem}-{mutant.number}", ignore_errors=True)
        outcome = self._outcome(path, mutant, noticed, tests, round(seconds, 2))
        self.outcomes.append(outcome)
        if self._plan.rows:
            with self._plan.rows.open("w" if len(self.outcomes) == 1 else "a") as file:
                file.write(f"{json.dumps(_row(outcome))}\n")
        if not noticed and not outcome.why:
            print(outcome, flush=True)

    def _outcome(self, path: Path, mutant: Mutant, noticed: bool = False, *effort: Any) -> Outcome:
        code = self._sources[path].splitlines()[mutant.line - 1].strip()
        found = Outcome(self._paths[path], mutant, code, noticed, *effort)
        return (
            found if noticed else replace(found, why=self._explained.get(_place(_row(found)), ""))
        )


@contextlib.contextmanager
def _last_words(status: int) -> Any:
    """End a fork whatever happens, so that it never goes on with its parent's work."""
    try:
        yield
    finally:
        os._exit(status)


def explanations(file: Path) -> dict[tuple[str, ...], str]:
    """Why a survivor is no fault of the tests, by place."""
    return {_place(each): each["why"] for each in json.loads(file.read_text(encoding="utf-8"))}


def _place(row: dict[str, Any]) -> tuple[str, ...]:
    """What a mutant is known by when other lines of its module have moved."""
    return row["module"], row["function"], row["line"], row["change"]


class Order:
    """A pytest plugin: only these tests, in this order."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in self._names]


def child(order: Path, paths: list[str]) -> int:
    """Run the ordered tests on a module that is imported as a mutant."""
    module, number, names = json.loads(order.read_text(encoding="utf-8"))
    sys.meta_path.insert(0, Finder(Path(module), number))
    importlib.import_module(module_name(Path(module)))  # before pytest's own import hook
    options = [*OPTIONS, "-x", "--basetemp", str(order.parent / "tests")]
    return int(pytest.main([*options, *paths], plugins=[Order(names)]))


@click.command()
@click.argument("modules", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--tests", multiple=True, required=True, help="Paths for pytest. Repeatable.")
@click.option("--jobs", default=1, show_default=True, help="Mutants at a time.")
@click.option("--time-limit", default=180.0, show_default=True, help="Seconds for one mutant.")
@click.option(
    "--test-seconds", default=30.0, show_default=True, help="Of tests for one mutant, at most."
)
@click.option("--budget", type=float, help="Minutes: a random sample of all mutants, by --seed.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--explained",
    default=Path(__file__).with_name("equivalent_mutants.json"),
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Survivors that are no fault of the tests, each with its reason.",
)
@click.option(
    "--retry",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Only the survivors in this file, as --json of an earlier run wrote it.",
)
@click.option(
    "--json",
    "rows",
    type=click.Path(path_type=Path),
    help="A line of JSON for every mutant, as soon as it was tried.",
)
def main(**asked: Any) -> None:
    """Mutate MODULES (paths relative to the repository's root) and run the tests on each mutant."""
    if not hasattr(os, "fork"):
        raise click.ClickException("this tool forks a loaded process: run it on Linux or macOS")
    runner = Runner(plan := Plan(**asked))
    # whatever pytest says of the collection is of no interest unless it fails
    if status := pytest.main([*OPTIONS, *plan.tests], plugins=[runner]):
        raise click.ClickException(f"pytest could not run the tests (exit code {int(status)})")
    noticed, explained, tried = Counter[Path](), Counter[Path](), Counter[Path]()
    for outcome in runner.outcomes:
        tried[outcome.path] += 1
        noticed[outcome.path] += outcome.noticed
        explained[outcome.path] += bool(outcome.why)
    print("\n| module | mutants tried | noticed | survivors explained | not |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for path in [*plan.modules, None]:
        counts = [c[path] if path else c.total() for c in (tried, noticed, explained)]
        name = path.as_posix() if path else "all"
        print(f"| {name} | {' | '.join(map(str, [*counts, counts[0] - counts[1] - counts[2]]))} |")
    sys.exit(tried.total() != noticed.total() + explained.total())


def _row(outcome: Outcome) -> dict[str, Any]:
    return {
        "module": outcome.path.as_posix(),
        "function": outcome.mutant.function,
        "line": outcome.code,
        "at": outcome.mutant.line,
        "change": outcome.mutant.text,
        "noticed": outcome.noticed,
        "tests": outcome.tests,
        "seconds": outcome.seconds,
        "why": outcome.why,
    }


if __name__ == "__main__":
    sys.path[:0] = [str(Path.cwd()), str(Path.cwd() / "plugin")]  # the checkout, installed or not
    if os.environ.get(CHILD):
        sys.exit(child(Path(os.environ.pop(CHILD)), sys.argv[1:]))
    main()
