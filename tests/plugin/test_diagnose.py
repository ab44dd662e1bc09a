"""Failures explained from messages that TensorRT for RTX 1.7.1 really gave."""

from __future__ import annotations

import onnx
import pytest
from helpers import patched
from nonzero_plugin.diagnose import NOISE, explain, find_node, suspects
from nonzero_plugin.errors import ContractError
from nonzero_plugin.onnx_file import (
    nonzero_ancestors,
    plugin_requests,
    set_max_nonzero,
    strip_function,
)
from onnx import TensorProto, helper

NO_RUNNER = (
    "[tacticSupply.cpp::getSupportedFormats::48] Error Code 2: Internal Error (Assertion "
    "!layerImpls.empty() failed. {} has no runners that implement it In getSupportedFormats at "
    "/_src/optimizer/builder/tacticSupply.cpp:48)"
)
DRIVER = (
    "createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure, cudaError 35)"
)


def chain() -> onnx.ModelProto:
    """mask -> nz -> GatherND(select) -> Relu(act); and a Neg of another input."""
    return patched.make_model(
        [
            patched.plugin_node("mask", "indices", perm=[1, 0]),
            helper.make_node("GatherND", ["x", "indices"], ["picked"], name="select"),
            helper.make_node("Relu", ["picked"], ["y"], name="select/act"),
            helper.make_node("Neg", ["x"], ["z"], name="apart"),
        ],
        [("x", TensorProto.FLOAT, ["n"]), ("mask", TensorProto.BOOL, ["n"])],
        [("y", TensorProto.FLOAT, [None]), ("z", TensorProto.FLOAT, ["n"])],
    )


def test_b19_the_failing_node_and_the_nonzero_it_descends_from() -> None:
    text, node = explain([NO_RUNNER.format("select"), DRIVER], chain())
    assert node == "select"
    assert "at node 'select' (GatherND), which descends from NonZero 'nz'" in text
    assert "TensorRT says: [tacticSupply.cpp" in text and "cudaError 35" not in text


def test_a_node_that_has_nothing_to_do_with_nonzero_gets_no_ancestor() -> None:
    text, node = explain([NO_RUNNER.format("apart")], chain())
    assert node == "apart" and "descends" not in text


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("select", "select"),
        ("select/act", "select/act"),
        ("select_65", "select"),  # TensorRT numbers the layers of one node
        ("picked", "select"),  # a tensor stands for the node that makes it
        ("preselect", None),
        ("selector", None),
        ("y", None),  # too short to be a name in a sentence
    ],
)
def test_names_are_found_whole(name: str, found: str | None) -> None:
    node = find_node([NO_RUNNER.format(name)], chain())
    assert (node.name if node else None) == found


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (NO_RUNNER.format("/NonMaxSuppression_65"), "has no NonMaxSuppression"),
        ("Data-dependent shapes are only allowed in the top-level scope", "inside an If or Loop"),
        ("NonZero plugin creator version 1 was not found in plugin registry.", "rewrite it"),
        ("Assertion t->graph.shapeContext.isProxy(*xs) failed", "only the count is used"),
        ("formulas need to be set sooner", "condition comes from a count"),
        ("value should have been set by symbolic execution", "index values are used as a shape"),
        ("ROIAlign plugin was not found in the plugin registry!", "only where it finds a GPU"),
        ('Assertion failed: mode == "none": ScatterND with reduction is not supported.', "accumul"),
        ("Plugin not found, are the plugin name, version, and namespace correct?", "no such oper"),
        ("UInt8 datatype formats are not supported", "cast to a supported one"),
        ("[x.cpp::f::1] Error Code 2: Internal Error (Assertion a == b failed)", "a fault inside"),
    ],
)
def test_known_failures_come_with_a_way_on(message: str, says: str) -> None:
    text, _ = explain([message], patched.single())
    assert says in text.partition("what can be done: ")[2]


def test_an_unknown_failure_is_told_as_it_is() -> None:
    text, _ = explain(["something new happened"], patched.single())
    assert text == "TensorRT says: something new happened"
    assert explain([], None) == ("", None)


def test_noise_is_what_comes_with_every_build_without_a_gpu() -> None:
    assert NOISE.search(DRIVER)
    assert not NOISE.search(NO_RUNNER)


def test_nonzero_in_branches_and_of_constants_is_suspect() -> None:
    model = patched.in_branch()
    assert [label for label, _ in suspects(model)] == ["nz_in", "nz_in"]
    text, node = explain(["malloc_consolidate(): invalid chunk size"], model)
    assert node == "nz_in" and "'nz_in' stands in choose." in text
    constant = helper.make_tensor("x", TensorProto.BOOL, [2], [True, False])
    model = patched.make_model(
        [patched.plugin_node("x", "y")], [], [("y", 7, None)], initializers=[constant]
    )
    assert "reads the constant 'x'" in explain([], model)[0]


def test_ancestors_stop_at_the_nearest_nonzero() -> None:
    model = chain()
    model.graph.node.append(patched.plugin_node("y", "again", name="nz2"))
    model.graph.node.append(helper.make_node("Relu", ["again"], ["end"], name="last"))
    assert nonzero_ancestors(model, "last") == ["nz2"]
    assert nonzero_ancestors(model, "no such node") == []


def test_strip_function_removes_ours_only() -> None:
    model = patched.single()
    other = onnx.FunctionProto()
    other.CopyFrom(model.functions[0])
    other.domain = "somebody"
    model.functions.append(other)
    strip_function(model)
    assert [function.domain for function in model.functions] == ["somebody"]


def test_set_max_nonzero_by_name_and_for_all() -> None:
    model = chain()
    model.graph.node.append(patched.plugin_node("mask", "more", name="nz2", max_nonzero=5))
    assert set_max_nonzero(model, {"nz2": 7, "*": 3}) == 2
    values = {
        node.name: attribute.i
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.name == "max_nonzero"
    }
    assert values == {"nz": 3, "nz2": 7}
    with pytest.raises(ContractError, match="has no NonZeroPlugin node 'nz9'; it has 'nz', 'nz2'"):
        set_max_nonzero(model, {"nz9": 1})
    with pytest.raises(ContractError, match="outside 1 to"):
        set_max_nonzero(model, {"*": 2**31})


def test_requests_are_what_the_parser_will_look_up() -> None:
    model = chain()
    model.graph.node.append(helper.make_node("Foo", ["x"], ["f"], name="foo", domain="acme"))
    found = {request.node: str(request.plugin) for request in plugin_requests(model)}
    assert found == {
        "nz": "NonZeroPlugin, version 1, namespace 'nonzero_rewrite'",
        "foo": "Foo, version 1, namespace ''",
    }
