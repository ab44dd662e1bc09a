"""Every example runs from the checkout as its own text says, and prints what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

EXPECTED = {
    "ci_gate.py": "ok   models",
    "detector_head.py": "parity: equal",
    "moe_routing.py": "count differs",
    "tts_spline.py": "8 NonZero, 1 plugin node left",
}
TESTED_ELSEWHERE = {"cluster.py"}  # tests/integration


def test_every_example_is_tested() -> None:
    found = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert found == EXPECTED.keys() | TESTED_ELSEWHERE


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(Path("examples", name))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout


def test_the_gate_fails_where_something_is_in_the_way() -> None:
    done = subprocess.run(
        [sys.executable, "examples/ci_gate.py", "models/fasterrcnn.onnx", "models/keypoints.onnx"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "NonMaxSuppression" in done.stdout
    assert "ok   models/keypoints.onnx" in done.stdout
