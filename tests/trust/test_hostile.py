"""Files that lie: each kind of fault that fuzzing found, kept as a small case."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.graphs import parse, rewritten
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from nonzero_rewrite import Options, rewrite_model, values
from nonzero_rewrite.errors import ModelLoadError, NonZeroRewriteError, UnsupportedModelError
from nonzero_rewrite.find import find_sites
from nonzero_rewrite.load import load_model
from nonzero_rewrite.restore import restore_model
from nonzero_rewrite.rules import RULES

SECONDS = 10.0
"""Far more than any of these needs, far less than what grows like a tree of that depth."""


def model_of(nodes: list[NodeProto], inputs: dict[str, list[int | str | None]]) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in inputs.items()],
        [onnx.ValueInfoProto(name=nodes[-1].output[0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ladder(op_type: str, first: str, rungs: int, width: int = 2, **attributes: int) -> list:
    """Each node takes the one before it ``width`` times."""
    names = [first, *(f"rung{n}" for n in range(rungs))]
    return [
        helper.make_node(op_type, [below] * width, [name], **attributes)
        for below, name in itertools.pairwise(names)
    ]


def constant(name: str, value: np.ndarray) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


@pytest.mark.parametrize("op_type", ["Add", "Max", "And"])
def test_a_constant_ladder_is_folded_once_a_rung(op_type: str) -> None:
    first = np.array([False, True]) if op_type == "And" else np.array([0.0, 1.0], np.float32)
    nodes = [constant("v", first), *ladder(op_type, "v", 20), nonzero("rung19")]
    started = time.monotonic()
    result = rewrite_model(model_of(nodes, {}))
    assert result.plan.decisions[0].rules == ("constant",)
    assert time.monotonic() - started < SECONDS


def test_joined_shapes_do_not_grow_in_onnx_inference() -> None:
    nodes = [
        constant("v", np.array([1, 2])),
        *ladder("Concat", "v", 60, axis=0),
        helper.make_node("TopK", ["x", "rung59"], ["m", "places"]),
        nonzero("m"),
    ]
    started = time.monotonic()
    assert rewrite_model(model_of(nodes, {"x": ["n"]})).plan.decisions[0].outcome == "left"
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("op_type", ["ConstantOfShape", "Reshape", "Expand", "Tile"])
@pytest.mark.parametrize("through", ["Cast", "Identity"])
def test_shapes_of_absurd_length_do_not_reach_onnx_inference(op_type: str, through: str) -> None:
    script = (
        "import resource, sys, onnx; from nonzero_rewrite import rewrite_model;"
        "import nonzero_rewrite.rewrite, onnx.reference;"
        "m = onnx.ModelProto.FromString(sys.stdin.buffer.read());"
        "resource.setrlimit(resource.RLIMIT_AS, (2**32,) * 2);"
        "print(rewrite_model(m).plan.decisions[0].outcome)"
    )
    inputs = ["m"] if op_type == "ConstantOfShape" else ["x", "m"]
    nodes = [
        helper.make_node(through, ["s"], ["m"], **({"to": 7} if through == "Cast" else {})),
        helper.make_node(op_type, inputs, ["v"]),
        nonzero("v"),
    ]
    model = model_of(nodes, {"x": ["n"], "s": [1 << 40]})
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=model.SerializeToString(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"left\n"), done.stderr.decode()[-500:]


def test_long_data_next_to_shapes_does_not_stop_inference() -> None:
    result = rewrite_model(
        parse(
            """g (float[200000] x, float[200000] y) => (int64[r, k] i) {
                both = Concat<axis = 0>(x, y)
                shape = Shape(both)
                total = ReduceSum<keepdims = 1>(both)
                count = Cast<to = 7>(total)
                ones = ConstantOfShape(count)
                wide = Reshape(both, shape)
                pieces = Split<axis = 0>(wide)
                i = NonZero(pieces)
            }""",
            opset=11,
        )
    )
    assert result.plan.decisions[0].site.rank == 1


def test_two_versions_of_the_operators_are_refused() -> None:
    model = model_of([nonzero("x")], {"x": ["n"]})
    model.opset_import.append(helper.make_opsetid("ai.onnx", 13))
    with pytest.raises(UnsupportedModelError) as caught:
        rewrite_model(model)
    assert str(caught.value) == (
        "the model imports 2 versions of the ONNX operators (13, 17), so its nodes have no one "
        "meaning; export it again"
    )


def test_a_mark_on_a_foreign_node_of_that_name_means_nothing() -> None:
    foreign = helper.make_node("NonZero", ["x"], ["i"], domain="elsewhere")
    foreign.metadata_props.add(key="nonzero_rewrite.site", value="indices")
    model = model_of([foreign, nonzero("x")], {"x": ["n"]})
    assert [d.outcome for d in rewrite_model(model).plan.decisions] == ["plugin"]


def test_a_ladder_below_a_condition_is_climbed_once_a_rung() -> None:
    model = parse(
        """g (float[1] x) => (int64[1, k] y) { y = If(go) <
            then_branch = t () => (int64[1, k] a) { a = NonZero(x) },
            else_branch = e () => (int64[1, k] b) { z = Neg(x) b = NonZero(z) }> }"""
    )
    steps = [
        helper.make_node("Shape", ["x"], ["s"]),
        *ladder("Add", "s", 40),
        helper.make_node("Cast", ["rung39"], ["go"], to=TensorProto.BOOL),
    ]
    for node in reversed(steps):
        model.graph.node.insert(0, node)
    started = time.monotonic()
    assert {d.outcome for d in rewrite_model(model).plan.decisions} == {"plugin"}
    assert time.monotonic() - started < SECONDS


def nonzero(mask: str) -> NodeProto:
    return helper.make_node("NonZero", [mask], ["indices"], name="nz")


@pytest.mark.parametrize("width", [2, 40])
def test_a_ladder_of_unknown_sizes_is_compared_once_a_rung(width: int) -> None:
    nodes = [
        *ladder("Max", "x", 22, width),
        nonzero("rung21"),
        helper.make_node("Transpose", ["indices"], ["pairs"]),
        helper.make_node("GatherND", ["x", "pairs"], ["picked"]),
        helper.make_node("Abs", ["picked"], ["update"]),
        helper.make_node("ScatterND", ["x", "pairs", "update"], ["y"]),
    ]
    started = time.monotonic()
    result = rewrite_model(model_of(nodes, {"x": [None, None]}))
    assert result.plan.decisions[0].rules == ("elementwise",)
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize(
    "nodes",
    [
        [
            constant("a", np.zeros((30000, 1), np.float32)),
            constant("b", np.zeros((1, 30000), np.float32)),
            helper.make_node("Add", ["a", "b"], ["m"]),
        ],
        [
            constant("a", np.zeros((1, 30000), np.float32)),
            constant("i", np.zeros(30000, np.int64)),
            helper.make_node("Gather", ["a", "i"], ["m"]),
        ],
        [
            constant("a", np.zeros((2, 30000), np.float32)),
            constant("i", np.zeros(5, np.int64)),
            helper.make_node("Gather", ["a", "i"], ["m"]),
        ],
        [
            constant("a", np.zeros(30000, np.float32)),
            constant("n", np.array([30000])),
            helper.make_node("Tile", ["a", "n"], ["m"]),
        ],
        [
            constant("a", np.zeros(30000, np.int64)),
            constant("d", np.array(30000)),
            constant("v", np.array([0, 1])),
            helper.make_node("OneHot", ["a", "d", "v"], ["m"]),
        ],
        [
            constant("s", np.array([1 << 40, 1 << 40])),
            helper.make_node("ConstantOfShape", ["s"], ["m"]),
        ],
    ],
    ids=["broadcast", "Gather", "few rows", "Tile", "OneHot", "ConstantOfShape"],
)
def test_constants_that_would_not_fit_are_not_folded(
    nodes: list[NodeProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(values, "_evaluate", lambda node, *_: tried.append(node.op_type))
    assert rewrite_model(model_of([*nodes, nonzero("m")], {})).plan.decisions
    assert not tried


@pytest.mark.parametrize(
    ("inputs", "op_type"),
    [
        (["delta"], "Range"),
        ([], "Shape"),
        (["x"], "Expand"),
        (["text", "text", "text"], "Range"),
        (["x", "text"], "Expand"),
        (["x", "x", "x", "x"], "Transpose"),
        ([], "Cast"),
        (["x"], "ScatterND"),
        (["x"], "GatherND"),
    ],
)
def test_nodes_with_wrong_inputs_are_no_known_operators(inputs: list[str], op_type: str) -> None:
    nodes = [
        constant("text", np.array(["a"], dtype=object)),
        constant("delta", np.array(1)),
        helper.make_node(op_type, inputs, ["m"]),
        nonzero("m"),
        helper.make_node("Transpose", ["indices", "lost"], ["turned"], perm=[1, 0]),
        helper.make_node("GatherND", ["x"], ["y"]),
    ]
    result = rewrite_model(model_of(nodes, {"x": ["n"]}))
    assert result.plan.decisions[0].outcome in ("left", "plugin")
    assert "turned" in {name for node in result.model.graph.node for name in node.output}


def test_a_node_without_outputs_uses_indices_like_any_other() -> None:
    nodes = [
        nonzero("x"),
        helper.make_node("Transpose", ["indices"], [], perm=[1, 0]),
        helper.make_node("Identity", ["indices"], ["y"]),
    ]
    assert rewrite_model(model_of(nodes, {"x": ["n"]})).plan.decisions[0].outcome == "plugin"


RING = [
    helper.make_node("Cast", ["b"], ["a"], to=TensorProto.FLOAT, name="first"),
    helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT, name="second"),
    nonzero("b"),
]
SELF = [helper.make_node("Cast", ["a"], ["a"], to=TensorProto.FLOAT, name="first"), nonzero("a")]
TWICE = [
    helper.make_node("Abs", ["x"], ["a"], name="first"),
    helper.make_node("Neg", ["x"], ["a"], name="second"),
    nonzero("a"),
]


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        (RING, "node 'first' in the main graph waits for its own result"),
        (SELF, "node 'first' in the main graph waits for its own result"),
        (TWICE, "value 'a' in the main graph is made by two nodes, 'first' and 'second'"),
    ],
)
def test_graphs_that_are_none_are_refused(nodes: list[NodeProto], sentence: str) -> None:
    model = model_of(nodes, {"x": ["n"]})
    for work in (rewrite_model, find_sites, restore_model):
        with pytest.raises(UnsupportedModelError) as caught:
            work(model)
        assert str(caught.value) == (
            f"{sentence}, so no runtime can run the model; export it again"
        )


def test_nodes_in_any_order_are_taken() -> None:
    model = parse("g (float[n] x) => (int64[1, k] i) { i = NonZero(a)  a = Abs(x) }")
    result = rewrite_model(model)
    assert [node.op_type for node in result.model.graph.node] == ["NonZeroPlugin", "Abs"]


PLAIN = parse(
    """g (float[n, m] value_x) => (int64[k, 2] pairs) {
        masked = Abs(value_x)
        indices = NonZero(masked)
        pairs = Transpose<perm = [1, 0]>(indices)
    }"""
)
for _each in PLAIN.graph.node:
    _each.name, _each.doc_string = f"label_{_each.op_type}", "documented"
    _each.metadata_props.add(key="namespace", value="tracing_it")


@pytest.mark.parametrize(
    "word",
    [
        *("value_x", "masked", "indices", "pairs", "NonZero", "Transpose", "Abs", "label_NonZero"),
        *("label_Transpose", "documented", "tracing_it", "namespace", "perm"),
    ],
)
def test_text_that_is_no_utf8_is_a_sentence_or_harmless(word: str, tmp_path: Path) -> None:
    data = PLAIN.SerializeToString()
    broken = data.replace(word.encode(), b"\xff" * len(word))
    assert broken != data
    path = tmp_path / "model.onnx"
    path.write_bytes(broken)
    from click.testing import CliRunner

    from nonzero_rewrite.cli import main

    for arguments in (
        ["scan", str(path)],
        ["scan", str(path), "--json"],
        [str(path), "-o", str(tmp_path / "out.onnx"), "--json"],
        ["restore", str(path), "-o", str(tmp_path / "restored.onnx")],
    ):
        done = CliRunner().invoke(main, arguments)
        assert isinstance(done.exception, SystemExit | None), (arguments, done.exception)
        if done.exit_code:
            assert "not UTF-8 text" in done.stderr


@pytest.mark.parametrize("name", ["name", "domain"])
def test_functions_whose_names_are_no_utf8_are_refused(name: str) -> None:
    model = parse(
        "g (float[n] x) => (int64[1, k] i) { i = local.function_it(x) }",
        tail='<domain: "local", opset_import: ["": 17]> function_it (a) => (b) { b = NonZero(a) }',
    )
    word = {"name": b"function_it", "domain": b"local"}[name]
    broken = ModelProto.FromString(model.SerializeToString().replace(word, b"\xff" * len(word)))
    with pytest.raises(UnsupportedModelError, match="not UTF-8 text"):
        rewrite_model(broken)


def test_a_branch_whose_name_is_no_utf8_is_no_traceback() -> None:
    model = parse(
        """g (float[n] x, bool go) => (int64[1, k] y) {
            y = If(go) <
                then_branch = t () => (int64[1, k] a) { z = Exp(x) a = NonZero(z) },
                else_branch = e () => (int64[1, k] b) { b = NonZero(x) }
            >
        }"""
    )
    data = model.SerializeToString().replace(b"then_branch", b"\xff" * 11)
    assert len(rewrite_model(ModelProto.FromString(data)).plan.decisions) == 2


def chain_of_functions(length: int, ring: bool = False) -> ModelProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = []
    for number in range(length):
        last = number == length - 1
        target = 0 if last else number + 1
        node = helper.make_node(f"f{target}", ["a"], ["b"], domain="local")
        if last and not ring:
            node = helper.make_node("NonZero", ["a"], ["b"])
        functions.append(helper.make_function("local", f"f{number}", ["a"], ["b"], [node], imports))
    model = model_of(
        [helper.make_node("f0", ["x"], ["i"], domain="local"), nonzero("i")], {"x": ["n"]}
    )
    model.functions.extend(functions)
    model.opset_import.append(imports[1])
    return model


# ONNX's inliner gives up somewhere between: a refusal, and no crash.
@pytest.mark.parametrize(("length", "outcome"), [(30, "plugin"), (300, "left"), (8000, "left")])
def test_functions_in_a_long_chain_end_well(length: int, outcome: str) -> None:
    model = chain_of_functions(length)
    started = time.monotonic()
    result = rewrite_model(model)
    assert [d.outcome for d in result.plan.decisions] == [outcome, outcome]
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("length", [1, 3])
def test_functions_that_call_themselves_are_left(length: int) -> None:
    result = rewrite_model(chain_of_functions(length, ring=True))
    assert [d.outcome for d in result.plan.decisions] == ["left"]


def test_a_broken_nonzero_next_to_a_function_that_is_inlined() -> None:
    model = chain_of_functions(1)
    model.graph.node.append(helper.make_node("NonZero", [], ["broken"]))
    decisions = rewrite_model(model).plan.decisions
    assert [decision.outcome for decision in decisions] == ["plugin", "left", "plugin"]


@pytest.mark.parametrize(
    ("op_type", "domain"), [("NonZeroPlugin", "elsewhere"), ("Another", "nonzero_rewrite")]
)
def test_nodes_and_functions_that_are_ours_by_half(op_type: str, domain: str) -> None:
    model = model_of(
        [helper.make_node(op_type, ["x"], ["y"], domain=domain), nonzero("x")], {"x": ["n"]}
    )
    model.opset_import.append(helper.make_opsetid(domain, 1))
    if domain == "nonzero_rewrite":
        body = [helper.make_node("Neg", ["a"], ["b"])]
        imports = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function(domain, op_type, ["a"], ["b"], body, imports))
    patched = rewrite_model(model).model
    assert ("nonzero_rewrite", "NonZeroPlugin") in {(f.domain, f.name) for f in patched.functions}
    assert restore_model(patched) == 1
    assert patched.graph.node[0] == model.graph.node[0]


def test_a_plugin_node_that_is_none_is_not_restored() -> None:
    model = rewrite_model(parse("g (float[n] x) => (int64[1, k] i) { i = NonZero(x) }")).model
    del model.graph.node[0].input[:]
    with pytest.raises(UnsupportedModelError, match="has 0 inputs and 2 outputs instead of one"):
        restore_model(model)


def test_a_mark_that_somebody_left_means_nothing() -> None:
    nodes = [helper.make_node("NonZero", [], ["broken"]), nonzero("x")]
    model = model_of(nodes, {"x": ["n"]})
    for node in model.graph.node:
        for value in ("elsewhere", "another"):
            node.metadata_props.add(key="nonzero_rewrite.site", value=value)
    assert [d.outcome for d in rewrite_model(model).plan.decisions] == ["left", "plugin"]


# -- files ------------------------------------------------------------------------------------


def nested(levels: int) -> bytes:
    """Ifs in each other, written without the help of protobuf, which refuses to."""
    from fuzz_mutations import _field

    inner = b""
    for _ in range(levels):
        attribute = _field(1, b"then_branch") + _field(6, inner) + b"\xa0\x01\x05"
        inner = _field(1, _field(4, b"If") + _field(5, attribute)) + _field(2, b"b")
    return _field(7, inner)


@pytest.mark.parametrize("levels", [40, 400, 4000])
def test_graphs_nested_too_deep_are_a_sentence(levels: int, tmp_path: Path, tools: None) -> None:
    path = tmp_path / "deep.onnx"
    path.write_bytes(nested(levels))
    with pytest.raises(ModelLoadError, match="deeper than protobuf reads"):
        load_model(path)


@pytest.mark.parametrize("levels", [100, 1000])
def test_graphs_nested_too_deep_in_memory_are_a_sentence(levels: int) -> None:
    model = model_of([nonzero("x")], {"x": ["n"]})
    graph = model.graph
    for _ in range(levels):
        node = graph.node.add(op_type="If", output=["r"])
        attribute = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        graph = attribute.g
    with pytest.raises(UnsupportedModelError, match="deeper than the 33 that"):
        rewrite_model(model)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))


def with_external(tmp_path: Path, **entries: str) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    model = model_of([helper.make_node("Add", ["x", "w"], ["m"]), nonzero("m")], {"x": [4]})
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
    )
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    model.graph.initializer.append(tensor)
    (folder / "weights.bin").write_bytes(bytes(16))
    (tmp_path / "outside.bin").write_bytes(bytes(16))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    "location",
    [
        *("../outside.bin", "sub/../../outside.bin", "/etc/hostname", "missing.bin", ""),
        *("weights.bin/x", "w" * 300, "a\0b", ".", "link.bin", "loop.bin"),
    ],
)
def test_data_files_elsewhere_are_a_sentence(location: str, tmp_path: Path) -> None:
    path = with_external(tmp_path, location=location)
    for name, target in (("link.bin", "../outside.bin"), ("loop.bin", "loop.bin")):
        if name == location:
            (path.parent / name).symlink_to(target)
    with pytest.raises(ModelLoadError):
        load_model(path)


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("value", ["-1", "x", "1e3", ""])
def test_data_without_a_size_is_a_sentence(key: str, value: str, tmp_path: Path) -> None:
    path = with_external(tmp_path, location="weights.bin", **{key: value})
    with pytest.raises(ModelLoadError, match=f"external data with {key} {value!r}"):
        load_model(path)


@pytest.mark.parametrize("word", ["location", "weights.bin", "offset", "77777"])
def test_data_whose_place_is_no_utf8_is_a_sentence(word: str, tmp_path: Path) -> None:
    path = with_external(tmp_path, location="weights.bin", offset="77777")
    data = path.read_bytes()
    path.write_bytes(data.replace(word.encode(), b"\xff" * len(word)) + b"\x32\x08location")
    with pytest.raises(ModelLoadError, match="external data is not UTF-8 text"):
        load_model(path)


def test_a_transpose_without_a_name_for_its_output_is_an_ordinary_user() -> None:
    nodes = [
        nonzero("x"),
        helper.make_node("Transpose", ["indices"], [""], perm=[1, 0]),
        helper.make_node("Identity", ["indices"], ["y"]),
    ]
    assert rewrite_model(model_of(nodes, {"x": ["n"]})).plan.decisions[0].outcome == "plugin"


@pytest.mark.parametrize("kind", ["no branch", "too few outputs"])
def test_a_constant_if_that_is_none_stays(kind: str) -> None:
    model = parse(
        """g (float[n] x) => (int64[1, k] y) {
            yes = Constant<value = bool {1}>()
            y = If(yes) <
                then_branch = t () => (int64[1, k] a) { a = NonZero(x) },
                else_branch = e () => (int64[1, k] b) { b = NonZero(x) }
            >
        }"""
    )
    holder = model.graph.node[1]
    branch = next(a for a in holder.attribute if a.name == "then_branch")
    if kind == "no branch":
        branch.name = "elsewhere"
    else:
        del branch.g.output[:]
    assert "If" in {node.op_type for node in rewrite_model(model).model.graph.node}


@pytest.mark.parametrize("to", [-(1 << 63), (1 << 63) - 1, -1, 0, 999])
def test_a_cast_to_no_type_is_no_known_type(to: int) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["m"], to=to),
        helper.make_node("Reciprocal", ["m"], ["r"]),
        nonzero("r"),
    ]
    assert rewrite_model(model_of(nodes, {"x": ["n"]})).plan.decisions[0].outcome == "left"


def corrupt(change: Callable[[bytes], bytes], tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(change(PLAIN.SerializeToString()))
    return path


def test_every_truncation_is_a_sentence_or_a_model(tmp_path: Path) -> None:
    data = PLAIN.SerializeToString()
    for length in range(len(data)):
        path = corrupt(lambda data, length=length: data[:length], tmp_path)  # type: ignore[misc]
        try:
            rewrite_model(path)
        except NonZeroRewriteError as err:
            assert str(path) in str(err) or isinstance(err, UnsupportedModelError)


def test_a_flipped_bit_is_a_sentence_or_a_model(tmp_path: Path) -> None:
    data = PLAIN.SerializeToString()
    for bit in range(0, 8 * len(data), 7):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path = corrupt(lambda _, changed=changed: bytes(changed), tmp_path)  # type: ignore[misc]
        try:
            rewrite_model(path, Options(rules=frozenset({"plugin", "transpose"})))
        except NonZeroRewriteError as err:
            assert "\n" not in str(err)


def test_a_valid_one_of_these_is_rewritten() -> None:
    """The cases above are wrong in the one place they name, and nowhere else."""
    rewritten(PLAIN)


@pytest.mark.parametrize(
    "body",
    [
        "f = Unsqueeze(m, axes) s = Shape(x) w = Expand(f, s) i = NonZero(w) t = Transpose(i) "
        "y = GatherND(x, t)",
        "i = NonZero(m) t = Transpose(i) c = Cast<to = 7>(m) k = ReduceSum<keepdims = 0>(c, axes) "
        "l = Unsqueeze(k, zero) v = Slice(x, zero, l) y = ScatterND(x, t, v)",
        "b = Cast<to = 9>(x) i = NonZero(b) t = Transpose(i) g = GatherND(x, t) "
        "y = ReduceSum(g, axes)",
    ],
    ids=["rows", "size-from-indices", "where-sum"],
)
def test_axes_that_are_no_integers_end_no_rule(body: str) -> None:
    text = f"g (float[n, 4] x, bool[n] m) => (float y) <int64[1] zero = {{0}}> {{ {body} }}"
    model = parse(text)
    model.graph.initializer.append(numpy_helper.from_array(np.array([np.nan], np.float32), "axes"))
    declared = helper.make_tensor_value_info("f", TensorProto.BOOL, ["n", 1])
    model.graph.value_info.append(declared)
    rewrite_model(model, rules=[rule.name for rule in RULES])
