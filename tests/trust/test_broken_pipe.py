"""Output that nobody reads any more, or that does not fit: the run ends as it would have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from helpers.command import TEXT, save
from helpers.graphs import parse

COMMANDS = {
    "--help": 0,
    "--version": 0,
    "scan m.onnx": 0,
    "scan m.onnx --json": 0,
    "scan gone.onnx": 1,
    "scan --nonsense": 2,
    "m.onnx -o out.onnx --verify": 0,
    ". -O out": 0,
    "verify m.onnx m.onnx": 0,
    "verify m.onnx m.onnx --json": 0,
    "verify m.onnx other.onnx --junit report.xml": 3,
    "verify m.onnx other.onnx --json --html report.html": 3,
    "verify m.onnx gone.onnx": 1,
    "build gone.onnx": 1,
    "run gone.engine": 1,
    "restore m.onnx -o out.onnx": 0,
    "doctor m.onnx": 0,
}
"""Each with the exit code that it has when all is read."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "m.onnx", TEXT)
    other = parse(
        TEXT.replace("NonZero(w)", "NonZero(m)")
        .replace("[box_nz]", "m = Not(b) [box_nz]")
        .replace("{\n", "{\n b = Cast<to=9>(w)\n", 1)
    )
    onnx.save(other, tmp_path / "other.onnx")
    return tmp_path


def run(folder: Path, line: str, stdout: int, stderr: int) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "nonzero_rewrite", *line.split()]
    return subprocess.run(
        command, cwd=folder, stdout=stdout, stderr=stderr, timeout=120, check=False
    )


@pytest.mark.parametrize("line", COMMANDS)
def test_a_reader_that_left_changes_no_exit_code_and_no_file(line: str, folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # before anything is written, as the quickest `head` would
    try:
        done = run(folder, line, writer, subprocess.PIPE)
    finally:
        os.close(writer)
    assert done.returncode == COMMANDS[line], done.stderr
    assert b"Traceback" not in done.stderr and b"Broken" not in done.stderr
    for word in line.split():
        if word.startswith(("out", "report")):
            assert (folder / word).exists(), word


@pytest.mark.parametrize("line", ["scan gone.onnx", "scan --nonsense", "verify m.onnx other.onnx"])
def test_nor_does_one_that_left_the_diagnostics_too(line: str, folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run(folder, line, writer, writer).returncode == COMMANDS.get(line, 3)
    finally:
        os.close(writer)


def test_a_reader_of_one_line_gets_it(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "nonzero_rewrite", "verify", "m.onnx", "other.onnx"],
        cwd=folder,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"Parity: DIFFERENT")
        process.stdout.close()
        assert process.wait(timeout=120) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("line", ["--help", "scan m.onnx", "verify m.onnx m.onnx --json", "doctor"])
def test_output_that_does_not_fit_is_told_in_a_sentence(line: str, folder: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(folder, line, full.fileno(), subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1] == (
        "Error: the output cannot be written: No space left on device; make room, or send it "
        "elsewhere"
    )
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr
