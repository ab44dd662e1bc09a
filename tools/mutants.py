"""The mutants of a module: one changed place each, and how a running module becomes one.

Used by tools/mutate.py. A mutant inside a function is put into the loaded module by giving the
function another code object; one outside (a constant, a default, a decorator) needs a new import.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

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
Change = tuple[ast.AST, str, Callable[[], None]]
Key = tuple[str, int]
"""Name and first line of a code object."""


@dataclass(frozen=True)
class Mutant:
    """Change number ``number`` of a module: ``text`` in the lines ``first`` to ``last``."""

    number: int
    line: int
    text: str
    first: int
    last: int
    function: str
    """Outermost function around it, with its class; empty outside of all functions."""


def module_name(path: Path) -> str:
    """``plugin/nonzero_plugin/fields.py`` is imported as ``nonzero_plugin.fields``."""
    name = ".".join(path.with_suffix("").parts).removeprefix("plugin.")
    return name.removesuffix(".__init__")


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module."""
    tree = ast.parse(source)
    places = _places(tree)
    return [
        Mutant(number, getattr(node, "lineno", 0), text, *places[id(node)])
        for number, (node, text, _) in enumerate(changes(tree))
    ]


def mutate(source: str, number: int) -> ast.Module:
    """The module with one change."""
    tree = ast.parse(source)
    for position, (_, _, change) in enumerate(changes(tree)):
        if position == number:
            change()
            break
    return ast.fix_missing_locations(tree)


def changes(tree: ast.Module) -> Iterator[Change]:
    """Every place that can be changed: node, what it becomes, and the change."""
    skipped = {id(n) for node in ast.walk(tree) for n in _unseen(node)}
    for node in ast.walk(tree):
        if id(node) not in skipped:
            yield from _expression(node)
        if isinstance(node, ast.stmt):
            yield from _removals(node)


def _expression(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if other := COMPARE.get(type(operator)):
                text = f"{_name(operator)} -> {other.__name__}"
                yield node, text, _setter(node.ops, place, other())
    elif isinstance(node, ast.BoolOp):
        swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, f"{_name(node.op)} -> {_name(swapped)}", _attribute(node, "op", swapped)
    elif isinstance(node, ast.BinOp) and (found := BINARY.get(type(node.op))):
        yield node, f"{_name(node.op)} -> {found.__name__}", _attribute(node, "op", found())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, "not removed", _attribute(node, "operand", _negated(node.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        new = not node.value if isinstance(node.value, bool) else node.value + 1
        yield node, f"{node.value} -> {new}", _attribute(node, "value", new)
    elif isinstance(node, ast.If | ast.IfExp):
        yield node, "condition negated", _attribute(node, "test", _negated(node.test))
    elif isinstance(node, ast.comprehension):
        for place, each in enumerate(node.ifs):
            yield each, "condition negated", _setter(node.ifs, place, _negated(each))
    elif isinstance(node, ast.List) and len(node.elts) == 2 and _numbers(node):
        yield node, "list turned round", _attribute(node, "elts", node.elts[::-1])


def _numbers(node: ast.List) -> bool:
    """True for two different numbers, such as a permutation."""
    values = [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
    return None not in values and values[0] != values[1]


def _removals(node: ast.stmt) -> Iterator[Change]:
    """Each statement of a body that may go: calls, augmented assignments, early ends."""
    for name in ("body", "orelse"):
        body = getattr(node, name, None)
        for place, each in enumerate(body if isinstance(body, list) else []):
            is_call = isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)
            if is_call or isinstance(each, ast.AugAssign | ast.Continue | ast.Break):
                yield each, "statement removed", _setter(body, place, ast.Pass())


def _unseen(node: ast.AST) -> Iterator[ast.AST]:
    """Parts whose change means nothing: annotations, dataclass options, what only mypy reads."""
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.AnnAssign | ast.arg):
        parts.append(node.annotation)
    if isinstance(node, ast.FunctionDef):
        parts += [node.returns, *node.decorator_list]
    if isinstance(node, ast.ClassDef):
        parts += node.decorator_list
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
        parts += [node] if node.test.id == "TYPE_CHECKING" else []
    for part in parts:
        if part is not None:
            yield from ast.walk(part)


def _places(tree: ast.Module) -> dict[int, tuple[int, int, str]]:
    """For each node: the lines of its statement (of a compound one, its head), and the function."""
    found: dict[int, tuple[int, int, str]] = {}

    def visit(node: ast.AST, place: tuple[int, int, str], names: tuple[str, ...]) -> None:
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            place = (node.lineno, max(last, node.lineno), place[2])
        found[id(node)] = place
        inside: set[int] = set()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = (*names, node.name)
            inside = {id(each) for each in node.body}
        for each in ast.iter_child_nodes(node):
            is_body = isinstance(node, ast.FunctionDef) and id(each) in inside
            function = place[2] or (".".join(names) if is_body else "")
            visit(each, (*place[:2], function), names)

    visit(tree, (0, 0, ""), ())
    return found


def _name(node: ast.AST) -> str:
    return type(node).__name__


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _setter(values: list[Any], place: int, value: Any) -> Callable[[], None]:
    return lambda: values.__setitem__(place, value)


def _attribute(node: ast.AST, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


def code_objects(code: CodeType) -> Iterator[CodeType]:
    """``code`` and all code objects inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


class LoadedFunctions:
    """The function objects that came from some files, to be given other code."""

    def __init__(self, paths: Iterable[Path], objects: Iterable[Any]) -> None:
        names = {str(path) for path in paths}
        self._functions: dict[tuple[str, Key], list[FunctionType]] = {}
        for each in objects:
            if isinstance(each, FunctionType) and each.__code__.co_filename in names:
                place = (each.__code__.co_filename, _key(each.__code__))
                self._functions.setdefault(place, []).append(each)

    def become(self, path: Path, source: str, number: int) -> None:
        """Give every function of ``path`` the code that it has in mutant ``number``."""
        for code in code_objects(compile(mutate(source, number), str(path), "exec")):
            for function in self._functions.get((str(path), _key(code)), ()):
                function.__code__ = code


def _key(code: CodeType) -> Key:
    return code.co_name, code.co_firstlineno


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from its mutated tree."""

    def __init__(self, path: Path, number: int) -> None:
        self._name, self._path = module_name(path), path
        self._code = compile(mutate(path.read_text(encoding="utf-8"), number), str(path), "exec")

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        if fullname != self._name:
            return None
        is_package = self._path.name == "__init__.py"
        spec = importlib.util.spec_from_loader(
            fullname, self, origin=str(self._path), is_package=is_package
        )
        if spec and is_package:
            spec.submodule_search_locations = [str(self._path.parent)]
        return spec

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(self._path)
        exec(self._code, module.__dict__)
