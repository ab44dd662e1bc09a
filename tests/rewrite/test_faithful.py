"""Original and patched differ in the sites, the function, two imports and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.graphs import parse, plugins
from nonzero_plugin.contract import DOMAIN
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.shape_inference import infer_shapes

from nonzero_rewrite import restore_model, rewrite_model
from nonzero_rewrite.infer import Types
from nonzero_rewrite.rules.tape import REPLACES_KEY, RULE_KEY

MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))
OWN_KEYS = (RULE_KEY, REPLACES_KEY)


def props(message: object, text: str) -> None:
    for key in ("zeta", "alpha"):
        message.metadata_props.add(key=f"{text}.{key}", value=f"{text} {key}")  # type: ignore[attr-defined]


def unknown_field(message: object) -> None:
    """Field 900 of wire type 2, as a newer ONNX might write it."""
    message.MergeFromString(bytes([0xA2, 0x38, 3]) + b"new")  # type: ignore[attr-defined]


def rich_model() -> ModelProto:
    """Everything that a rewriter is known to lose."""
    text = """g (float[n,4] x, float[3,4] quant, float[n] spare)
        => (float[k] y, float[n,4] z, int64[2,k] i)
        <float h = {0.5}, float[n,4] neg, bool[n,4] m, int64[k,2] t> {
        [first] neg = Neg(x) [mask] m = Greater(x, h) [other] o = local.Twice(neg)
        [nz] i = NonZero(m) [turn] t = Transpose <perm = [1, 0]> (i) [pick] y = GatherND(o, t)
        [sparse] s = Identity(table) [late] z = Add(neg, neg) }"""
    tail = '<domain: "local", opset_import: ["": 17]> Twice (a) => (b) { b = Add(a, a) }'
    model = parse(text, tail=tail)
    model.producer_name, model.producer_version = "producer", "1.2.3"
    model.domain, model.model_version, model.doc_string = "org.example", 7, "model docs"
    props(model, "model")
    graph = model.graph
    graph.doc_string = "graph docs"
    props(graph, "graph")
    for node in graph.node:
        node.doc_string = f"docs of {node.name}"
        props(node, f"node {node.name}")
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.doc_string = f"docs of {value.name}"
        props(value, f"value {value.name}")
    for tensor in graph.initializer:
        tensor.doc_string = f"docs of {tensor.name}"
        props(tensor, f"tensor {tensor.name}")
    annotation = graph.quantization_annotation.add(tensor_name="quant")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="h")
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "table")
    indices = numpy_helper.from_array(np.array([0, 5], np.int64), "table_indices")
    graph.sparse_initializer.add(values=values, indices=indices, dims=[8])
    training = model.training_info.add()
    training.algorithm.name = "train"
    training.algorithm.node.append(helper.make_node("NonZero", ["a"], ["b"]))
    training.update_binding.add(key="h", value="b")
    props(model.functions[0], "function")
    model.functions[0].doc_string = "function docs"
    unknown_field(model)
    unknown_field(graph)
    unknown_field(graph.node[0])
    unknown_field(graph.input[0])
    return model


def node_bytes(node: NodeProto) -> bytes:
    return node.SerializeToString(deterministic=True)


def carries_graphs(node: NodeProto) -> bool:
    return any(attr.HasField("g") or attr.graphs for attr in node.attribute)


def without_inputs(node: NodeProto) -> NodeProto:
    """What may change in a node that only takes something else: its inputs, and its bodies'."""
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.input[:]
    if carries_graphs(copy):
        del copy.attribute[:]
    return copy


def test_field_by_field() -> None:
    model = rich_model()
    patched = rewrite_model(model).model
    reference = ModelProto()
    reference.CopyFrom(patched)

    # What may differ, made equal again; then the rest must be the same bytes.
    touched = {"nz", "turn"}
    names = [node.name for node in patched.graph.node]
    assert names == ["first", "mask", "other", "nz", "turn", "pick", "sparse", "late"]
    for number, node in enumerate(model.graph.node):
        if node.name in touched:
            reference.graph.node[number].CopyFrom(node)
        else:
            assert node_bytes(node) == node_bytes(patched.graph.node[number]), node.name
    del reference.functions[-1:]
    assert reference.opset_import[-1].domain == DOMAIN
    del reference.opset_import[-1:]
    (count,) = [v for v in reference.graph.value_info if v.name == "i_count"]
    reference.graph.value_info.remove(count)
    assert reference.SerializeToString(deterministic=True) == model.SerializeToString(
        deterministic=True
    )


def test_the_new_node_inherits_docs_and_metadata() -> None:
    (node,) = plugins(rewrite_model(rich_model()).model)
    assert node.name == "nz" and node.doc_string == "docs of nz"
    entries = [(entry.key, entry.value) for entry in node.metadata_props]
    assert entries[:2] == [("node nz.zeta", "node nz zeta"), ("node nz.alpha", "node nz alpha")]
    assert [key for key, _ in entries[2:]] == [RULE_KEY, REPLACES_KEY]


def test_the_kept_transpose_is_the_original_one() -> None:
    model = rich_model()
    turn = next(n for n in rewrite_model(model).model.graph.node if n.name == "turn")
    assert node_bytes(turn) == node_bytes(model.graph.node[4])


def test_value_info_that_is_gone_and_that_is_new() -> None:
    model = rich_model()
    del model.graph.output[2]  # the indices themselves
    patched = rewrite_model(model).model
    before = [value.name for value in model.graph.value_info]
    assert before == ["neg", "m", "t"]
    assert [value.name for value in patched.graph.value_info] == ["neg", "m", "t", "t_count"]
    kept = next(v for v in patched.graph.value_info if v.name == "t")
    assert kept.SerializeToString() == model.graph.value_info[2].SerializeToString()


