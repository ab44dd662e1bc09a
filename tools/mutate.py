"""Change one place of a module at a time and see whether the tests notice.

    python tools/mutate.py nonzero_rewrite/compare.py --tests tests/verify/test_compare.py

The changed module exists only in the memory of the child process that runs the tests; no file is
touched. Prints every mutant that survived, with its line, and exits with 1 when there are any.
With --budget MINUTES a random sample of the mutants of all modules is run, one at a time.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
ENVIRONMENT = "NONZERO_MUTANT"


@dataclass(frozen=True)
class Mutant:
    """Change number ``number`` of a module: ``text`` in line ``line``."""

    number: int
    line: int
    text: str


def changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, Callable[[], None]]]:
    """Every place that can be changed: node, what it becomes, and the change."""
    skipped = {id(n) for node in ast.walk(tree) for n in _unseen(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                if other := COMPARE.get(type(operator)):
                    yield (
                        node,
                        f"{_name(operator)} -> {other.__name__}",
                        _setter(node.ops, place, other()),
                    )
        elif isinstance(node, ast.BoolOp):
            swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, f"{_name(node.op)} -> {_name(swapped)}", _attribute(node, "op", swapped)
        elif isinstance(node, ast.BinOp) and (found := BINARY.get(type(node.op))):
            yield node, f"{_name(node.op)} -> {found.__name__}", _attribute(node, "op", found())
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield (
                node,
                f"{node.value} -> {not node.value}",
                _attribute(node, "value", not node.value),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield (
                node,
                f"{node.value} -> {node.value + 1}",
                _attribute(node, "value", node.value + 1),
            )
        elif isinstance(node, ast.If | ast.IfExp):
            negated = ast.UnaryOp(ast.Not(), node.test)
            yield node, "condition negated", _attribute(node, "test", negated)
        elif isinstance(node, ast.List) and len(node.elts) == 2 and _numbers(node):
            yield node, "list turned round", _attribute(node, "elts", node.elts[::-1])
        if isinstance(node, ast.stmt):
            yield from _removals(node)


def _numbers(node: ast.List) -> bool:
    """True for two different numbers, such as a permutation."""
    values = [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
    return None not in values and values[0] != values[1]


def _removals(node: ast.stmt) -> Iterator[tuple[ast.AST, str, Callable[[], None]]]:
    """Each statement of a body that may go: calls, augmented assignments, early ends."""
    for name in ("body", "orelse"):
        body = getattr(node, name, None)
        for place, each in enumerate(body if isinstance(body, list) else []):
            is_call = isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)
            if is_call or isinstance(each, ast.AugAssign | ast.Continue | ast.Break):
                yield each, "statement removed", _setter(body, place, ast.Pass())


def _unseen(node: ast.AST) -> Iterator[ast.AST]:
    """Parts whose change means nothing: annotations, docstrings, dataclass options."""
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.AnnAssign | ast.arg):
        parts.append(node.annotation)
    if isinstance(node, ast.FunctionDef):
        parts += [node.returns, *node.decorator_list]
    if isinstance(node, ast.ClassDef):
        parts += node.decorator_list
    for part in parts:
        if part is not None:
            yield from ast.walk(part)


def _name(node: ast.AST) -> str:
    return type(node).__name__


def _setter(values: list[Any], place: int, value: Any) -> Callable[[], None]:
    return lambda: values.__setitem__(place, value)


def _attribute(node: ast.AST, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module."""
    found = changes(ast.parse(source))
    return [Mutant(i, getattr(n, "lineno", 0), text) for i, (n, text, _) in enumerate(found)]


