"""Weights that stay in the file: what is written is what protobuf would have written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.graphs import parse
from onnx import ModelProto, TensorProto, helper, numpy_helper

from nonzero_rewrite import load as load_module
from nonzero_rewrite import rewrite_model, wire
from nonzero_rewrite.errors import ModelLoadError
from nonzero_rewrite.load import load_model
from nonzero_rewrite.restore import restore_model
from nonzero_rewrite.rewrite import rewrite
from nonzero_rewrite.wire import with_weights, without_weights
from nonzero_rewrite.write import write_model

MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "LARGE_FILE_BYTES", 1)
    monkeypatch.setattr(wire, "LARGE_BYTES", 16)


def weighty(*, names: tuple[str, ...] = ("big", "gone", "doc")) -> ModelProto:
    model = parse(
        """g (float[8] x) => (float[k] y) {
            m = Add(x, big)
            c = Shape(gone)
            n = ConstantOfShape<value = int64[1] {1}>(c)
            unused = NonZero(n)
            dropped = Transpose(unused)
            i = NonZero(m)
            p = Transpose<perm = [1, 0]>(i)
            y = GatherND(doc, p)
        }"""
    )
    for number, name in enumerate(names):
        tensor = numpy_helper.from_array(np.arange(8, dtype=np.float32) + number, name)
        tensor.doc_string = f"weight {number}"
        model.graph.initializer.append(tensor)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1.0], np.float32), "small"))
    return model


def joined(data: bytes, light: bytes | None, weights: wire.Weights) -> bytes:
    assert light is not None
    model = ModelProto.FromString(light)
    pieces = with_weights(model.SerializeToString(), weights)
    return b"".join(p if isinstance(p, bytes) else data[p[0] : p[1]] for p in pieces)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_taking_weights_out_and_putting_them_back_changes_no_byte(path: Path) -> None:
    data = ModelProto.FromString(path.read_bytes()).SerializeToString()
    light, weights = without_weights(data)
    if not weights:
        assert light is None
        assert not any(len(t.raw_data) >= 16 for t in onnx.load(path).graph.initializer)
        return
    assert len(light or b"") < len(data)
    assert joined(data, light, weights) == data


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_the_file_is_the_one_that_protobuf_would_write(path: Path, tmp_path: Path) -> None:
    expected = rewrite_model(onnx.load(path))
    source = load_model(path)
    result = rewrite(source.model)
    out = tmp_path / "patched.onnx"
    write_model(result.model, source, out, changed=result.changed)
    if result.changed:
        assert out.read_bytes() == expected.model.SerializeToString()
    else:
        assert out.read_bytes() == path.read_bytes()
    again = load_model(out)
    restored = restore_model(again.model)
    write_model(again.model, again, tmp_path / "restored.onnx", changed=restored > 0)
    if restored:
        restore_model(expected.model)
        back = (tmp_path / "restored.onnx").read_bytes()
        assert back == expected.model.SerializeToString()


def test_weights_that_nobody_uses_any_more_are_not_put_back(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(weighty().SerializeToString())
    source = load_model(path)
    assert source.weights.keys() == {"big", "gone", "doc"}
    assert not any(len(t.raw_data) >= 16 for t in source.model.graph.initializer)
    result = rewrite(source.model)
    write_model(result.model, source, tmp_path / "out.onnx")
    out = onnx.load(tmp_path / "out.onnx")
    found = {t.name: numpy_helper.to_array(t).tolist() for t in out.graph.initializer}
    assert "gone" not in found
    assert found["big"] == [*range(8)] and found["doc"] == [*range(2, 10)]
    assert out.SerializeToString() == rewrite_model(weighty()).model.SerializeToString()


def test_a_model_from_a_path_has_its_weights_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(weighty().SerializeToString())
    result = rewrite_model(path).model
    assert result.SerializeToString() == rewrite_model(weighty()).model.SerializeToString()


def unusual() -> dict[str, bytes]:
    plain = weighty().SerializeToString()
    graph = ModelProto.FromString(plain).graph
    second = helper.make_graph([], "", [], [])
    raw_twice = plain[:]
    tensor = graph.initializer[0].SerializeToString()
    twice = tensor + b"\x4a\x20" + bytes(32)
    model = ModelProto.FromString(plain)
    del model.graph.initializer[:]
    raw_twice = model.SerializeToString() + wire._delimited(7, wire._delimited(5, twice))
    return {
        "two graphs": plain + wire._delimited(7, second.SerializeToString()),
        "equal names": weighty(names=("big", "gone", "doc", "big")).SerializeToString(),
        "no name": weighty(names=("big", "gone", "doc", "")).SerializeToString(),
        "raw data twice": raw_twice,
        "cut off": plain[:-7],
        "a group": plain + b"\x9b\x06\x9c\x06",
        "field zero": plain + b"\x02\x00",
        "no graph": plain[:4],
        "nothing": b"",
        "an endless number": b"\xff" * 12,
        "a name that is no text": plain.replace(b"big", b"\xff\xfe\xfd"),
    }


@pytest.mark.parametrize("kind", unusual())
def test_what_is_unusual_is_left_to_protobuf(kind: str, tmp_path: Path) -> None:
    data = unusual()[kind]
    assert without_weights(data) == (None, {})
    if data:
        path = tmp_path / "model.onnx"
        path.write_bytes(data)
        try:
            assert load_model(path).model == ModelProto.FromString(data)
        except ModelLoadError as err:
            assert str(path) in str(err)


def test_fields_nobody_knows_yet_are_kept(tmp_path: Path) -> None:
    plain = weighty()
    unknown = b"\xfa\x3f\x03new"  # field 1023
    data = plain.SerializeToString() + unknown
    graph = plain.graph.SerializeToString() + unknown
    model = ModelProto.FromString(plain.SerializeToString())
    model.ClearField("graph")
    data = model.SerializeToString() + wire._delimited(7, graph) + unknown
    light, weights = without_weights(data)
    assert weights
    assert joined(data, light, weights).count(b"\x03new") == 2


def test_a_source_that_changed_meanwhile_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(weighty().SerializeToString())
    source = load_model(path)
    os.utime(path, ns=(0, 0))
    with pytest.raises(ModelLoadError) as caught:
        write_model(source.model, source, tmp_path / "out.onnx")
    assert str(caught.value) == f"{path}: has changed since it was read; run the command again"
    path.unlink()
    with pytest.raises(ModelLoadError, match="cannot be read: No such file"):
        write_model(source.model, source, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_a_model_in_place_keeps_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(weighty().SerializeToString())
    source = load_model(path)
    result = rewrite(source.model)
    write_model(result.model, source, path, in_place=True)
    assert path.read_bytes() == rewrite_model(weighty()).model.SerializeToString()


def test_typed_data_is_not_taken_out() -> None:
    model = weighty()
    model.graph.initializer.append(helper.make_tensor("typed", TensorProto.FLOAT, [64], [1.5] * 64))
    data = model.SerializeToString()
    light, weights = without_weights(data)
    assert "typed" not in weights
    assert joined(data, light, weights) == data