def test_unknown_fields_survive() -> None:
    data = rewrite_model(rich_model()).model.SerializeToString()
    assert data.count(bytes([0xA2, 0x38, 3]) + b"new") == 4


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_untouched_nodes_are_the_same_bytes_in_the_same_order(path: Path) -> None:
    """Where nothing is inlined, the nodes of the patched model are those of the original."""
    model = onnx.load(path, load_external_data=False)
    patched = rewrite_model(model).model
    own = [n for n in patched.graph.node if RULE_KEY not in {e.key for e in n.metadata_props}]
    calls = {(f.domain, f.name) for f in model.functions}
    if not any((n.domain, n.op_type) in calls for n in model.graph.node):
        exact = list(map(node_bytes, model.graph.node))
        but_inputs = [node_bytes(without_inputs(node)) for node in model.graph.node]
        places = [but_inputs.index(node_bytes(without_inputs(node))) for node in own]
        assert places == sorted(places)
        takes_shared = {name for node in patched.graph.node for name in node.output}
        for place, node in zip(places, own, strict=True):
            if node_bytes(node) != exact[place] and not carries_graphs(node):
                assert set(node.input) - set(model.graph.node[place].input) <= takes_shared
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(model, field) == getattr(patched, field)
    for field in ("input", "output", "sparse_initializer", "quantization_annotation"):
        one, other = getattr(model.graph, field), getattr(patched.graph, field)
        assert [v.SerializeToString() for v in one] == [v.SerializeToString() for v in other]


def known_types(model: ModelProto) -> dict[str, onnx.TypeProto.Tensor]:
    inferred = infer_shapes(model, data_prop=True)
    infos = (*inferred.graph.value_info, *inferred.graph.output)
    return {info.name: info.type.tensor_type for info in infos}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("function", [True, False], ids=["function", "bare"])
def test_inference_knows_at_least_what_it_knew(path: Path, function: bool) -> None:
    """Element types and ranks behind the custom node, with and without the function."""
    model = onnx.load(path, load_external_data=False)
    before = known_types(model)
    after = known_types(rewrite_model(model, function=function).model)
    for name, was in before.items():
        if name in after:
            now = after[name]
            assert now.elem_type == was.elem_type, name
            if was.HasField("shape"):
                assert now.HasField("shape"), name
                assert len(now.shape.dim) == len(was.shape.dim), name
                for old, new in zip(was.shape.dim, now.shape.dim, strict=True):
                    assert not old.HasField("dim_value") or old.dim_value == new.dim_value, name


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_twice_is_once(path: Path) -> None:
    once = rewrite_model(path)
    again = rewrite_model(once.model)
    assert not again.changed
    assert again.model.SerializeToString() == once.model.SerializeToString()


SAME = """
import hashlib, sys
from nonzero_rewrite import rewrite_model
for path in sys.argv[1:]:
    print(hashlib.sha256(rewrite_model(path).model.SerializeToString()).hexdigest())
"""


def test_the_same_bytes_in_every_process() -> None:
    """Whatever the seed of Python's hashes is, on which the order of sets depends."""
    outputs = set()
    for seed in ("0", "1", "12345"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SAME, *map(str, MODELS)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_the_given_model_is_not_changed() -> None:
    model = rich_model()
    before = model.SerializeToString()
    rewrite_model(model)
    assert model.SerializeToString() == before


# -- restore ---------------------------------------------------------------------------------------


def traces(model: ModelProto) -> list[str]:
    """Whatever a model says of this project."""
    text = str(model)
    return [line.strip() for line in text.splitlines() if "nonzero_rewrite" in line]


def test_restore_leaves_nothing_of_ours() -> None:
    model = rich_model()
    patched = rewrite_model(model).model
    assert traces(patched)
    assert restore_model(patched) == 1
    assert traces(patched) == []
    assert [f.name for f in patched.functions] == ["Twice"]
    assert [n.op_type for n in patched.graph.node] == [n.op_type for n in model.graph.node]
    assert [n.output for n in patched.graph.node] == [n.output for n in model.graph.node]


def test_restore_of_what_has_no_plugin_node() -> None:
    text = """g (float[n] x, bool[n] m) => (float[n] y) <float v = {1.0}, int64[1] one = {1}> {
        i = NonZero(m) t = Transpose(i) s = Shape(i) k = Gather(s, one) u = Expand(v, k)
        y = ScatterND(x, t, u) }"""
    patched = rewrite_model(parse(text)).model
    assert traces(patched) and not plugins(patched)
    restore_model(patched)
    assert traces(patched) == []


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_restore_of_the_models(path: Path) -> None:
    patched = rewrite_model(path).model
    restore_model(patched)
    assert traces(patched) == [] and not plugins(patched)
    onnx.checker.check_model(patched)


def test_types_of_a_model_are_read_in_any_order() -> None:
    """The declared symbol of one value is not mixed up with one that inference makes up."""
    model = parse(
        "g (float[unk__0] x, float[m] w) => (int64[1,k] y, int64[1,j] z) "
        "{ a = NonZero(x) y = Identity(a) b = NonZero(w) z = Identity(b) }"
    )
    from nonzero_rewrite.graph import scopes_of

    scopes = scopes_of(model)
    types = Types(model)
    for name in ("y", "z", "a", "b"):
        types.need([(scopes[0], name)])
    assert types.of(scopes[0], "a").dims != types.of(scopes[0], "b").dims
    assert types.of(scopes[0], "a").elem_type == TensorProto.INT64
