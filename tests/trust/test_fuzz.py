"""A small share of tools/fuzz.py; the whole run is in results/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import build

ROOT = Path(__file__).parents[2]


def fuzz(keep: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "fuzz.py", *arguments, "--keep", str(keep)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        check=False,
        timeout=600,
    )


def test_mutated_models_break_no_promise(tmp_path: Path) -> None:
    done = fuzz(tmp_path / "kept", "models", "--cases", "400", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("400 cases from seed 7")
    assert ", compared" in done.stdout, "no rewrite was compared in onnxruntime"
    assert "violations: 0 of 0 kinds" in done.stdout
    assert not (tmp_path / "kept").exists()


BROKEN = """
import os, pathlib, signal, sys, tempfile, time
sys.path.insert(0, {root!r})
import nonzero_rewrite.rewrite as module
real = module.rewrite
def broken(model, options=None):
    {how}
    return real(model, options)
module.rewrite = broken
"""
CHANGE = "[p.write_bytes(b'') for p in pathlib.Path(tempfile.gettempdir()).rglob('model.onnx')]"
ESCAPE = "pathlib.Path(tempfile.gettempdir()).rglob('in').__next__().joinpath('x').touch()"


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("raise KeyError('lost')", "KeyError in "),
        ("time.sleep(60)", "hang in tool"),
        ("os.abort()", "the process ended with "),
        (CHANGE, "an input changed"),
        (ESCAPE, "wrote in/x"),
    ],
    ids=["exception", "hang", "crash", "changed input", "file elsewhere"],
)
def test_each_kind_of_fault_is_noticed(
    how: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool is broken on purpose, in the child, before it starts."""
    code = BROKEN.format(root=str(ROOT), how=how)
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nif '--child' in sys.orig_argv:\n    exec({code!r})\n"
    )
    (tmp_path / "cases").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "cases"))
    done = fuzz(tmp_path / "kept", "models", "--cases", "1", "--seed", "3", "--time-limit", "5")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"VIOLATION 1 x {kind}" in done.stdout
    assert list((tmp_path / "kept").iterdir())


def test_a_case_is_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import fuzz as tool

    seeds = tool.read_seeds([ROOT / "models"])
    for number in range(40):
        roots = [tmp_path / "one", tmp_path / "two"]
        for root in roots:
            tool.make_case(seeds, 5, number, root)
        assert tool.snapshot(roots[0]) == tool.snapshot(roots[1])


def test_a_dim_whose_name_is_no_text_counts_as_undeclared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import fuzz as tool

    data = build.nonzero(dims=["rows", 4]).SerializeToString().replace(b"rows", b"row\xff")
    runner = tool.session(data, ROOT)
    given = {"x": np.ones((3, 4), np.float32)}
    assert tool.truthful(runner, given, runner.run(None, given))
