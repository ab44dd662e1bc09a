"""What becomes of the models in models/, which real exporters wrote."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from helpers.graphs import ops, outcomes, plugins

from nonzero_rewrite import rewrite_model

MODELS = Path(__file__).parents[2] / "models"


def rewritten(name: str, **settings: object) -> object:
    return rewrite_model(MODELS / f"{name}.onnx", **settings)


def counts(name: str, **settings: object) -> tuple[int, int]:
    """NonZero found, and plugin nodes that stand for them."""
    result = rewritten(name, **settings)
    return len(result.sites), len(plugins(result.model))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("yolo_score_head", (3, 1)),
        ("moe_block", (4, 4)),
        ("tts_spline", (8, 1)),
        ("vlm_image_tokens", (1, 1)),
        ("bert_unpad", (1, 1)),
        ("keypoints", (1, 1)),
        ("tf_boolean_mask", (1, 1)),
        ("position_ramp", (1, 0)),
        ("index_put_update", (1, 1)),
    ],
)
def test_what_is_shared_and_what_is_not_needed(name: str, expected: tuple[int, int]) -> None:
    assert counts(name) == expected


def test_early_exit_is_lifted_out_of_its_branches() -> None:
    """torch.jit.script leaves the mask in an If; it follows from values outside."""
    result = rewritten("early_exit")
    assert set(outcomes(result).values()) == {"plugin"}  # type: ignore[arg-type]
    inside = [d for d in result.plan.decisions if d.site.graph]  # type: ignore[attr-defined]
    assert len(inside) == 2 and all(d.rules[0] == "hoist" for d in inside)
    (carrier,) = [n for n in result.model.graph.node if n.op_type == "If"]  # type: ignore[attr-defined]
    for attr in carrier.attribute:
        assert "NonZero" not in [node.op_type for node in attr.g.node]


def test_functions_of_onnxscript_are_inlined() -> None:
    original = onnx.load(MODELS / "onnxscript_functions.onnx")
    assert original.functions
    result = rewritten("onnxscript_functions")
    assert set(outcomes(result).values()) == {"plugin"}  # type: ignore[arg-type]
    assert all("inline-function" in d.rules for d in result.plan.decisions)  # type: ignore[attr-defined]
    assert [f.name for f in result.model.functions] == ["NonZeroPlugin"]  # type: ignore[attr-defined]


def test_left_inside_without_the_lifting_rules() -> None:
    from nonzero_rewrite.rules import DEFAULT_RULES

    rules = DEFAULT_RULES - {"hoist", "inline-if", "inline-function"}
    for name in ("early_exit", "onnxscript_functions"):
        decisions = rewritten(name, rules=rules).plan.decisions  # type: ignore[attr-defined]
        inside = [d for d in decisions if d.site.graph]
        assert inside and {d.outcome for d in inside} == {"left"}


def test_no_nonzero_is_left_at_the_top_of_any_model() -> None:
    for path in sorted(MODELS.glob("*.onnx")):
        result = rewrite_model(path)
        assert "NonZero" not in ops(result.model), path.name
