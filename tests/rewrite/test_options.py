"""Options, caps and plans, as the Python interface takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_type_hints

import numpy as np
import onnx
import pytest
from helpers.graphs import outcomes, parse, perm, plugins, rewritten, run

from nonzero_rewrite import Options, rewrite_model, verify_models
from nonzero_rewrite.errors import PlanError, UnsupportedModelError
from nonzero_rewrite.options import OptionSettings, SiteOptions
from nonzero_rewrite.plan import options_from_json, read_plan
from nonzero_rewrite.rules import DEFAULT_RULES, EXACT_RULES, RULE_NAMES, SkipReason

TEXT = """g (float[n,4] x, float[n,4] w) => (float[k] y, int64[2,j] z) {
    [score_nz] a = NonZero(x) [turn] t = Transpose(a) [pick] y = GatherND(x, t)
    [box_nz] z = NonZero(w) }"""
MASKED_WRITE = """g (float[n] x, bool[n] m) => (float[n] y)
    <float v = {1.0}, int64[1] one = {1}> { [nz] i = NonZero(m) t = Transpose(i) s = Shape(i)
    k = Gather(s, one) u = Expand(v, k) y = ScatterND(x, t, u) }"""


def attribute(node: onnx.NodeProto, name: str) -> object:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}.get(name)


# -- which NonZero ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["score_nz", "score*", "a", "[as]"])
def test_only_and_skip_by_name_output_or_glob(pattern: str) -> None:
    result = rewritten(parse(TEXT), only=(pattern,))
    assert outcomes(result) == {"a": "plugin", "z": "left"}
    result = rewritten(parse(TEXT), skip=(pattern,))
    assert outcomes(result) == {"a": "left", "z": "plugin"}
    assert result.plan.decisions[0].reason is SkipReason.EXCLUDED


def test_skip_wins_over_only() -> None:
    result = rewritten(parse(TEXT), only=("*",), skip=("z",))
    assert outcomes(result) == {"a": "plugin", "z": "left"}


@pytest.mark.parametrize("setting", ["only", "skip"])
def test_a_pattern_that_fits_nothing(setting: str) -> None:
    with pytest.raises(PlanError, match="no NonZero is called 'nothing'; `nonzero-rewrite scan`"):
        rewrite_model(parse(TEXT), **{setting: ("nothing",)})


def test_names_with_brackets_are_taken_literally_too() -> None:
    model = parse("g (float[n] x) => (int64[1,k] y) { y = NonZero(x) }")
    model.graph.node[0].name = "layer[0]/nz"
    assert outcomes(rewritten(model, skip=("layer[0]/nz",))) == {"y": "left"}


def test_shared_masks_with_different_settings_stay_apart() -> None:
    text = (
        "g (float[n] x) => (int64[1,k] y, int64[1,j] z) { [p] y = NonZero(x) [q] z = NonZero(x) }"
    )
    result = rewritten(parse(text), skip=("p",))
    assert outcomes(result) == {"y": "left", "z": "plugin"}
    sites = {"y": SiteOptions(backend="torch")}
    result = rewritten(parse(text), sites=sites)
    assert [attribute(node, "backend") for node in plugins(result.model)] == [
        b"torch",
        b"cuda_python",
    ]


# -- bad settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "tpu"}, "tpu"),
        ({"rules": frozenset({"magic"})}, "unknown rule 'magic'; the rules are: inline-function"),
        ({"max_nonzero": 0}, "max_nonzero"),
        ({"max_nonzero": 2**31}, "max_nonzero"),
        ({"max_nonzero_of": (("a", -1),)}, "max_nonzero"),
        ({"sites": {"a": SiteOptions(backend="tpu")}}, "tpu"),
        (
            {"sites": {"a": SiteOptions(outcome="gone")}},
            "outcome 'gone' is unknown; choose one of plugin, removed",
        ),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Options(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["rules", "only", "skip"])
def test_a_text_is_no_collection_of_names(name: str) -> None:
    with pytest.raises(PlanError, match=f"{name} is the text 'plugin'; .*: \\('plugin',\\)"):
        Options(**{name: "plugin"})


def test_any_collection_of_rules_will_do() -> None:
    assert Options(rules=["plugin", "share"]) == Options(rules=frozenset(("plugin", "share")))


def test_an_editor_offers_what_options_has() -> None:
    assert get_type_hints(OptionSettings) == get_type_hints(Options)


def test_a_misspelled_setting_is_told_with_the_names_there_are() -> None:
    with pytest.raises(TypeError, match="no option 'backnd'; the options are: backend, rules, "):
        rewrite_model(parse(TEXT), backnd="torch")


def test_options_or_settings() -> None:
    with pytest.raises(TypeError, match="not both"):
        rewrite_model(parse(TEXT), Options(), backend="torch")


def test_which_rules_wait_to_be_asked_for_and_which_may_change_bits() -> None:
    assert set(RULE_NAMES) - DEFAULT_RULES == {"masked-scatter", "where-sum", "any-rank"}
    assert set(RULE_NAMES) - EXACT_RULES == {"where-sum"}


@pytest.mark.parametrize("name", RULE_NAMES)
def test_each_rule_can_be_left_out(name: str) -> None:
    for text in (TEXT, MASKED_WRITE):
        rewritten(parse(text), rules=DEFAULT_RULES - {name}, zero_signs=False)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_each_rule_can_run_alone(name: str) -> None:
    for text in (TEXT, MASKED_WRITE):
        rewritten(parse(text), rules=frozenset({name}), zero_signs=False)


def test_backend_and_layout_are_on_the_node() -> None:
    result = rewritten(parse(TEXT), backend="cupy")
    assert [attribute(n, "backend") for n in plugins(result.model)] == [b"cupy"] * 2
    assert [perm(n) for n in plugins(result.model)] == [[1, 0], [0, 1]]


def test_no_function() -> None:
    result = rewrite_model(parse(TEXT), function=False)
    assert not result.model.functions
    assert [(o.domain, o.version) for o in result.model.opset_import] == [
        ("", 17),
        ("nonzero_rewrite", 1),
    ]
    onnx.checker.check_model(result.model)


@pytest.mark.parametrize("ir", [3, 4, 7, 8, 10])
def test_ir_version(ir: int) -> None:
    model = parse(TEXT, ir=ir, opset=11)
    assert rewritten(model).model.ir_version == max(ir, 8)
    assert rewrite_model(model, function=False).model.ir_version == ir


# -- max_nonzero -----------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [12, 13, 17, 21])
@pytest.mark.parametrize("turn", ["y = Transpose(i)", "y = Identity(i)"])
def test_a_cap_keeps_the_first_in_row_major_order(opset: int, turn: str) -> None:
    model = parse(f"g (float[n,3] x) => (int64[p,q] y) {{ i = NonZero(x) {turn} }}", opset=opset)
    x = np.array([[0, 1, 0], [2, 0, 3], [4, 5, 6]], np.float32)
    for cap in (1, 2, 5, 6, 7, 1000):
        patched = rewrite_model(model, max_nonzero=cap).model
        onnx.checker.check_model(patched, full_check=True)
        assert attribute(plugins(patched)[0], "max_nonzero") == cap
        full, cut = run(model, {"x": x})[0], run(patched, {"x": x})[0]
        if "Transpose" in turn:
            full, cut = full.T, cut.T
        assert np.array_equal(cut, full[:, :cap]) and cut.shape == (2, min(cap, 6))


def test_caps_by_name() -> None:
    result = rewrite_model(parse(TEXT), max_nonzero=9, max_nonzero_of=(("*_nz", 7), ("z", 5)))
    assert [attribute(n, "max_nonzero") for n in plugins(result.model)] == [7, 5]
    assert [d.max_nonzero for d in result.plan.decisions] == [7, 5]
    with pytest.raises(PlanError, match="no NonZero is called 'nothing'"):
        rewrite_model(parse(TEXT), max_nonzero_of=(("nothing", 5),))


def test_capped_and_uncapped_nodes_share_one_function() -> None:
    model = parse(TEXT)
    patched = rewrite_model(model, max_nonzero_of=(("a", 2),)).model
    assert len(patched.functions) == 1
    feeds = {name: np.ones((2, 4), np.float32) for name in "xw"}
    y, z = run(patched, feeds)
    assert y.shape == (2,) and z.shape == (2, 8)


def test_a_cap_in_a_second_rewrite_renews_the_function() -> None:
    model = parse(TEXT)
    once = rewrite_model(model, only=("a",)).model
    twice = rewrite_model(once, max_nonzero=3).model
    assert len(twice.functions) == 1
    y, z = run(twice, {name: np.ones((2, 4), np.float32) for name in "xw"})
    assert y.shape == (8,) and z.shape == (2, 3)


def test_verify_tells_a_broken_promise_from_a_wrong_rewrite() -> None:
    model = parse("g (float[n,4] x) => (int64[2,k] y) { [nz] y = NonZero(x) }")
    patched = rewrite_model(model, max_nonzero=2).model
    result = verify_models(model, patched, time_budget=2.0)
    assert result.ok, result.reason
    over = [s for s in result.selected if s.over_promise]
    assert over and all(s.patched == 2 < s.selected for s in over)


def test_a_cap_needs_opset_12_for_the_function() -> None:
    model = parse(TEXT, opset=11)
    with pytest.raises(UnsupportedModelError, match="a cap on num_nonzero needs opset 12 or newer"):
        rewrite_model(model, max_nonzero=4)
    assert len(plugins(rewrite_model(model, max_nonzero=4, function=False).model)) == 2


# -- models that cannot carry the operator ---------------------------------------------------------


def test_no_opset_import() -> None:
    model = parse(TEXT)
    del model.opset_import[:]
    with pytest.raises(UnsupportedModelError, match="imports no version of the ONNX operators"):
        rewrite_model(model)


def test_a_function_of_our_name_elsewhere() -> None:
    tail = '<domain: "local", opset_import: ["": 17]> NonZeroPlugin (a) => (b) { b = Neg(a) }'
    with pytest.raises(UnsupportedModelError, match=r"'local::NonZeroPlugin'.*rename that"):
        rewrite_model(parse(TEXT, tail=tail))


# -- plans -----------------------------------------------------------------------------------------


def plan_of(text: str, **settings: object) -> dict[str, object]:
    plan: dict[str, object] = json.loads(rewrite_model(parse(text), **settings).plan.to_json())
    return plan


@pytest.mark.parametrize("text", [TEXT, MASKED_WRITE])
@pytest.mark.parametrize(
    "settings", [{}, {"backend": "torch", "max_nonzero": 5}, {"function": False}]
)
def test_a_plan_applied_unchanged_gives_the_same_bytes(
    text: str, settings: dict[str, object]
) -> None:
    once = rewrite_model(parse(text), **settings)
    again = rewrite_model(parse(text), options_from_json(once.plan.to_json()))
    assert once.model.SerializeToString() == again.model.SerializeToString()


@pytest.mark.parametrize("edit", [{"outcome": "left"}, {"backend": "cupy"}, {"max_nonzero": 3}])
def test_an_edited_plan(edit: dict[str, object]) -> None:
    plan = plan_of(TEXT)
    plan["decisions"][0].update(edit)  # type: ignore[index]
    result = rewrite_model(parse(TEXT), options_from_json(json.dumps(plan)))
    first, second = result.plan.decisions
    assert second.outcome == "plugin" and second.backend == "cuda_python"
    assert {key: first.to_dict()[key] for key in edit} == edit


def test_a_plan_may_ask_for_the_plugin_where_a_rule_would_do_without() -> None:
    plan = plan_of(MASKED_WRITE)
    assert plan["decisions"][0]["outcome"] == "removed"  # type: ignore[index]
    plan["decisions"][0]["outcome"] = "plugin"  # type: ignore[index]
    result = rewrite_model(parse(MASKED_WRITE), options_from_json(json.dumps(plan)))
    assert outcomes(result) == {"i": "plugin"}


def test_a_plan_that_wants_the_impossible_says_why() -> None:
    text = MASKED_WRITE.replace("bool[n] m", "bool[q] m")
    plan = plan_of(text)
    plan["decisions"][0]["outcome"] = "removed"  # type: ignore[index]
    with pytest.raises(PlanError) as err:
        rewrite_model(parse(text), options_from_json(json.dumps(plan)))
    assert str(err.value) == (
        "the plan wants NonZero 'nz' to be removed, but it is plugin: NonZeroPlugin 'nz', "
        "[rank, num_nonzero]; where-scatter: the mask is not surely as large as the data"
    )


def test_a_plan_of_another_model() -> None:
    with pytest.raises(PlanError, match="the plan names the NonZero 'i', which the model does not"):
        rewrite_model(parse(TEXT), options_from_json(json.dumps(plan_of(MASKED_WRITE))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("format"), "not a rewrite plan of format 1"),
        (lambda p: p.update(format=2), "not a rewrite plan of format 1"),
        (lambda p: p.pop("options"), "'options' is missing"),
        (lambda p: p.update(decisions={}), "'decisions' is missing or not an array"),
        (lambda p: p["decisions"].append({"outcome": "left"}), r"decisions\[2\] has no id"),
        (lambda p: p["decisions"][0].update(outcome=3), "'outcome' is 3"),
        (lambda p: p["decisions"][0].update(max_nonzero=True), "'max_nonzero' is True"),
        (lambda p: p["decisions"][0].update(outcome="away"), "outcome 'away' is unknown"),
        (lambda p: p["options"].update(backend="tpu"), "tpu"),
        (lambda p: p["options"].update(rules=["magic"]), "unknown rule 'magic'"),
        (lambda p: p["options"].update(rules="all"), "'rules' is missing or not an array"),
        (
            lambda p: p["options"].update(function="no"),
            "'function' is missing or not true or false",
        ),
    ],
)
def test_broken_plans(change: object, message: str) -> None:
    plan = plan_of(TEXT)
    change(plan)  # type: ignore[operator]
    with pytest.raises(PlanError, match=message):
        options_from_json(json.dumps(plan))


def test_no_json() -> None:
    with pytest.raises(PlanError, match="not JSON"):
        options_from_json("{")


INSIDE = """
    g (float[n,4] x, float[n,4] groesse, bool[n,4] m, int64[r] d) => (float[n,4] y, int64[2,k] z) {
    i = NonZero(m) t = Transpose(i) p = GatherND(x, t) u = Neg(p) y = ScatterND(x, t, u)
    z = NonZero(groesse) j = NonZero(x) w = Transpose(j) q = GatherND(x, w)
    v = Reshape(x, d) a = NonZero(v) b = Neg(a) }"""


def test_a_plan_as_text() -> None:
    data = parse(INSIDE).SerializeToString().replace(b"groesse", "größe".encode())
    result = rewrite_model(onnx.ModelProto.FromString(data))
    text = result.plan.to_json()
    assert text.endswith("}\n") and '\n  "format": 1,\n' in text and '"input": "größe"' in text
    told = [
        (entry["id"], entry["outcome"], entry["layout"], entry["reason"])
        for entry in json.loads(text)["decisions"]
    ]
    assert told == [
        ("i", "removed", None, None),
        ("z", "plugin", "rank,num_nonzero", None),
        ("j", "plugin", "num_nonzero,rank", None),
        ("a", "left", None, "RANK_UNKNOWN"),
    ]
    assert [result.plan.count(outcome) for outcome in ("plugin", "left")] == [2, 1]
    again = rewrite_model(onnx.ModelProto.FromString(data), options_from_json(text))
    assert again.plan.decisions == result.plan.decisions, "the same reasons, too"


def test_leftovers_are_those_of_the_main_graph() -> None:
    text = """g (float[n,4] x, bool c, int64[r] d) => (int64[p,q] y) {
        v = Reshape(x, d) a = NonZero(v) b = Neg(a) i = NonZero(x) e = Neg(i)
        r = Neg(v) f = NonZero(r) g = Neg(f) l = Neg(r) h = NonZero(l) j = Neg(h)
        y = If (c) <then_branch = t () => (int64[a1,b1] o1) { w = Reshape(x, d) o1 = NonZero(w) },
                    else_branch = f () => (int64[a2,b2] o2) { o2 = Neg(i) }> }"""
    plan = rewrite_model(parse(text)).plan
    assert (plan.count("left"), plan.leftovers) == (4, 3)


def test_a_plan_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as err:
        read_plan(tmp_path / "plan.json")
    assert str(err.value) == (
        f"{tmp_path / 'plan.json'}: the plan cannot be read: No such file or directory; "
        "write one with --dry-run --plan FILE"
    )
