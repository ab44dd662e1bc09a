"""Inputs that crash onnxruntime are found out in a process of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import build
from onnx import TensorProto, helper

from nonzero_rewrite import scout
from nonzero_rewrite.inputs import make_inputs
from nonzero_rewrite.runtime import ModelSource

CRASH = """
import os, sys
import nonzero_rewrite.scout as scout
class Runner:
    def __init__(self, source): pass
    def run(self, outputs, feeds):
        if feeds["x"].shape[0] == 0: os.abort()
scout.OrtRunner = Runner
scout.main(sys.argv[1:])
"""


def pooled() -> onnx.ModelProto:
    """A model with an operator that is not known to be harmless."""
    return build.model(
        [
            helper.make_node("GlobalMaxPool", ["x"], ["peak"]),
            helper.make_node("NonZero", ["peak"], ["indices"]),
        ],
        {"x": (TensorProto.FLOAT, ["n", 2, 3])},
        {"indices": (TensorProto.INT64, [3, None])},
    )


def feeds(*sizes: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.ones((size, 2, 3), np.float32)} for size in sizes]


def test_verdicts_come_back_in_order() -> None:
    source = ModelSource.of(pooled(), label="model")
    cases = [*feeds(1, 2), {"x": np.ones((2, 2), np.float32)}, *feeds(3)]
    first, second, wrong_rank, last = scout.surviving(source, ["indices"], cases, 60)
    assert (first, second, last) == ("", "", "")
    assert "rank" in wrong_rank.lower()


def test_a_crash_costs_one_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "crash.py"
    child.write_text(CRASH)
    run = scout.subprocess.run

    def with_crash(command, **options):
        assert command[1:3] == ["-m", "nonzero_rewrite.scout"]
        return run([command[0], str(child), *command[3:]], **options)

    monkeypatch.setattr(scout.subprocess, "run", with_crash)
    found = make_inputs(pooled())
    assert any("n = 0 (onnxruntime crashes)" in note for note in found.notes), found.notes
    assert any(case.name == "n = 1" for case in found.cases)


def test_strings_and_sequences_reach_the_child(tmp_path: Path) -> None:
    case = {"words": np.array(["a", "bc"], dtype=object), "xs": [np.zeros(2), np.ones((1, 3))]}
    scout._save(tmp_path / "0.npz", case)
    back = scout._load(tmp_path / "0.npz")
    assert back["words"].tolist() == ["a", "bc"]
    assert [item.shape for item in back["xs"]] == [(2,), (1, 3)]


def test_only_known_operators_are_run_without_a_scout() -> None:
    assert scout.is_risky(pooled())
    assert not scout.is_risky(build.nonzero())
