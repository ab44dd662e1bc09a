"""Every sentence the packages can say to a user about something wrong, read off their source.

A sentence is found where it is made: as the text of an exception that a user can act on, of a
usage error, of what goes to stderr or to a log as a warning, of a build's note, of a problem that
``doctor`` lists. Its fixed words become a pattern, with a gap for each value; ``a if b else c``
makes two patterns.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path
    for folder in (ROOT / "nonzero_rewrite", ROOT / "plugin" / "nonzero_plugin")
    for path in folder.rglob("*.py")
)
GAP = "\0"
"""Stands for a value; no source holds it."""

FAMILIES = ("errors.py",)
"""Where the packages' own exceptions are defined; classes that derive from them are found."""
USAGE = {"ClickException", "UsageError", "BadParameter"}
CALLS = {
    # what is called: the position of the text
    "fail": 0,
    "refuse": 0,
    "_failure": 1,
    "note": 0,
    "_note": 0,
    "notes.append": 0,
    "problems.append": 0,
    "logger.warning": 0,
    "logger.error": 0,
    "log.warning": 0,
    "warnings.warn": 0,
    "G_LOGGER.critical": 0,
    "G_LOGGER.warning": 0,
    "G_LOGGER.error": 0,
}
TEXTS = {"diagnose.py", "plan_file.py", "places.py"}
"""Modules whose sentences become part of others': all of their prose counts."""


@dataclass(frozen=True)
class Sentence:
    """One sentence, or one branch of one.

    Attributes:
        file: the module, relative to the repository.
        line: where its call begins.
        text: its words, with :data:`GAP` for each value.
    """

    file: str
    line: int
    text: str

    def is_held_by(self, said: str) -> bool:
        """Whether ``said`` is this sentence with values in its gaps, or has it in it."""
        pattern = ".*".join(re.escape(part) for part in self.text.split(GAP))
        return re.search(pattern, said, re.DOTALL) is not None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text.replace(GAP, '{}')}"


def sentences() -> Iterator[Sentence]:
    """All of them; those that only pass on another's words are left out."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in FILES}
    constants = constants_of(trees.values())
    errors = _error_classes(trees)
    for path, tree in trees.items():
        name = path.relative_to(ROOT).as_posix()
        for line, node in said_in(tree, errors, prose=path.name in TEXTS):
            for text in sorted(set(texts(node, constants))):
                if len(re.findall(r"[^\W\d_]{2,}", text)) >= 2:
                    yield Sentence(name, line, text)


def _error_classes(trees: dict[Path, ast.Module]) -> set[str]:
    """Names of the exception classes that a user can act on."""
    classes = [
        (path.name, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    found = {node.name for file, node in classes if file in FAMILIES} | USAGE
    while True:
        more = {
            node.name
            for _, node in classes
            if any(isinstance(base, ast.Name) and base.id in found for base in node.bases)
        }
        if more <= found:
            return found
        found |= more


def said_in(tree: ast.Module, errors: set[str], *, prose: bool) -> Iterator[tuple[int, ast.expr]]:
    """Line and text of what a module says; with ``prose``, all of its sentences."""
    if prose:
        yield from ((node.lineno, node) for node in _prose(tree) if " " in ast.unparse(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            text = _text_of(node, errors)
            if text is not None:
                yield node.lineno, text


def _prose(node: ast.AST) -> Iterator[ast.expr]:
    """Strings, less docstrings and regular expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.Call) and ast.unparse(child.func).startswith("re."):
            continue
        if isinstance(child, ast.Tuple) and isinstance(child.ctx, ast.Load):
            is_pair = len(child.elts) == 2 and isinstance(node, ast.Tuple)
            yield from _prose(ast.Tuple(child.elts[1:] if is_pair else child.elts, ast.Store()))
        elif isinstance(child, ast.JoinedStr) or isinstance(getattr(child, "value", 0), str):
            yield child  # type: ignore[misc]
        else:
            yield from _prose(child)


def _text_of(node: ast.Call, errors: set[str]) -> ast.expr | None:
    """The text that a call says, or None where it says nothing to a user."""
    called = ast.unparse(node.func)
    short = called.rpartition(".")[2]
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if short in errors:
        return node.args[0] if node.args else None
    if short == "emit" and isinstance(node.args[0], ast.Constant):
        return keywords.get("text") if node.args[0].value in ("note", "error") else None
    if called == "click.echo":
        return node.args[0] if "err" in keywords else None
    if called == "print":
        is_error = "file" in keywords and ast.unparse(keywords["file"]) == "sys.stderr"
        return node.args[0] if is_error else None
    position = CALLS.get(called, CALLS.get(short) if "." not in called[: -len(short) - 1] else None)
    if position is None or len(node.args) <= position:
        return None
    return node.args[position]


def constants_of(trees: Iterable[ast.Module]) -> dict[str, ast.expr]:
    """Strings to which modules give a name."""
    found: dict[str, ast.expr] = {}
    for tree in trees:
        for node in tree.body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and isinstance(node.value, ast.Constant | ast.JoinedStr | ast.BinOp)
            ):
                found[node.targets[0].id] = node.value
    return found


def texts(node: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    """Each text that an expression can have, with gaps for what only a run can tell."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # logging's own placeholders
        yield re.sub(r"%[sdr]", GAP, node.value)
    elif isinstance(node, ast.JoinedStr):
        for parts in itertools.product(*(list(texts(v, constants)) for v in node.values)):
            yield "".join(parts)
    elif isinstance(node, ast.FormattedValue):
        for text in texts(node.value, constants):
            yield repr(text) if node.conversion == ord("r") and GAP not in text else text
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for left in texts(node.left, constants):
            for right in texts(node.right, constants):
                yield left + right
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body, constants)
        yield from texts(node.orelse, constants)
    elif isinstance(node, ast.Name) and node.id in constants:
        yield from texts(constants[node.id], constants)
    else:
        yield GAP
