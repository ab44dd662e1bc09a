"""Operators, not NonZero, that will stop a build: named with where they are and why."""

from __future__ import annotations

import pytest
from helpers.graphs import parse
from onnx import ModelProto, helper

from nonzero_rewrite import rewrite_model

UNIQUE = "TensorRT-RTX has no implementation of Unique"
NEEDS = "TensorRT needs a plugin for "


def blockers(model: ModelProto) -> list[tuple[str, str, str]]:
    found = rewrite_model(model).blockers
    return [(blocker.graph, blocker.node, blocker.reason) for blocker in found]


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("[it] y = Unique(x)", UNIQUE),
        ("[it] y = ScatterND <reduction = \"add\"> (x, t, u)",
         "TensorRT-RTX's parser refuses ScatterND with reduction 'add'"),
        ("[it] y = ScatterElements <reduction = \"max\"> (x, t, u)",
         "TensorRT-RTX's parser refuses ScatterElements with reduction 'max'"),
        ("[it] y = ScatterND <reduction = \"none\"> (x, t, u)", None),
        ("[it] y = ScatterND(x, t, u)", None),
        ("[it] y = other.Fancy(x)", f"{NEEDS}other::Fancy"),
        ("[it] y = other.Unique(x)", f"{NEEDS}other::Unique"),
        ("[it] y = trt.plugins.Fancy(x)", None),
        ("[it] y = nonzero_rewrite.NonZeroPlugin(x)", None),
        ("[it] y = local.twice(x)", None),
        ("[it] y = local.thrice(x)", f"{NEEDS}local::thrice"),
    ],
)  # fmt: skip
def test_which(node: str, reason: str | None) -> None:
    function = '<domain: "local", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }'
    text = f"g (float[n] x, int64[k,1] t, float[k] u) => (float[m] y) {{ {node} }}"
    model = parse(text, tail=function, opset=18)
    for domain in ("other", "trt.plugins", "nonzero_rewrite"):
        model.opset_import.append(helper.make_opsetid(domain, 1))
    assert blockers(model) == ([("", "it", reason)] if reason else [])


def test_in_a_body_and_in_a_function() -> None:
    function = """<domain: "local", opset_import: ["": 17, "other": 1]> f (a) => (b) {
        c = Unique(a) b = other.Fancy(c) }"""
    text = """g (float[n] x, bool c) => (float[m] y) {
        z = local.f(x)
        [if] y = If (c) <then_branch = t () => (float[p] o1) { [in] o1 = Unique(z) },
                         else_branch = e () => (float[q] o2) { o2 = Neg(z) }> }"""
    model = parse(text, tail=function)
    model.opset_import.append(helper.make_opsetid("other", 1))
    assert sorted(blockers(model)) == [
        ("If 'if'/then_branch", "in", UNIQUE),
        ("function 'local::f'", "Fancy#1", f"{NEEDS}other::Fancy"),
        ("function 'local::f'", "Unique#0", UNIQUE),
    ]
