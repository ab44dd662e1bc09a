"""restore: a patched model, changed by hand or not, becomes plain ONNX that equals it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.graphs import assert_equal, feeds_of, ops, parse, plugins
from nonzero_plugin.contract import DOMAIN
from onnx import ModelProto, TensorProto, checker, helper

from nonzero_rewrite import rewrite_model, verify_models
from nonzero_rewrite.errors import UnsupportedModelError
from nonzero_rewrite.restore import is_patched, restore_model

BODY = {"first": "i = NonZero(x) y = Neg(i)", "last": "i = NonZero(x) t = Transpose(i) y = Neg(t)"}


def patched(layout: str) -> ModelProto:
    return rewrite_model(parse(f"g (float[n,4] x) => (int64[p,q] y) {{ {BODY[layout]} }}")).model


def restored(model: ModelProto) -> ModelProto:
    before = ModelProto.FromString(model.SerializeToString())
    assert is_patched(model) and restore_model(model) == 1
    assert not is_patched(model) and not model.functions
    assert all(entry.domain != DOMAIN for entry in model.opset_import)
    checker.check_model(model, full_check=True)
    assert assert_equal(before, model, list(feeds_of(before))) == 12
    return model


NODES = {"first": ["NonZero", "Neg"], "last": ["NonZero", "Transpose", "Neg"]}


@pytest.mark.parametrize("layout", BODY)
def test_a_count_that_nobody_uses(layout: str) -> None:
    model = patched(layout)
    count = plugins(model)[0].output[1]
    assert count in {info.name for info in model.graph.value_info}
    assert ops(restored(model)) == NODES[layout]
    assert count not in {info.name for info in model.graph.value_info}


@pytest.mark.parametrize("layout", BODY)
def test_a_node_without_a_count(layout: str) -> None:
    """onnxruntime does not run one, a parser of TensorRT may."""
    model = patched(layout)
    plugins(model)[0].output.pop()
    assert restore_model(model) == 1 and ops(model) == NODES[layout]


@pytest.mark.parametrize("layout", BODY)
def test_a_count_that_is_used(layout: str) -> None:
    model = patched(layout)
    count = plugins(model)[0].output[1]
    model.graph.node.append(helper.make_node("Abs", [count], ["number"]))
    model.graph.output.append(helper.make_tensor_value_info("number", TensorProto.INT64, []))
    assert count in {info.name for info in restored(model).graph.value_info}


@pytest.mark.parametrize("layout", BODY)
def test_indices_of_32_bits(layout: str) -> None:
    model = patched(layout)
    for attr in plugins(model)[0].attribute:
        if attr.name == "index_type":
            attr.i = TensorProto.INT32
    del model.graph.value_info[:]
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    assert "Cast" in ops(restored(model))


def test_what_the_node_said_of_itself_stays() -> None:
    model = parse("g (float[n,4] x) => (int64[p,q] y) { [nz] i = NonZero(x) y = Neg(i) }")
    model.graph.node[0].doc_string = "where the hits are"
    model.graph.node[0].metadata_props.add(key="namespace", value="net/head")
    plain = rewrite_model(model).model
    restore_model(plain)
    (node, _), (was, _) = plain.graph.node, model.graph.node
    assert (node.name, node.doc_string) == (was.name, was.doc_string)
    assert list(node.metadata_props) == list(was.metadata_props)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [([], None), ([""], None), (["x", "x"], None), (["x"], []), (["x"], [""])],
)
def test_a_node_that_no_rewrite_wrote(inputs: list[str], outputs: list[str] | None) -> None:
    model = patched("first")
    (node,) = plugins(model)
    node.input[:] = inputs
    if outputs is not None:
        node.output[:] = outputs
    with pytest.raises(UnsupportedModelError, match="so this tool did not write it"):
        restore_model(model)


# -- the function, when a model is rewritten bit by bit --------------------------------------------

STEPS = {
    "plain": ({"only": ("z",)}, set()),
    "guarded": ({"only": ("a",)}, {"Concat"}),  # its mask comes from a Cast
    "capped": ({"only": ("w",), "max_nonzero": 3}, {"Slice"}),
    "capped again": ({"only": ("v",), "max_nonzero": 2}, {"Slice"}),
}


@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(STEPS, 2)])
def test_the_function_serves_the_nodes_of_every_step(first: str, second: str) -> None:
    model = parse(
        """g (float[n,4] x) => (int64[2,i] a, int64[2,j] z, int64[2,k] w, int64[2,l] v) {
            c = Cast <to = 7> (x) a = NonZero(c) z = NonZero(x)
            p = Neg(x) w = NonZero(p) q = Abs(x) v = NonZero(q) }"""
    )
    step, after = dict(STEPS[first][0]), dict(STEPS[second][0])
    once = rewrite_model(model, **step).model  # type: ignore[arg-type]
    twice = rewrite_model(once, **after).model  # type: ignore[arg-type]
    (function,) = twice.functions
    had = {node.op_type for node in function.node} & {"Concat", "Slice"}
    assert had == STEPS[first][1] | STEPS[second][1]
    x = np.array([[0.5, 0, 1, 0]], np.float32)
    assert verify_models(model, twice, inputs=[{"x": x}], time_budget=0.5).ok
