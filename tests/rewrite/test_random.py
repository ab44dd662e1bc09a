"""Laws of the rewriter on random models; NONZERO_EXAMPLES=5000 looks longer."""

from __future__ import annotations

import os

import numpy as np
import onnx
from helpers import graphs
from helpers.graphs import feeds_of, plugins, session
from helpers.random_graphs import models
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from onnx import ModelProto

from nonzero_rewrite import Options, restore_model, rewrite_model
from nonzero_rewrite.find import find_sites
from nonzero_rewrite.plan import options_from_json
from nonzero_rewrite.rules import RULES, SkipReason

EXAMPLES = int(os.environ.get("NONZERO_EXAMPLES", "250"))
law = settings(
    max_examples=EXAMPLES,
    derandomize="NONZERO_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
EXACT = [rule.name for rule in RULES if rule.exact and rule.name != "any-rank"]  # it needs no law


def assert_equal(one: ModelProto, other: ModelProto, cases: int = 12) -> int:
    """On both ways through every If, without -0.0, whose sign onnxruntime's Where loses."""
    for model in (one, other):
        try:
            session(model)
        except Exception as err:
            # onnxruntime may refuse an If whose branches have different static sizes.
            if "Can't merge shape info" in str(err):
                reject()
            raise
    found = []
    for number, each in enumerate(feeds_of(one, {"m": 2})):
        plain = {
            name: value + 0 if value.dtype.kind == "f" else value for name, value in each.items()
        }
        found.append({**plain, "c": np.array(number % 2 == 0)})
    return graphs.assert_equal(one, other, found[:cases], zero_signs=False, reference=False)


@law
@given(models())
def test_the_rewritten_model_equals_the_original(model: ModelProto) -> None:
    before = model.SerializeToString()
    result = rewrite_model(model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(result.model)
    sites = {site.id for site in find_sites(model)}
    assert {decision.site.id for decision in result.plan.decisions} == sites
    assert assert_equal(model, result.model) > 0

    again = rewrite_model(result.model)
    assert not again.changed
    assert again.model.SerializeToString() == result.model.SerializeToString()

    planned = rewrite_model(model, options_from_json(result.plan.to_json()))
    assert planned.model.SerializeToString() == result.model.SerializeToString()

    restored = ModelProto()
    restored.CopyFrom(result.model)
    restore_model(restored)
    onnx.checker.check_model(restored)
    assert "nonzero_rewrite" not in str(restored)
    assert_equal(model, restored, 3)


@law
@given(models(), st.sets(st.sampled_from(EXACT)), st.booleans())
def test_any_choice_of_rules(model: ModelProto, rules: set[str], function: bool) -> None:
    options = Options(rules=frozenset(rules), function=function)
    result = rewrite_model(model, options)
    onnx.checker.check_model(result.model)
    if function or not plugins(result.model):
        assert_equal(model, result.model, 6)


@law
@given(models(), st.randoms(use_true_random=False))
def test_node_lists_out_of_order(model: ModelProto, random: object) -> None:
    """onnxruntime takes them; the rewriter must not rely on an order."""
    nodes = list(model.graph.node)
    random.shuffle(nodes)  # type: ignore[attr-defined]
    shuffled = ModelProto()
    shuffled.CopyFrom(model)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    result = rewrite_model(shuffled)
    assert_equal(model, result.model, 6)


@law
@given(models(), st.data())
def test_what_is_left_stays(model: ModelProto, data: st.DataObject) -> None:
    sites = find_sites(model)
    left = data.draw(st.sampled_from(sites))
    result = rewrite_model(model, skip=(left.id,))
    for decision in result.plan.decisions:
        if decision.site.id == left.id:
            assert (decision.outcome, decision.reason) == ("left", SkipReason.EXCLUDED)
    assert_equal(model, result.model, 4)
