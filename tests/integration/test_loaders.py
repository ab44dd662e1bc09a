"""Polygraphy loaders, and inputs of chosen density."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.manifest import MODELS

from nonzero_rewrite.densities import inputs_of_density
from nonzero_rewrite.errors import VerificationError

MOE = MODELS / "moe_block.onnx"


def test_rewriting_leaves_the_loaded_model_as_it_was() -> None:
    from nonzero_rewrite.polygraphy_loaders import RewriteNonZero

    model = onnx.load(MOE)
    before = model.SerializeToString()
    rewritten = RewriteNonZero(lambda: model, backend="torch", max_nonzero_of=[("/NonZero", 7)])()
    assert model.SerializeToString() == before
    nodes = [node for node in rewritten.graph.node if node.op_type == "NonZeroPlugin"]
    caps = [attr.i for node in nodes for attr in node.attribute if attr.name == "max_nonzero"]
    assert len(nodes) == 4
    assert caps == [7]


def test_rules_replace_or_extend_the_default() -> None:
    from nonzero_rewrite.polygraphy_loaders import RewriteNonZero

    path = MODELS / "position_ramp.onnx"
    model = onnx.load(path)
    only = RewriteNonZero(model, rules=["plugin"])()
    more = RewriteNonZero(model, rules=["+where-sum"])()
    assert sum(node.op_type == "NonZeroPlugin" for node in only.graph.node) == 1
    assert sum(node.op_type == "NonZeroPlugin" for node in more.graph.node) == 0


def test_an_error_is_polygraphys() -> None:
    from polygraphy.exception import PolygraphyException

    from nonzero_rewrite.polygraphy_loaders import RewriteNonZero

    with pytest.raises(PolygraphyException, match="unknown rule 'magic'"):
        RewriteNonZero(onnx.load(MOE), rules=["magic"])()


@pytest.mark.rtx
def test_the_chain_parses_and_builds(tmp_path: Path) -> None:
    code = f"""
import os
os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"
from nonzero_rewrite.polygraphy_loaders import RegisterNonZeroPlugin, RewriteNonZero
from polygraphy.backend.onnx import BytesFromOnnx, OnnxFromPath
from polygraphy.backend.trt import EngineBytesFromNetwork, NetworkFromOnnxBytes
rewritten = RewriteNonZero(OnnxFromPath({str(MODELS / "onnxscript_functions.onnx")!r}))
network = NetworkFromOnnxBytes(RegisterNonZeroPlugin(BytesFromOnnx(rewritten)))
builder, parsed, parser = network()
names = [parsed.get_layer(i).type.name for i in range(parsed.num_layers)]
assert "PLUGIN_V3" in names, names
assert RegisterNonZeroPlugin("passed through")() == "passed through"
print("BUILT")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "BUILT" in done.stdout, done.stderr


def test_densities_are_met_where_inputs_decide() -> None:
    wanted = (0.0, 0.1, 0.5, 1.0)
    found = inputs_of_density(MODELS / "yolo_score_head.onnx", wanted, time_budget=3.0)
    assert [each.wanted for each in found] == list(wanted)
    for each in found:
        assert max(abs(share - each.wanted) for share in each.reached) <= 0.15
    again = inputs_of_density(MODELS / "yolo_score_head.onnx", wanted, time_budget=3.0)
    for one, two in zip(found, again, strict=True):
        assert all(np.array_equal(one.feeds[name], two.feeds[name]) for name in one.feeds)


def test_a_density_is_a_share() -> None:
    with pytest.raises(VerificationError, match=r"density 2 is not between 0 and 1"):
        inputs_of_density(MOE, (2,))


@pytest.mark.parametrize(
    ("name", "code"), [("trt_config", 0), ("data_loader", 0), ("rtx_libraries", 0), ("x", 2)]
)
def test_scripts_say_where_they_are(name: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nonzero_rewrite.scripts", name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    if name in ("trt_config", "data_loader"):
        assert Path(done.stdout.strip()).name == f"{name}.py"
        assert Path(done.stdout.strip()).is_file()