def mutate(source: str, number: int) -> ast.Module:
    """The module with one change."""
    tree = ast.parse(source)
    for position, (_, _, change) in enumerate(changes(tree)):
        if position == number:
            change()
            break
    return ast.fix_missing_locations(tree)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from its mutated tree."""

    def __init__(self, name: str, path: Path, number: int) -> None:
        self._name, self._path = name, path
        self._code = compile(mutate(path.read_text(encoding="utf-8"), number), str(path), "exec")

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        if fullname == self._name:
            return importlib.util.spec_from_loader(fullname, self, origin=str(self._path))
        return None

    def exec_module(self, module: Any) -> None:
        exec(self._code, module.__dict__)


def run_tests(path: Path, number: int, tests: tuple[str, ...], limit: float) -> bool:
    """True when the tests notice mutant ``number`` (a hang is noticed too)."""
    environment = {**os.environ, ENVIRONMENT: f"{path}:{number}"}
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--child", *tests],
            env=environment,
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def child(tests: list[str]) -> int:
    """Run the tests on one mutant, or (number -1) on the module as it is."""
    import pytest

    place, _, number = os.environ[ENVIRONMENT].rpartition(":")
    path = Path(place)
    name = ".".join(path.with_suffix("").parts).removeprefix("plugin.")
    if int(number) >= 0:
        sys.meta_path.insert(0, Finder(name, path, int(number)))
        importlib.import_module(name)  # before pytest, whose own import hook would come first
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


def run_sample(
    modules: tuple[Path, ...], tests: tuple[str, ...], minutes: float, seed: int, limit: float
) -> int:
    """Mutants of several modules in random order until the time is up; how many survived."""
    if run_tests(modules[0], -1, tests, limit):
        raise click.ClickException(f"{', '.join(tests)}: the tests fail as they are")
    sources = {module: module.read_text(encoding="utf-8") for module in modules}
    queue = [(module, mutant) for module in modules for mutant in mutants(sources[module])]
    random.Random(seed).shuffle(queue)
    started, done, survivors = time.monotonic(), Counter[Path](), Counter[Path]()
    for module, mutant in queue:
        if time.monotonic() - started > 60 * minutes:
            break
        done[module] += 1
        if not run_tests(module, mutant.number, tests, limit):
            survivors[module] += 1
            line = sources[module].splitlines()[mutant.line - 1].strip()
            print(f"{module.as_posix()}:{mutant.line}: {mutant.text}: {line}", flush=True)
    for module in modules:
        print(f"{module.as_posix()}: {done[module] - survivors[module]} of {done[module]} noticed")
    noticed = done.total() - survivors.total()
    print(f"{noticed} of {done.total()} mutants noticed, drawn from {len(queue)} by seed {seed}")
    return survivors.total()


@click.command()
@click.argument("modules", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--tests", multiple=True, required=True, help="Paths for pytest. Repeatable.")
@click.option("--jobs", default=2, show_default=True)
@click.option("--time-limit", default=120.0, show_default=True, help="Seconds for one mutant.")
@click.option("--budget", type=float, help="Minutes: a random sample of all mutants, by --seed.")
@click.option("--seed", default=0, show_default=True)
def main(
    *,
    modules: tuple[Path, ...],
    tests: tuple[str, ...],
    jobs: int,
    time_limit: float,
    budget: float | None,
    seed: int,
) -> None:
    """Mutate MODULES (paths relative to the repository's root) and run the tests on each mutant."""
    if budget is not None:
        sys.exit(bool(run_sample(modules, tests, budget, seed, time_limit)))
    sys.exit(any([run_all(module, tests, jobs, time_limit) for module in modules]))


def run_all(module: Path, tests: tuple[str, ...], jobs: int, time_limit: float) -> bool:
    """Every mutant of one module; True when some survived."""
    if run_tests(module, -1, tests, time_limit):
        raise click.ClickException(f"{', '.join(tests)}: the tests fail on {module} as it is")
    source = module.read_text(encoding="utf-8")
    lines = source.splitlines()
    all_mutants = mutants(source)

    def noticed(mutant: Mutant) -> bool:
        return run_tests(module, mutant.number, tests, time_limit)

    with ThreadPoolExecutor(jobs) as pool:
        survivors = [
            m for m, hit in zip(all_mutants, pool.map(noticed, all_mutants), strict=True) if not hit
        ]
    for mutant in survivors:
        print(f"{module}:{mutant.line}: {mutant.text}: {lines[mutant.line - 1].strip()}")
    print(f"{module}: {len(all_mutants) - len(survivors)} of {len(all_mutants)} mutants noticed")
    return bool(survivors)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(sys.argv[2:]))
    main()
