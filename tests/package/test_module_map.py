"""Imports follow the module map of docs/how-it-works.md, and nothing heavy is imported early."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")
FOLDERS = {
    "nonzero_rewrite": ROOT / "nonzero_rewrite",
    "nonzero_plugin": ROOT / "plugin" / "nonzero_plugin",
}
ABOVE_THE_MAP = frozenset(FOLDERS)  # the packages themselves, whose names are all lazy

HEAVY = frozenset(
    {"cuda", "cupy", "distributed", "matplotlib", "onnx_graphsurgeon", "onnxruntime", "polygraphy"}
    | {"pytest", "rich", "tensorrt", "tensorrt_dispatch", "tensorrt_lean", "tensorrt_rtx", "torch"}
)
IMPORTS_HEAVY = {
    "nonzero_plugin.backends.cuda_python": {"cuda"},
    "nonzero_plugin.backends.cupy": {"cupy"},
    "nonzero_plugin.backends.torch": {"torch"},
    "nonzero_plugin.bench_measure": {"cuda"},
    "nonzero_plugin.bench_peers": {"cuda"},
    "nonzero_plugin.device": {"cuda"},
    "nonzero_rewrite.graphsurgeon": {"onnx_graphsurgeon"},
    "nonzero_rewrite.polygraphy_ext": {"polygraphy"},
    "nonzero_rewrite.polygraphy_loaders": {"polygraphy"},
    "nonzero_rewrite.pytest_plugin": {"pytest"},
    "nonzero_rewrite.report": {"rich"},
    "nonzero_rewrite.scan_report": {"rich"},
    "nonzero_rewrite.scripts.data_loader": {"polygraphy"},
    "nonzero_rewrite.scripts.trt_config": {"polygraphy"},
}
"""Modules whose import brings a heavy package, themselves or through others: all there are."""

LONG = {
    "nonzero_rewrite.search": "one loop with its budget, and the ways it makes candidates",
    "nonzero_rewrite.values": "a table of what is known of a value, operator by operator",
    "nonzero_plugin.builder": "one build, from the parser to the bytes of the engine",
    "nonzero_plugin.adapter": "TensorRT's callbacks, each a statement or two",
}
"""Modules over 300 lines, each with the reason."""
MAX_LINES = 300


@cache
def modules() -> dict[str, Path]:
    found = {}
    for package, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            found[".".join((package, *parts))] = path
    return found


@cache
def rows() -> dict[str, int]:
    """Module -> number of its row; those of nonzero_plugin come first."""
    found: dict[str, int] = {}
    for package, start in (("nonzero_plugin", 0), ("nonzero_rewrite", 100)):
        table = PAGE.split(f"| `{package}` | modules |\n")[1].split("\n\n")[0]
        for number, line in enumerate(table.splitlines()[1:]):
            for name in re.findall(r"`([\w.]+)`", line.split("|")[2]):
                module = f"{package}.{name}"
                assert module not in found, f"{module} is in the map twice"
                found[module] = start + number
    return found


def imports(module: str, *, top: bool = False) -> Iterator[str]:
    """What ``module`` imports, types alone left out; with ``top`` only what its own import runs."""
    yield from _imports(ast.parse(modules()[module].read_text("utf-8")), top)


def _imports(node: ast.AST, top: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if top and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute here"
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                yield whole if whole in modules() else str(child.module)
        yield from _imports(child, top)


def ours(module: str) -> set[str]:
    found = {name for name in imports(module) if name in modules()}
    return found - ABOVE_THE_MAP - {module}


def test_the_map_has_every_module_and_no_other() -> None:
    assert rows().keys() == modules().keys() - ABOVE_THE_MAP


def test_the_stages_name_modules_that_exist() -> None:
    paths = re.findall(r"`((?:nonzero_rewrite|nonzero_plugin)/[\w/]+(?:\.py)?/?)`", PAGE)
    assert len(paths) > 5
    for path in paths:
        folder = FOLDERS[path.partition("/")[0]]
        assert (folder / path.partition("/")[2]).exists(), path


@pytest.mark.parametrize("module", sorted(modules().keys() - ABOVE_THE_MAP))
def test_data_flows_one_way(module: str) -> None:
    if module == "nonzero_plugin.pattern":  # Polygraphy loads it as a file from a checkout
        assert ours(module) == {"nonzero_plugin.contract", "nonzero_rewrite.graphsurgeon"}
        return
    own = rows().get(module, -1)  # one that is missing fails the test of the map, not all of these
    below = {name for name in ours(module) if rows().get(name, own) > own >= 0}
    assert not below, f"{module} imports from rows below its own"


def test_no_import_goes_in_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for name in sorted(ours(module)):
                visit(name, (*path, module))
            done.add(module)

    for module in modules():
        if module not in ABOVE_THE_MAP and module != "nonzero_plugin.pattern":
            visit(module, ())


def test_heavy_packages_come_with_the_modules_that_say_so() -> None:
    @cache
    def heavy(module: str) -> frozenset[str]:
        found = set()
        for name in imports(module, top=True):
            if name in modules() and name != module:
                found |= heavy(name)
            elif name.partition(".")[0] in HEAVY:
                found.add(name.partition(".")[0])
        return frozenset(found)

    assert {name: set(heavy(name)) for name in modules() if heavy(name)} == IMPORTS_HEAVY


def test_long_modules_have_a_reason() -> None:
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in modules().items()}
    assert {name for name, length in lengths.items() if length > MAX_LINES} <= LONG.keys()
    assert LONG.keys() <= modules().keys()


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\nLOADED', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("LOADED ")[2].split())


def _run(*args: str) -> str:
    return (
        "from nonzero_rewrite.cli import main\n"
        f"try: main({list(args)})\nexcept SystemExit as end: assert not end.code, end.code"
    )


@pytest.mark.parametrize(
    ("code", "lacks"),
    [
        ("import nonzero_rewrite, nonzero_plugin", {"onnx", "numpy", "click"}),
        (_run("--help"), {"onnx", "numpy", "importlib.metadata", "nonzero_rewrite.rules"}),
        (_run("scan", "models/keypoints.onnx"), {"nonzero_rewrite.verify", "onnx.reference"}),
        (
            _run("models/keypoints.onnx", "--dry-run"),
            {"nonzero_rewrite.verify", "nonzero_plugin.build", "multiprocessing.pool"},
        ),
    ],
    ids=["import", "help", "scan", "rewrite"],
)
def test_starting_up_imports_little(code: str, lacks: set[str]) -> None:
    """The times are in tools/bench_startup.py; this is what they come from."""
    loaded = loaded_by(code)
    assert "nonzero_rewrite" in loaded
    unwanted = (HEAVY | lacks) - ({"rich"} if "main" in code and "--help" not in code else set())
    assert not {name for name in loaded if name in unwanted or name.partition(".")[0] in unwanted}
