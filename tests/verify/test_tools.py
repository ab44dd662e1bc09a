"""The tools that run the whole path over folders, and mutants over the tests."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import onnx
import pytest
from helpers import build

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{name}", TOOLS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_corpus_goes_on_past_a_file_that_is_no_model(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    onnx.save(build.nonzero(), folder / "good.onnx")
    (folder / "text.onnx").write_text("no model")
    table, rows = tmp_path / "table.md", tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, TOOLS / "corpus.py", folder, "--json", rows, "--markdown", table],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    good, text = json.loads(rows.read_text())
    assert (good["outcomes"], good["parity"], good["masks_partly_selected"]) == (
        {"plugin": 1},
        "equal",
        1,
    )
    assert "text.onnx" in text["refused"]
    assert "models: 2; refused: 1; broken: 0" in done.stdout
    assert "| good.onnx | 1 plugin |" in table.read_text()


ROW = {"parity": "equal", "idempotent": True, "valid": ""}


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (ROW, ""),
        ({"refused": "why"}, ""),
        ({**ROW, "parity": "not comparable"}, ""),
        ({**ROW, "parity": "different"}, "different"),
        ({**ROW, "idempotent": False}, "invalid"),
        ({**ROW, "valid": "checker's words"}, "invalid"),
        ({"broken": "traceback"}, "traceback"),
        ({"broken": "crash (exit code -11)"}, "crash"),
        ({"broken": "time-out after 3 s"}, "time-out"),
    ],
)
def test_what_makes_a_corpus_run_fail(row: dict, verdict: str) -> None:
    assert load("corpus").verdict(row) == verdict


def test_a_crash_and_a_time_out_of_one_model_are_rows(tmp_path: Path, monkeypatch) -> None:
    corpus = load("corpus")
    script = tmp_path / "child.py"
    monkeypatch.setattr(corpus, "__file__", str(script))
    script.write_text("import os; os.abort()")
    assert corpus.run_one(Path("x.onnx"), False, 0, 60)["broken"].startswith("crash")
    script.write_text("raise ValueError('boom')")
    row = corpus.run_one(Path("x.onnx"), False, 0, 60)
    assert row["broken"] == "traceback"
    assert "boom" in row["traceback"]
    script.write_text("import time; time.sleep(60)")
    assert corpus.run_one(Path("x.onnx"), False, 0, 0.5)["broken"].startswith("time-out")


def test_every_mutant_is_another_program() -> None:
    tool = load("mutants")
    source = (
        "def f(a: int = 1, b: bool = True) -> int:\n"
        "    return a + 2 if a < 3 and b else 4 * a - (b & 5)\n"
    )
    found = tool.mutants(source)
    texts = {mutant.text for mutant in found}
    assert {"Lt -> LtE", "And -> Or", "Add -> Sub", "1 -> 2", "True -> False"} <= texts
    results = set()
    for mutant in found:
        names: dict = {}
        exec(compile(tool.mutate(source, mutant.number), "mutant", "exec"), names)
        f = names["f"]
        results.add((f(), f(b=1), *(f(a, b) for a in (0, 1, 2.5, 3, 3.5, 7) for b in (0, 1, 4, 6))))
    assert len(results) == len(found)


MODULE = """
LIMIT = 3


def small(value, limit=LIMIT):
    return value < limit and value != 0


def unused(value):
    return value + 1
"""
TESTS = """
from thing import small


def test_small():
    assert (small(2), small(3), small(0)) == (True, False, False)


def test_value():
    import constants

    assert constants.VALUE == 4
"""


def test_survivors_are_named_and_may_be_explained(tmp_path: Path) -> None:
    (tmp_path / "thing.py").write_text(MODULE)
    (tmp_path / "constants.py").write_text("VALUE = 4\n")
    (tmp_path / "test_thing.py").write_text(TESTS)
    explained, rows = tmp_path / "explained.json", tmp_path / "rows.jsonl"
    place = {"module": "thing.py", "function": "unused", "line": "return value + 1"}
    explained.write_text(json.dumps([{**place, "change": "1 -> 2", "why": "nobody calls it"}]))
    command = [sys.executable, TOOLS / "mutate.py", "thing.py", "--tests", "test_thing.py"]
    command += ["constants.py", "--explained", explained, "--json", rows]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if not hasattr(os, "fork"):
        assert "run it on Linux or macOS" in done.stderr
        return
    assert done.returncode == 1, done.stderr
    assert "thing.py:10: Add -> Sub: return value + 1 (no test reaches it)" in done.stdout
    assert "1 -> 2" not in done.stdout
    assert "| thing.py | 7 | 5 | 1 | 1 |" in done.stdout
    assert "| constants.py | 1 | 1 | 0 | 0 |" in done.stdout
    every = map(json.loads, rows.read_text().splitlines())
    outcomes = {each["change"]: each for each in every if each["module"] == "thing.py"}
    assert outcomes["1 -> 2"]["why"] == "nobody calls it"
    noticed = {each["function"] for each in outcomes.values() if each["noticed"]}
    assert noticed == {"", "small"}, "inside of a function, and outside of all"
    command = [*command[:-2], "--retry", rows]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "| thing.py | 2 | 0 | 1 | 1 |" in done.stdout, done.stderr


def test_each_explained_survivor_is_still_there() -> None:
    tool = load("mutants")
    for entry in json.loads((TOOLS / "equivalent_mutants.json").read_text(encoding="utf-8")):
        source = (TOOLS.parent / entry["module"]).read_text(encoding="utf-8")
        lines = [line.strip() for line in source.splitlines()]
        places = {(each.function, lines[each.line - 1], each.text) for each in tool.mutants(source)}
        assert (entry["function"], entry["line"], entry["change"]) in places, entry
        assert entry["why"].endswith(".")
