"""verify_models: outcomes, what it reports, and where models come from."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import build
from helpers import wrong_rewrites as wrong
from onnx import TensorProto, helper, numpy_helper

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.compare import DifferenceKind
from nonzero_rewrite.errors import ModelLoadError, VerificationError
from nonzero_rewrite.verification import Outcome
from nonzero_rewrite.verify import verify_models

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def node(op, inputs, *outputs, **attributes):
    return helper.make_node(op, list(inputs), list(outputs), name=f"n_{outputs[0]}", **attributes)


def test_the_result_is_plain_data() -> None:
    model = wrong.original()
    result = verify_models(model, wrong.patched(model))
    assert pickle.loads(pickle.dumps(result)) == result
    data = json.loads(json.dumps(result.to_dict()))
    assert data["ok"] is True
    assert data["outcome"] == "equal"
    assert data["cases"][0]["shapes"].keys() == {"x", "y"}
    assert data["selected"][0]["items"] > 0
    assert data["runtimes"][0].startswith("onnxruntime ")


def test_neither_model_nor_file_is_changed(tmp_path: Path) -> None:
    model = wrong.original()
    patched = wrong.patched(model)
    before = model.SerializeToString(), patched.SerializeToString()
    verify_models(model, patched)
    assert (model.SerializeToString(), patched.SerializeToString()) == before
    onnx.save(model, tmp_path / "a.onnx")
    onnx.save(patched, tmp_path / "b.onnx")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert verify_models(tmp_path / "a.onnx", tmp_path / "b.onnx").ok
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_what_was_selected_is_reported_for_each_case() -> None:
    model = build.nonzero(FLOAT, (2, 3))
    given = {"x": np.array([[0, -0.0, np.nan], [1e-45, 2, 0]], dtype=np.float32)}
    result = verify_models(model, rewrite_model(model).model, inputs=[given])
    mine = [s for s in result.selected if s.case == "inputs"]
    assert [(s.node, s.selected, s.items, s.patched) for s in mine] == [("nz", 3, 6, 3)]
    assert result.cases[0].origin == "user"


# B07: both layouts at once, with as many hits as the rank, so that a swap shows in values only.
def test_b07_both_layouts_with_as_many_hits_as_the_rank() -> None:
    model = build.model(
        [node("NonZero", ["x"], "raw"), node("Transpose", ["raw"], "pairs", perm=[1, 0])],
        {"x": (FLOAT, [2, 3])},
        {"raw": (INT64, [2, None]), "pairs": (INT64, [None, 2])},
    )
    given = {"x": np.array([[0, 0, 1], [1, 0, 0]], dtype=np.float32)}
    assert verify_models(model, rewrite_model(model).model, inputs=[given]).ok
    swapped = build.model(
        [node("NonZero", ["x"], "pairs"), node("Transpose", ["pairs"], "raw", perm=[1, 0])],
        {"x": (FLOAT, [2, 3])},
        {"raw": (INT64, [2, None]), "pairs": (INT64, [None, 2])},
    )
    result = verify_models(model, swapped, inputs=[given])
    first = result.differences[0]
    assert (first.case, first.kind, first.index) == ("inputs", DifferenceKind.VALUES, (0, 1))


# B20: nothing detected, and a dim of size 0, through what stands behind NonZero in detectors.
@pytest.mark.parametrize("given", [np.zeros((5, 4)), np.zeros((0, 4))])
def test_b20_nothing_selected_through_post_processing(given: np.ndarray) -> None:
    one = numpy_helper.from_array(np.array([1], dtype=np.int64), "axis")
    model = build.model(
        [
            node("NonZero", ["x"], "nz"),
            node("Transpose", ["nz"], "pairs", perm=[1, 0]),
            node("GatherND", ["x", "pairs"], "picked"),
            node("Split", ["pairs"], "rows", "columns", axis=1),
            node("Squeeze", ["rows", "axis"], "row"),
            node("Gather", ["x", "row"], "whole"),
        ],
        {"x": (FLOAT, ["n", 4])},
        {"picked": (FLOAT, [None]), "columns": (INT64, [None, 1]), "whole": (FLOAT, [None, 4])},
        initializers=[one],
    )
    inputs = [{"x": given.astype(np.float32)}]
    result = verify_models(model, rewrite_model(model).model, inputs=inputs)
    assert result.ok, result.reason
    assert [s.selected for s in result.selected if s.case == "inputs"] == [0]


# B26: order is part of the result; the comparison must not sort.
def test_b26_the_same_indices_in_another_order_are_different() -> None:
    model = wrong.original()
    result = verify_models(model, wrong.patched(model, wrong.unsorted_order()))
    assert result.differences[0].kind is DifferenceKind.INDICES


# B28: every type onnxruntime has no NonZero for is judged by onnx.reference.
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("name", "native"),
    [(name, True) for name in ("BOOL", "FLOAT", "FLOAT16", "UINT8", "INT32", "INT64")]
    + [(name, False) for name in ("DOUBLE", "BFLOAT16", "INT8", "INT16")]
    + [(name, False) for name in ("UINT16", "UINT32", "UINT64")],
)
def test_b28_every_type_and_rank_has_a_judge(name: str, native: bool, rank: int) -> None:
    model = build.nonzero(TensorProto.DataType.Value(name), (3, 2, 2, 1, 2)[:rank])
    result = verify_models(model, rewrite_model(model).model)
    assert result.ok, result.reason
    assert all(c.none and c.some and c.all for c in result.coverage)
    assert result.runtimes[0].startswith("onnxruntime" if native else "onnx.reference")


# B34: the patched model runs in onnxruntime without the plugin, through its model function.
def test_b34_the_patched_model_runs_without_tensorrt() -> None:
    model = build.model(
        [
            node("NonZero", ["mask"], "nz"),
            node("Transpose", ["nz"], "pairs", perm=[1, 0]),
            node("GatherND", ["x", "pairs"], "y"),
        ],
        {"x": (FLOAT, ["n", 4]), "mask": (BOOL, ["n", 4])},
        {"y": (FLOAT, [None])},
    )
    result = verify_models(model, rewrite_model(model).model)
    assert result.ok
    assert result.runtimes == (result.runtimes[0],)


# B41: FLOAT16 rounds 1e-8 to zero; that is another count, not a wrong index.
def test_b41_another_count_is_called_so() -> None:
    model = build.nonzero(FLOAT, (2,))
    rounded = build.model(
        [
            node("Cast", ["x"], "half", to=TensorProto.FLOAT16),
            helper.make_node("NonZero", ["half"], ["indices"], name="nz"),
        ],
        {"x": (FLOAT, (2,))},
        {"indices": (INT64, [1, None])},
    )
    given = {"x": np.array([1e-8, 1.0], dtype=np.float32)}
    result = verify_models(model, rounded, inputs=[given])
    first = result.differences[0]
    assert (first.kind, first.original, first.patched) == (DifferenceKind.COUNT, "2", "1")
    assert "count differs" in result.reason
    (selection,) = (s for s in result.selected if s.case == "inputs")
    assert (selection.selected, selection.patched) == (2, 1)


@pytest.mark.parametrize("op", ["Mul", "Add", "Relu", "Cast"])
def test_float16_is_rounded_on_both_sides(op: str) -> None:
    """onnxruntime alone would count 2**-14 squared, which is zero in FLOAT16."""
    half = TensorProto.FLOAT16
    first = {
        "Mul": node("Mul", ["x", "x"], "y"),
        "Add": node("Add", ["x", "x"], "y"),
        "Relu": node("Relu", ["x"], "y"),
        "Cast": node("Cast", ["x"], "y", to=half),
    }[op]
    elem_type = FLOAT if op == "Cast" else half
    model = build.model(
        [first, helper.make_node("NonZero", ["y"], ["indices"], name="nz")],
        {"x": (elem_type, ["n"])},
        {"indices": (INT64, [1, None])},
    )
    tiny = np.float32(1e-8) if op == "Cast" else np.float16(2**-14)
    given = {"x": np.array([tiny, 1, 0, -0.0], dtype=tiny.dtype)}
    result = verify_models(model, rewrite_model(model).model, inputs=[given])
    assert result.ok, result.reason
    counts = [s.selected for s in result.selected if s.case == "inputs"]
    assert counts == [2 if op in ("Add", "Relu") else 1]


# B44: a mask used as 0/1 indices gives another shape, which is looked at before values.
def test_b44_a_mask_used_as_indices_is_another_shape() -> None:
    right = build.model(
        [
            node("NonZero", ["mask"], "nz"),
            node("Transpose", ["nz"], "pairs", perm=[1, 0]),
            node("GatherND", ["x", "pairs"], "y"),
        ],
        {"x": (FLOAT, [4]), "mask": (BOOL, [4])},
        {"y": (FLOAT, [None])},
    )
    bad = build.model(
        [node("Cast", ["mask"], "index", to=INT64), node("Gather", ["x", "index"], "y")],
        {"x": (FLOAT, [4]), "mask": (BOOL, [4])},
        {"y": (FLOAT, [None])},
    )
    mask = np.array([True, False, True, False])
    given = {"x": np.array([0, 1, 2, 3], dtype=np.float32), "mask": mask}
    result = verify_models(right, bad, inputs=[given])
    first = result.differences[0]
    assert (first.kind, first.original, first.patched) == (DifferenceKind.SHAPE, "[2]", "[4]")


def test_a_promise_that_inputs_exceed_is_visible_and_kept_up_to_it() -> None:
    model = wrong.original()
    result = verify_models(model, rewrite_model(model, max_nonzero=10).model)
    assert result.ok, result.reason
    over = [s for s in result.selected if s.over_promise]
    assert over
    assert all(s.patched == 10 < s.selected for s in over)
    assert {c.name for c in result.cases if not c.compared} == {s.case for s in over}
    assert any(c.compared for c in result.cases)


def test_a_promise_that_every_case_exceeds_proves_nothing() -> None:
    model = build.model(
        [
            node("Shape", ["x"], "shape"),
            node(
                "ConstantOfShape",
                ["shape"],
                "ones",
                value=numpy_helper.from_array(np.array([1], dtype=np.int64)),
            ),
            helper.make_node("NonZero", ["ones"], ["indices"], name="nz"),
        ],
        {"x": (FLOAT, [5])},
        {"indices": (INT64, [1, None])},
    )
    capped = rewrite_model(model, max_nonzero=3, rules=frozenset({"plugin"})).model
    assert any(n.op_type == "NonZeroPlugin" for n in capped.graph.node)
    result = verify_models(model, capped)
    assert result.outcome is Outcome.NOT_COMPARABLE
    assert "max_nonzero" in result.reason


def test_int32_indices_behind_a_cast_are_equal() -> None:
    model = build.nonzero(FLOAT, ("n", 3))
    patched = rewrite_model(model).model
    (plugin,) = (n for n in patched.graph.node if n.op_type == "NonZeroPlugin")
    (wanted,) = (a for a in plugin.attribute if a.name == "index_type")
    wanted.i = TensorProto.INT32
    plugin.output[0] = "narrow"
    patched.graph.node.append(node("Cast", ["narrow"], "indices", to=INT64))
    assert verify_models(model, patched).ok


def test_models_with_nonzero_in_subgraphs_name_what_cannot_be_watched() -> None:
    from helpers.manifest import MODELS

    path = MODELS / "early_exit.onnx"
    result = verify_models(path, path)
    assert result.ok
    assert len(result.unobserved) == 2
    assert all("then_branch" in s or "else_branch" in s for s in result.unobserved)
    shapes = {s.selected for s in result.selected}
    assert len(shapes) > 2


def test_an_original_that_does_not_load_is_not_comparable() -> None:
    model = build.model(
        [node("NoSuchOperator", ["x"], "y")], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}
    )
    result = verify_models(model, model)
    assert result.outcome is Outcome.NOT_COMPARABLE
    assert not result.ok
    assert "the original does not run" in result.reason
    assert "NoSuchOperator" in result.reason


def test_an_original_that_never_runs_is_not_comparable() -> None:
    model = build.model(
        [node("Add", ["x", "y"], "z")],
        {"x": (FLOAT, [None, 3]), "y": (FLOAT, [2])},
        {"z": (FLOAT, None)},
    )
    result = verify_models(model, model)
    assert result.outcome is Outcome.NOT_COMPARABLE
    assert "does not run" in result.reason


def test_an_original_that_rolls_dice_is_not_comparable() -> None:
    model = build.model(
        [node("RandomNormalLike", ["x"], "y")], {"x": (FLOAT, [8])}, {"y": (FLOAT, [8])}
    )
    result = verify_models(model, model)
    assert result.outcome is Outcome.NOT_COMPARABLE
    assert "two runs of the original" in result.reason
    assert result.outputs[0].unstable


def test_inputs_that_do_not_fit_are_an_error() -> None:
    model = build.nonzero(FLOAT, (2, 3))
    with pytest.raises(VerificationError, match="given inputs"):
        verify_models(model, model, inputs=[{"x": np.zeros((4, 4), np.float32)}])
    with pytest.raises(VerificationError, match="no value for 'x'"):
        verify_models(model, model, inputs=[{}])


def test_files_that_are_no_models_are_an_error(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"\xff\xfe not a model")
    with pytest.raises(ModelLoadError, match=r"missing\.onnx"):
        verify_models(tmp_path / "missing.onnx", bad)
    with pytest.raises(ModelLoadError, match=r"bad\.onnx"):
        verify_models(bad, bad)


def external(folder: Path, megabytes: int = 1) -> Path:
    """A model whose table lies in another file: NonZero(x + table[0])."""
    folder.mkdir(exist_ok=True)
    rows = megabytes * (1 << 20) // 16
    table = numpy_helper.from_array(np.ones((rows, 4), dtype=np.float32), "table")
    zero = numpy_helper.from_array(np.array(0, dtype=np.int64), "zero")
    model = build.model(
        [
            node("Gather", ["table", "zero"], "row"),
            node("Mul", ["x", "row"], "y"),
            node("NonZero", ["y"], "indices"),
        ],
        {"x": (FLOAT, ["n", 4])},
        {"indices": (INT64, [2, None])},
        initializers=[table, zero],
    )
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    return path


def test_external_data_stays_where_it_is(tmp_path: Path) -> None:
    original = external(tmp_path / "original")
    # In memory: references go to the folder of the original.
    assert verify_models(original, rewrite_model(original).model).ok
    # In another folder with its own copy of the data.
    other = tmp_path / "other"
    shutil.copytree(original.parent, other)
    assert verify_models(original, other / "model.onnx").ok
    # Both in memory.
    light = onnx.load(original, load_external_data=False)
    assert verify_models(light, light, folder=original.parent).ok
    assert sorted(p.name for p in original.parent.iterdir()) == ["model.onnx", "weights.bin"]


def test_missing_external_data_is_not_comparable(tmp_path: Path) -> None:
    original = external(tmp_path / "original")
    (original.parent / "weights.bin").unlink()
    result = verify_models(original, original)
    assert result.outcome is Outcome.NOT_COMPARABLE
    assert "weights.bin" in result.reason


def test_large_files_go_to_onnxruntime_as_files(tmp_path: Path, monkeypatch) -> None:
    model = wrong.original()
    onnx.save(model, tmp_path / "a.onnx")
    onnx.save(wrong.patched(model), tmp_path / "b.onnx")
    onnx.save(wrong.patched(model, wrong.last_one_twice()), tmp_path / "c.onnx")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("nonzero_rewrite.runtime.LARGE_BYTES", 0)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.onnx")}
    assert verify_models(tmp_path / "a.onnx", tmp_path / "b.onnx").ok
    assert not verify_models(tmp_path / "a.onnx", tmp_path / "c.onnx").ok
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.onnx")} == before
    assert not list(temporary.iterdir())


def test_given_inputs_that_break_the_promise_are_a_difference() -> None:
    """Searched inputs may exceed max_nonzero, which proves nothing; the user's own may not."""
    model = build.model(
        [helper.make_node("NonZero", ["x"], ["indices"], name="nz")],
        {"x": (FLOAT, ["n"])},
        {"indices": (INT64, [1, None])},
    )
    patched = rewrite_model(model, max_nonzero=2).model
    assert verify_models(model, patched).ok
    given = {"x": np.ones(3, dtype=np.float32)}
    result = verify_models(model, patched, inputs=[given])
    assert not result.ok
    assert result.differences[0].text == (
        "count differs: 3 in the original, 2 (its max_nonzero) in the patched"
    )


