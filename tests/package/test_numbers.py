"""Numbers in README.md are those of the results it links to; its output is the real one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
KERNEL = next(iter(re.findall(r"\]\((results/kernel-[\w-]+\.md)\)", README)))


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_kernel_is_as_fast_as_measured() -> None:
    data = json.loads((ROOT / KERNEL).with_suffix(".json").read_text("utf-8"))
    measured = {
        f"2^{row['log2_items']}": row
        for row in data["rows"]
        if (row["dtype"], row["layout"], row["density"]) == ("FLOAT", "KxR", 0.1)
    }
    shown = [row for row in rows(README.split("## Speed")[1]) if row[0].startswith("2^")]
    assert len(shown) == 4
    for items, *cells in shown:
        row = measured[items]
        times = row["call_us"], row["peers_us"]["torch"], row["peers_us"]["cupy"]
        assert cells == [f"{time:.0f}" for time in times]
    largest = measured["2^28"]
    assert f"{largest['floor_us'] / largest['gpu_us']:.2f} of what a copy" in README


def test_the_corpus_is_as_large_as_counted() -> None:
    corpus = (ROOT / "results" / "corpus.md").read_text("utf-8")
    total, equal, built = re.findall(
        r"Of (\d+) models .*?, (\d+) were compared .*?and (\d+) build", README.replace("\n", " ")
    )[0]
    assert f"models: {total};" in corpus
    assert f"parity: {equal} equal," in corpus
    assert f"TensorRT-RTX: {built} of {total} build" in corpus


@pytest.mark.parametrize("command", ["nonzero-rewrite --help", "nonzero-rewrite scan MODEL"])
def test_it_starts_as_fast_as_measured(command: str) -> None:
    (page,) = re.findall(r"\]\((results/startup-[\w-]+\.md)\)", README)
    measured = rows((ROOT / page).read_text("utf-8"))
    (row,) = (row for row in measured if row[0] == f"`{command}`")
    assert f" {row[1]}" in README


def test_the_first_output_is_what_the_tool_prints(tmp_path: Path) -> None:
    """All but the numbers, and but the engine, which the run of all commands builds."""
    command, *shown = README.split("```console\n$ ")[1].split("\n```")[0].splitlines()
    words = command.rpartition("&& nonzero-rewrite ")[2].split()
    model, target = words[0], str(tmp_path / "patched.onnx")
    assert words[1:] == ["-o", "patched.onnx", "--verify", "--build", "patched.engine"]
    done = subprocess.run(
        [sys.executable, "-m", "nonzero_rewrite", model, "-o", target, "--verify"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    printed = done.stdout.splitlines()

    def before(lines: list[str], start: str) -> list[str]:
        end = next(number for number, line in enumerate(lines) if line.startswith(start))
        return [re.sub(r"\d+", "0", line).rstrip() for line in lines[:end]]

    assert before(shown, "note: input") == before(printed, "patched ")


def test_the_start_up_benchmark_runs() -> None:
    tool = ROOT / "tools" / "bench_startup.py"
    command = [sys.executable, str(tool), "--rounds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = json.loads(done.stdout)["seconds"]
    assert {len(times) for times in seconds.values()} == {1}
    assert "polygraphy -h, with us" in seconds
