"""The command line, called in this process."""

from __future__ import annotations

from pathlib import Path

import onnx
from click.testing import CliRunner, Result
from helpers.graphs import parse

from nonzero_rewrite.cli import main

TEXT = """g (float[n,4] x, float[n,4] w) => (float[k] y, int64[2,j] z) {
    [score_nz] a = NonZero(x) [turn] t = Transpose(a) [pick] y = GatherND(x, t)
    [box_nz] z = NonZero(w) }"""
PLAIN = "g (float[n] x) => (float[n] y) { y = Neg(x) }"


def save(path: Path, text: str, **settings: object) -> Path:
    path.write_bytes(parse(text, **settings).SerializeToString())  # type: ignore[arg-type]
    return path


def call(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], catch_exceptions=False)


def load(path: Path) -> onnx.ModelProto:
    return onnx.load(path)
