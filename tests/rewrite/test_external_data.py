"""Weights in other files: never read, never lost, never left dangling."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.external import TEXT, external, save
from helpers.graphs import array, parse
from onnx import TensorProto, numpy_helper

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.errors import ModelLoadError, ModelWriteError
from nonzero_rewrite.load import load_model
from nonzero_rewrite.rewrite import rewrite
from nonzero_rewrite.write import write_model


def patch(path: Path, output: Path, how: str = "copy") -> tuple[Path, ...]:
    source = load_model(path)
    result = rewrite(source.model)
    assert result.changed
    return write_model(result.model, source, output, changed=result.changed, external_data=how)


def run(path: Path) -> list[np.ndarray]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": array(TensorProto.FLOAT, (3, 4), "some")}))


def assert_runs_equal(one: Path, other: Path) -> None:
    for a, b in zip(run(one), run(other), strict=True):
        assert np.array_equal(a, b, equal_nan=True)


OPENED: list[str] = []


def _watch(event: str, args: tuple[object, ...]) -> None:
    if event == "open":
        OPENED.append(str(args[0]))


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """The files opened during a test; an audit hook cannot be taken off again."""
    if _watch not in _HOOKED:
        sys.addaudithook(_watch)
        _HOOKED.append(_watch)
    OPENED.clear()
    yield OPENED


_HOOKED: list[object] = []


def test_beside_the_input_references_are_kept_and_weights_not_opened(
    tmp_path: Path, opened: list[str]
) -> None:
    path = save(tmp_path)
    opened.clear()
    patch(path, tmp_path / "patched.onnx")
    assert any("model.onnx" in name for name in opened), "the hook watches"
    assert not [name for name in opened if "weights" in name]
    one, other = (
        onnx.load(tmp_path / n, load_external_data=False) for n in ("model.onnx", "patched.onnx")
    )
    assert [t.SerializeToString() for t in one.graph.initializer] == [
        t.SerializeToString() for t in other.graph.initializer
    ]
    assert_runs_equal(path, tmp_path / "patched.onnx")


def test_three_gigabytes_of_weights(tmp_path: Path, opened: list[str]) -> None:
    """Weights beyond protobuf's 2 GiB, which nobody can have read in this time."""
    path = save(tmp_path, hole=3 << 30)
    assert (tmp_path / "weights.bin").stat().st_size > 3 << 30
    opened.clear()
    patch(path, tmp_path / "patched.onnx")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    patch(path, folder / "patched.onnx", "link")
    assert rewrite_model(path).changed
    assert not [name for name in opened if "weights" in name]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("how", ["copy", "link"])
@pytest.mark.parametrize("location", ["weights.bin", "sub/dir/weights.bin"])
def test_in_another_folder(tmp_path: Path, how: str, location: str) -> None:
    path = save(tmp_path / "in", location)
    output = tmp_path / "out" / "patched.onnx"
    output.parent.mkdir()
    before = digest(path), digest(tmp_path / "in" / location)
    put = patch(path, output, how)
    assert put == (tmp_path / "out" / location,)
    assert_runs_equal(path, output)
    assert (digest(path), digest(tmp_path / "in" / location)) == before
    same = (tmp_path / "in" / location).samefile(tmp_path / "out" / location)
    assert same == (how == "link")
    # Once more: what is there is equal and stays.
    assert patch(path, output, how) == ()


def test_relative(tmp_path: Path) -> None:
    path = save(tmp_path / "in")
    output = tmp_path / "out" / "patched.onnx"
    output.parent.mkdir()
    assert patch(path, output, "relative") == ()
    tensors = onnx.load(output, load_external_data=False).graph.initializer
    locations = {e.value for t in tensors for e in t.external_data if e.key == "location"}
    assert locations == {"../in/weights.bin"}
    assert (output.parent / locations.pop()).samefile(tmp_path / "in" / "weights.bin")