def test_b22_a_bare_node_is_explained_and_no_difference() -> None:
    """Case B22: onnxruntime refuses the node; we say why, and what to do."""
    model = wrong.original()
    bare = rewrite_model(model, function=False).model
    result = verify_models(model, bare)
    assert result.outcome is Outcome.NOT_COMPARABLE and not result.differences
    assert "without --no-function" in result.reason


@pytest.mark.parametrize(
    "body",
    [
        "c = Cast <to = 10> (x) g = GatherND(c, t) a = Mul(g, k) u = Add(a, k)",
        "h = Cast <to = 10> (x) c = Mul(h, k) g = GatherND(c, t) u = Mul(g, k)",
        "h = Cast <to = 10> (x) c = Mul(h, k) z = Size(t) n = Unsqueeze(z, zero) u = Expand(k, n)",
    ],
    ids=["chain", "source", "data"],
)
def test_float16_is_rounded_where_where_stands_for_scatternd(body: str) -> None:
    """onnxruntime has a FLOAT16 kernel for ScatterND, but has none for Where."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[n] x, bool[n] m) => (float[n] y)
        <float16 k = {{16435}}, int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
            i = NonZero(m) t = Transpose <perm = [1, 0]> (i) {body}
            s = ScatterND(c, t, u) y = Cast <to = 1> (s) }}"""
    )
    patched = rewrite_model(model)
    assert patched.plan.count("removed") == 1
    assert verify_models(model, patched.model).ok
