"""The command line of scan and restore."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command import PLAIN, TEXT, call, load, save
from helpers.graphs import ops


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path / "model.onnx", TEXT)


# -- scan ------------------------------------------------------------------------------------------


def test_scan_a_folder(path: Path, tmp_path: Path) -> None:
    save(tmp_path / "plain.onnx", PLAIN)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    result = call("scan", tmp_path, "--json")
    entries = json.loads(result.stdout)
    assert result.exit_code == 0 and [len(e["decisions"]) for e in entries] == [2, 0]
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before
    text = call("scan", tmp_path)
    assert "score_nz" in text.stdout and "plain.onnx: no NonZero" in text.stdout.replace("\n", "")


def test_scan_goes_on_after_a_broken_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "a_broken.onnx").write_bytes(b"no")
    result = call("scan", tmp_path, "--json")
    entries = json.loads(result.stdout)
    assert result.exit_code == 1 and "error" in entries[0] and len(entries[1]["decisions"]) == 2
    assert "a_broken.onnx" in result.stderr


def test_a_folder_without_models_is_not_the_one_that_was_meant(path: Path, tmp_path: Path) -> None:
    """A misspelled folder must not pass in CI, whatever else is scanned."""
    (tmp_path / "empty").mkdir()
    result = call("scan", tmp_path / "empty", path, "--json")
    entries = json.loads(result.stdout)
    assert result.exit_code == 1 and "no .onnx file in this folder" in entries[0]["error"]
    assert len(entries[1]["decisions"]) == 2
    alone = call("scan", tmp_path / "empty")
    assert alone.exit_code == 1 and alone.stdout == ""
    assert alone.stderr == (
        f"Error: {tmp_path / 'empty'}: no .onnx file in this folder; name the models, or the "
        "folder that holds them\n"
    )
    assert call("scan", tmp_path / "gone").exit_code == 1


# -- restore ---------------------------------------------------------------------------------------


def test_restore(path: Path, tmp_path: Path) -> None:
    out, back = tmp_path / "out.onnx", tmp_path / "back.onnx"
    call(path, "-o", out)
    result = call("restore", out, "-o", back)
    assert result.exit_code == 0 and "2 NonZeroPlugin became NonZero" in result.stdout
    assert ops(load(back)) == ["NonZero", "Transpose", "GatherND", "NonZero"]
    assert b"nonzero_rewrite" not in back.read_bytes()
    assert call("verify", path, back).exit_code == 0


def test_restore_of_a_plain_model_is_a_copy(path: Path, tmp_path: Path) -> None:
    back = tmp_path / "back.onnx"
    result = call("restore", path, "-o", back)
    assert result.exit_code == 0 and "No NonZeroPlugin found" in result.stdout
    assert back.read_bytes() == path.read_bytes()


def test_restore_of_a_masked_write_takes_the_marks_off(tmp_path: Path) -> None:
    text = """g (float[n] x, bool[n] m) => (float[n] y) <float v = {1.0}, int64[1] one = {1}> {
        i = NonZero(m) t = Transpose(i) s = Shape(i) k = Gather(s, one) u = Expand(v, k)
        y = ScatterND(x, t, u) }"""
    path = save(tmp_path / "write.onnx", text)
    out, back = tmp_path / "out.onnx", tmp_path / "back.onnx"
    call(path, "-o", out)
    assert b"nonzero_rewrite" in out.read_bytes()
    assert call("restore", out, "-o", back).exit_code == 0
    assert b"nonzero_rewrite" not in back.read_bytes() and ops(load(back)) == ["Where"]