def test_another_data_file_of_that_name_is_not_replaced(tmp_path: Path) -> None:
    path = save(tmp_path / "in")
    output = tmp_path / "out" / "patched.onnx"
    output.parent.mkdir()
    (output.parent / "weights.bin").write_bytes(b"of another model")
    with pytest.raises(ModelWriteError, match=r"weights\.bin: another data file of that name"):
        patch(path, output)
    assert (output.parent / "weights.bin").read_bytes() == b"of another model"
    assert not output.exists() and len(list(output.parent.iterdir())) == 1


def test_a_link_that_leaves_the_folder(tmp_path: Path) -> None:
    path = save(tmp_path / "in")
    data = tmp_path / "in" / "weights.bin"
    data.rename(tmp_path / "weights.bin")
    data.symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ModelLoadError, match="is a link that leaves the model's folder"):
        load_model(path)


def test_a_read_only_input_folder(tmp_path: Path) -> None:
    path = save(tmp_path / "in")
    (tmp_path / "in").chmod(0o555)
    try:
        if not os.access(tmp_path / "in", os.W_OK):  # root may write everywhere
            with pytest.raises(ModelWriteError, match="cannot be written"):
                patch(path, tmp_path / "in" / "patched.onnx")
        output = tmp_path / "out" / "patched.onnx"
        output.parent.mkdir()
        patch(path, output)
        assert_runs_equal(path, output)
    finally:
        (tmp_path / "in").chmod(0o755)


def test_nothing_is_opened_for_writing_in_the_input_folder(
    tmp_path: Path, opened: list[str]
) -> None:
    """The read-only folder's case for those who may write everywhere."""
    path = save(tmp_path / "in")
    output = tmp_path / "out" / "patched.onnx"
    output.parent.mkdir()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "in").iterdir()}
    folder = (tmp_path / "in").stat().st_mtime_ns
    patch(path, output)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "in").iterdir()} == before
    assert (tmp_path / "in").stat().st_mtime_ns == folder


def test_a_constant_condition_on_a_branch_with_external_weights(tmp_path: Path) -> None:
    """The branch's weights become the graph's: an attribute may not lie in another file."""
    model = parse("""g (float[n,4] x) => (float[p] y) <bool c = {1}> {
        y = If (c) <then_branch = a () => (float[p1] o1) {
            m = Greater(x, h) i = NonZero(m) t = Transpose(i) o1 = GatherND(x, t) },
        else_branch = b () => (float[p2] o2) { s = Shape(x) o2 = Cast <to = 1> (s) }> }""")
    value = np.array([0.5, 0.1, -0.1, 0.0], np.float32)
    model.graph.node[0].attribute[0].g.initializer.append(external("h", value, "w.bin", 0))
    (tmp_path / "w.bin").write_bytes(value.tobytes())
    path, output = tmp_path / "model.onnx", tmp_path / "patched.onnx"
    path.write_bytes(model.SerializeToString())
    patch(path, output)
    assert "If" not in [n.op_type for n in onnx.load(output, load_external_data=False).graph.node]
    assert_runs_equal(path, output)


def test_over_two_gigabytes_in_one_file_is_named(tmp_path: Path) -> None:
    source = load_model(save(tmp_path))

    class TooLarge:
        graph = source.model.graph

        def SerializeToString(self) -> bytes:
            raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size of 2GB")

    output = tmp_path / "out.onnx"
    with pytest.raises(ModelWriteError, match="2 GiB or more must keep its weights in external"):
        write_model(TooLarge(), source, output)  # type: ignore[arg-type]
    assert not output.exists()


def test_embedded_weights_stay_embedded(tmp_path: Path) -> None:
    model = parse(TEXT)
    for name, value in (("h", 0.5), ("w", np.ones((4, 8))), ("b", np.ones(8))):
        tensor = numpy_helper.from_array(np.asarray(value, np.float32), name)
        model.graph.initializer.append(tensor)
    path, output = tmp_path / "model.onnx", tmp_path / "deep" / "patched.onnx"
    output.parent.mkdir()
    path.write_bytes(model.SerializeToString())
    assert patch(path, output) == ()
    assert_runs_equal(path, output)
