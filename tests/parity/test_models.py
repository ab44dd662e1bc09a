"""Every model of the manifest: as described, rewritten as expected, equal before and after."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.manifest import MODELS, entries, path_of

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.function import is_ours
from nonzero_rewrite.input_values import numpy_dtype
from nonzero_rewrite.observe import find_masks, find_unobserved
from nonzero_rewrite.runtime import ModelSource, open_runner
from nonzero_rewrite.verification import Outcome
from nonzero_rewrite.verify import verify_models

# Masks that no input can change, or that this model's inputs cannot reach (see each recipe).
NEVER_PARTLY_SELECTED = {"position_ramp": 1, "fasterrcnn": 4}

each_model = pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["name"])


def test_the_manifest_lists_every_model_and_recipe() -> None:
    names = {entry["name"] for entry in entries()}
    assert names == {path.stem for path in MODELS.glob("*.onnx")}
    recipes = {path.stem for path in (MODELS / "recipes").glob("*.py")} - {"_export"}
    assert names == recipes


@each_model
def test_the_file_is_what_the_manifest_says(entry: dict[str, Any]) -> None:
    data = path_of(entry).read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    assert len(data) < 5_000_000
    model = onnx.load_model_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    assert {o.version for o in model.opset_import if o.domain in ("", "ai.onnx")} == {
        entry["opset"]
    }
    assert len(find_masks(model)) == entry["nonzero"]
    assert len(find_unobserved(model)) == entry["nonzero_inside"]
    assert list(entry["sizes"]) == [value.name for value in model.graph.input]


@each_model
def test_it_runs_with_the_sizes_of_the_manifest(entry: dict[str, Any]) -> None:
    source = ModelSource.of(path_of(entry), label=entry["name"])
    feeds = {}
    for value in source.skeleton.graph.input:
        dtype = numpy_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = np.zeros(entry["sizes"][value.name], dtype=dtype)
    outputs = [value.name for value in source.skeleton.graph.output]
    assert len(open_runner(source).run(outputs, feeds)) == len(outputs)


@each_model
def test_rewritten_equals_original(entry: dict[str, Any]) -> None:
    result = rewrite_model(path_of(entry))
    assert Counter(d.outcome for d in result.plan.decisions) == entry["outcomes"]
    onnx.checker.check_model(result.model, full_check=True)
    found = verify_models(path_of(entry), result.model)
    assert found.outcome is Outcome.EQUAL, found.reason
    assert all(output.ok for output in found.outputs)
    never = sum(not cover.some for cover in found.coverage)
    assert never == NEVER_PARTLY_SELECTED.get(entry["name"], 0)
    plugins = sum(map(is_ours, result.model.graph.node))
    assert bool(plugins) == ("plugin" in entry["outcomes"])


@each_model
def test_the_proof_notices_a_wrong_function(entry: dict[str, Any]) -> None:
    """The same comparison with indices in reverse order, for each model that has a plugin node."""
    model = rewrite_model(path_of(entry)).model
    functions = [f for f in model.functions if f.name == "NonZeroPlugin"]
    if not functions:
        assert entry["outcomes"].keys() == {"removed"}
        return
    (function,) = functions
    (node,) = (n for n in function.node if n.op_type == "NonZero")
    right, wrong = node.output[0], "in_reverse"
    node.output[0] = wrong
    bounds = {"start": -1, "end": np.iinfo(np.int64).min, "axis": 1, "step": -1}
    added = [
        onnx.helper.make_node(
            "Constant",
            [],
            [f"reverse_{name}"],
            value=onnx.numpy_helper.from_array(np.array([value], dtype=np.int64)),
        )
        for name, value in bounds.items()
    ]
    names = [f"reverse_{name}" for name in bounds]
    added.append(onnx.helper.make_node("Slice", [wrong, *names], [right]))
    position = list(function.node).index(node) + 1
    rest = list(function.node)[position:]
    del function.node[position:]
    function.node.extend([*added, *rest])
    assert verify_models(path_of(entry), model).outcome is Outcome.DIFFERENT


@pytest.mark.rtx
@each_model
def test_rtx_builds_it_or_names_the_blocker(entry: dict[str, Any], tmp_path) -> None:
    from nonzero_plugin.build import build_engine
    from nonzero_plugin.errors import EngineBuildError

    patched = tmp_path / "patched.onnx"
    onnx.save(rewrite_model(path_of(entry)).model, patched)
    if not entry["rtx_blocker"]:
        built = build_engine(patched, tmp_path / "model.engine")
        assert built.engine.stat().st_size > 0
        return
    with pytest.raises(EngineBuildError) as caught:
        build_engine(patched, tmp_path / "model.engine")
    assert not (tmp_path / "model.engine").exists()
    assert entry["rtx_blocker"] in f"{caught.value} {' '.join(caught.value.messages)}"
