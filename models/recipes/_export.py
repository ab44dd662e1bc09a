"""Shared by the recipes: one seeded export, checked and run once in onnxruntime.

    pip install torch==2.13.0 onnx onnxscript onnxruntime
    python models/recipes/yolo_score_head.py

The files beside the recipes were written by these commands on a CPU. PyTorch does not promise the
same random weights in every version, so another version gives another, equally good file.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

FOLDER = Path(__file__).resolve().parents[1]


def export(
    recipe: str,
    make: Callable[[], torch.nn.Module],
    example: Callable[[], tuple[torch.Tensor, ...]],
    *,
    opset: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, str]],
    dynamo: bool = False,
) -> None:
    """Write ``models/NAME.onnx`` (or the path given on the command line) for recipe file NAME."""
    torch.manual_seed(0)
    module = make().eval()
    arguments = example()
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / f"{Path(recipe).stem}.onnx"
    options: dict[str, object] = {"dynamic_axes": {k: dict(v) for k, v in dynamic.items()}}
    if dynamo:
        symbols = {s: torch.export.Dim(s) for axes in dynamic.values() for s in axes.values()}
        shapes = tuple({a: symbols[s] for a, s in dynamic.get(n, {}).items()} for n in inputs)
        options = {"dynamic_shapes": shapes, "external_data": False}
    with torch.no_grad():
        wanted = module(*arguments)
        torch.onnx.export(
            module,
            arguments,
            path,
            opset_version=opset,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamo=dynamo,
            **options,
        )
    if dynamo:
        _forget_paths(path)
    _check(path, inputs, arguments, wanted)


def _forget_paths(path: Path) -> None:
    """Drop the exporter's notes (stack traces with the local path of the recipe)."""
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
    del model.graph.metadata_props[:]
    del model.metadata_props[:]
    onnx.save(model, path)


def _check(path: Path, inputs: Sequence[str], arguments: Sequence[object], wanted: object) -> None:
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {name: value.numpy() for name, value in zip(inputs, arguments, strict=True)}
    got = session.run(None, feeds)
    expected = wanted if isinstance(wanted, tuple) else (wanted,)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5)
    nonzero = sum(node.op_type == "NonZero" for node in onnx.load(path).graph.node)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    print(f"{path.name}: {path.stat().st_size} bytes, {nonzero} NonZero, sha256 {digest}")
