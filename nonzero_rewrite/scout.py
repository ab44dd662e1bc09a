"""Runs risky inputs in a process of its own first.

Some of onnxruntime's kernels crash on dims of size 0 instead of refusing them. A crash in the
scout costs one case; in this process it would cost the whole comparison.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from nonzero_rewrite.node import ONNX_DOMAINS
from nonzero_rewrite.runtime import ModelSource, OrtRunner, RunError

_PART = "/"

# Operators that move, compare or compute single items; on these no crash was ever seen.
_HARMLESS = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Clip", "Concat", "Constant", "ConstantOfShape", "Div"),
        *("Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherND", "Greater"),
        *("GreaterOrEqual", "Identity", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Min", "Mul"),
        *("Neg", "NonZero", "Not", "Or", "Reciprocal", "ReduceMax", "ReduceSum", "Relu", "Reshape"),
        *("ScatterND", "Shape", "Sigmoid", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub"),
        *("Tanh", "Transpose", "Unsqueeze", "Where"),
    )
)


def is_risky(model: onnx.ModelProto) -> bool:
    """False when every operator of ``model`` is known to take dims of size 0 or to refuse them."""
    return bool(model.functions) or any(
        node.op_type not in _HARMLESS or node.domain not in ONNX_DOMAINS
        for node in model.graph.node
    )


def surviving(
    source: ModelSource, outputs: Sequence[str], cases: Sequence[Mapping[str, Any]], timeout: float
) -> list[str]:
    """For each case "" when the original runs on it, else why not, without risk to this process."""
    verdicts = ["was not tried: the time budget ended"] * len(cases)
    with tempfile.TemporaryDirectory(prefix="nonzero-rewrite-") as name:
        folder = Path(name)
        model = source.path
        if model is None:
            model = folder / "model.onnx"
            model.write_bytes(source.with_outputs(()))
        for position, feeds in enumerate(cases):
            _save(folder / f"{position}.npz", feeds)
        start = 0
        while start < len(cases):
            data = source.folder or model.parent
            lines = _run([str(model), str(data), name, str(start), *outputs], timeout)
            if lines is None:
                return verdicts
            for line in lines:
                number, _, verdict = line.partition(" ")
                verdicts[int(number)] = verdict
                start = int(number) + 1
            if start < len(cases):
                verdicts[start] = "onnxruntime crashes"
                start += 1
    return verdicts


def _run(arguments: Sequence[str], timeout: float) -> list[str] | None:
    """The lines the child wrote before it ended or crashed, None when it ran out of time."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nonzero_rewrite.scout", *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=max(timeout, 1.0),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.splitlines()


def _save(path: Path, feeds: Mapping[str, Any]) -> None:
    parts: dict[str, np.ndarray] = {}
    for position, value in enumerate(feeds.values()):
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            array = np.asarray(item)
            key = f"{position}{_PART}{index if isinstance(value, list) else ''}"
            parts[key] = array.astype(np.str_) if array.dtype.kind == "O" else array
    np.savez(path, allow_pickle=False, names=np.array(list(feeds), dtype=np.str_), **parts)


def _load(path: Path) -> dict[str, Any]:
    feeds: dict[str, Any] = {}
    with np.load(path, allow_pickle=False) as file:
        names = [str(name) for name in file["names"]]
        for key in file.files:
            if key == "names":
                continue
            position, _, index = key.partition(_PART)
            array = file[key]
            array = array.astype(object) if array.dtype.kind == "U" else array
            name = names[int(position)]
            if index:
                feeds.setdefault(name, []).append(array)
            else:
                feeds[name] = array
    return feeds


def main(arguments: Sequence[str]) -> None:
    """Child process: one line ``POSITION VERDICT`` for each case that does not crash."""
    model, data, folder, start, *outputs = arguments
    found = ModelSource.of(model, label="original")
    source = ModelSource("original", found.skeleton, Path(data), found.path, None)
    runner = OrtRunner(source)
    for position in range(int(start), len(list(Path(folder).glob("*.npz")))):
        verdict = ""
        try:
            runner.run(outputs, _load(Path(folder) / f"{position}.npz"))
        except RunError as err:
            verdict = str(err)
        sys.stdout.write(f"{position} {verdict}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
