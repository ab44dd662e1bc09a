"""The file beside an engine is data anybody may have written: it explains, or it is nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.sidecar import content
from nonzero_plugin.sidecar import read_sidecar, sidecar_path


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    for name in ("m.onnx", "m.engine"):
        (tmp_path / name).write_text(name)
    return tmp_path / "m.engine"


def test_what_was_written_is_read(engine: Path) -> None:
    sidecar_path(engine).write_text(json.dumps(content(engine)))
    assert read_sidecar(engine) == content(engine)


@pytest.mark.parametrize(
    "change",
    [
        *({name: 3} for name in ("format", "engine", "model", "plugin", "tensorrt", "profiles")),
        *({name: {}} for name in ("engine", "model", "plugin", "tensorrt")),
        {"tensorrt": {"flavour": ["x"], "version": "1"}},
        {"profiles": [3]},
        {"plugin": {"nodes": "nz"}},
        {"plugin": {"nodes": [3]}},
        {"format": None},
        {"format": 2},
    ],
    ids=str,
)
def test_one_of_another_shape_is_none(change: dict[str, Any], engine: Path) -> None:
    sidecar_path(engine).write_text(json.dumps({**content(engine), **change}))
    assert read_sidecar(engine) is None


@pytest.mark.parametrize("text", ["", "3", "[]", "{", "[" * 100_000, "\0", '{"format": 1}'])
def test_text_that_is_none_is_none(text: str, engine: Path) -> None:
    sidecar_path(engine).write_text(text)
    assert read_sidecar(engine) is None


def test_bytes_and_folders_and_nothing_are_none(engine: Path) -> None:
    assert read_sidecar(engine) is None
    sidecar_path(engine).write_bytes(b"\xff\xfe")
    assert read_sidecar(engine) is None
    sidecar_path(engine).unlink()
    sidecar_path(engine).mkdir()
    assert read_sidecar(engine) is None
