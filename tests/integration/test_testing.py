"""``assert_parity`` as function and as fixture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from helpers import wrong_rewrites
from helpers.manifest import MODELS

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.testing import ParityError, assert_parity


def test_equal_models_pass_and_say_on_what() -> None:
    path = MODELS / "keypoints.onnx"
    result = assert_parity(path, rewrite_model(path).model, time_budget=1.0)
    assert result.ok
    assert result.cases


def test_a_difference_names_output_index_node_and_counts() -> None:
    original = wrong_rewrites.original()
    patched = rewrite_model(original).model
    for node in patched.graph.node:
        if node.op_type == "Greater":
            node.op_type = "Less"
    with pytest.raises(ParityError) as caught:
        assert_parity(original, patched, time_budget=1.0)
    text = str(caught.value)
    assert "patched differs from original" in text
    assert "NonZero 'n_y_indices' in case" in text
    assert "K = " in text
    assert "in the original, " in text
    assert "output 'y_picked' in case" in text
    assert "equal in every case: x_picked" in text
    assert caught.value.verification.outputs


def test_values_are_shown_side_by_side() -> None:
    original = wrong_rewrites.original()
    patched = onnx.ModelProto()
    patched.CopyFrom(rewrite_model(original).model)
    (gather,) = [node for node in patched.graph.node if node.output[0] == "x_picked"]
    gather.output[0] = "kept"
    patched.graph.node.append(onnx.helper.make_node("Neg", ["kept"], ["x_picked"]))
    with pytest.raises(ParityError) as caught:
        assert_parity(original, patched, time_budget=1.0)
    text = str(caught.value)
    assert "output 'x_picked' in case" in text
    assert "first difference at [" in text
    assert "- original  " in text
    assert "+ patched   " in text
    assert "NonZero 'n_x_indices': K = " in text


def test_models_that_cannot_be_compared_do_not_pass() -> None:
    node = onnx.helper.make_node("Nonsense", ["x"], ["y"], domain="nowhere")
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xy")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]))
    with pytest.raises(ParityError, match="cannot be compared"):
        assert_parity(model, model, time_budget=1.0)


def test_the_fixture_comes_with_the_package(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from nonzero_rewrite import rewrite_model\n"
        f"MODEL = {str(MODELS / 'keypoints.onnx')!r}\n"
        "def test_equal(assert_parity):\n"
        "    assert_parity(MODEL, rewrite_model(MODEL).model, time_budget=1)\n"
        "def test_different(assert_parity):\n"
        f"    assert_parity(MODEL, {str(MODELS / 'moe_block.onnx')!r}, time_budget=1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "ParityError: " in done.stdout
    assert "graph inputs are" in done.stdout
