"""The node's spelling against the real ONNX parser of TensorRT for RTX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import pytest
from helpers import patched
from nonzero_plugin import callbacks
from nonzero_plugin.errors import ContractError
from nonzero_plugin.registry import register, unregister
from onnx import TensorProto, helper

pytestmark = pytest.mark.rtx


@pytest.fixture
def trt() -> Iterator[Any]:
    """The real module with our creators gone before and after."""
    from nonzero_plugin._tensorrt import load_tensorrt

    module = load_tensorrt("tensorrt_rtx")
    unregister(module)
    callbacks.take_recorded(any_thread=True)
    yield module
    unregister(module)
    callbacks.take_recorded(any_thread=True)


@pytest.fixture
def sample(trt: Any) -> Iterator[list[str]]:
    """TensorRT's own sample registers this triple; the list names the nodes it was asked for."""
    asked: list[str] = []

    class SampleCreator(trt.IPluginCreatorV3One):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_version, self.plugin_namespace = "NonZeroPlugin", "1", ""
            self.field_names = trt.PluginFieldCollection([])

        def create_plugin(self, name: str, fields: Any, phase: Any) -> Any:
            asked.append(name)
            raise RuntimeError("the sample's plugin must never serve our node")

    creator = SampleCreator()
    assert trt.get_plugin_registry().register_creator(creator, "")
    yield asked
    trt.get_plugin_registry().deregister_creator(creator)


def parse(trt: Any, model: onnx.ModelProto) -> tuple[bool, list[str], str]:
    """(parsed, layer types, first error)."""
    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, builder.logger)
    done = parser.parse(model.SerializeToString())
    layers = [network.get_layer(index).type.name for index in range(network.num_layers)]
    return done, layers, parser.get_error(0).desc() if parser.num_errors else ""


def unpatched() -> onnx.ModelProto:
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("NonZero", ["x"], ["y"], name="nz")],
            "unpatched",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
            [helper.make_tensor_value_info("y", TensorProto.INT64, [2, None])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def test_ours_takes_the_node(trt: Any) -> None:
    register(trt)
    assert parse(trt, patched.single()) == (True, ["PLUGIN_V3"], "")


def test_without_a_creator_the_function_body_is_read(trt: Any) -> None:
    done, layers, error = parse(trt, patched.single())
    assert not done and layers == ["CAST"] and "NonZero plugin creator" in error


def test_without_creator_and_function_nothing_is_found(trt: Any) -> None:
    done, _, error = parse(trt, patched.single(function=False))
    assert not done and "Plugin not found" in error


def test_the_sample_alone_never_serves_our_node(trt: Any, sample: list[str]) -> None:
    done, layers, _ = parse(trt, patched.single())
    assert not done and layers == ["CAST"] and not sample


def test_the_sample_beside_ours_never_serves_our_node(trt: Any, sample: list[str]) -> None:
    register(trt)
    assert parse(trt, patched.single()) == (True, ["PLUGIN_V3"], "")
    assert not sample


@pytest.mark.parametrize(
    "attributes",
    [
        {"plugin_version": None},
        {"plugin_namespace": None, "function": False},
        {"index_type": 7},
        {"max_nonzero": 12},
        {"perm": [1, 0]},
    ],
)
def test_other_spellings_that_must_reach_ours(trt: Any, attributes: dict[str, Any]) -> None:
    register(trt)
    assert parse(trt, patched.single(**attributes)) == (True, ["PLUGIN_V3"], "")


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"backend": "cuda"}, "node 'nz'.*backend 'cuda' is unknown"),
        ({"perm": [0, 0]}, r"node 'nz'.*perm \(0, 0\)"),
        ({"backend": None}, "'backend' is missing"),
        ({"max_nonzero": 2**33}, "max_nonzero 0"),
        ({"shape": []}, "rank 0"),
    ],
)
def test_wrong_attributes_reach_the_caller_in_our_words(
    trt: Any, attributes: dict[str, Any], text: str
) -> None:
    register(trt)
    assert not parse(trt, patched.single(**attributes))[0]
    with pytest.raises(ContractError, match=text):
        callbacks.raise_recorded()


def test_unpatched_models_parse_with_the_second_creator_only(trt: Any) -> None:
    register(trt)
    assert not parse(trt, unpatched())[0]
    register(trt, unpatched=True)
    assert parse(trt, unpatched()) == (True, ["PLUGIN_V3"], "")
    assert parse(trt, patched.single()) == (True, ["PLUGIN_V3"], "")


def test_the_network_api_way_says_that_rtx_has_none(trt: Any) -> None:
    from nonzero_plugin import add_nonzero
    from nonzero_plugin.errors import TensorRTUnavailableError

    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    tensor = network.add_input("x", trt.DataType.FLOAT, (4, 4))
    with pytest.raises(TensorRTUnavailableError, match=r"add_plugin_v3.*ONNX model"):
        add_nonzero(network, tensor)
    with pytest.raises(ContractError, match="layout 'columns' is neither"):
        add_nonzero(network, tensor, layout="columns")  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="is not a TensorRT network"):
        add_nonzero(object(), tensor)


@pytest.mark.parametrize("perm", [[0, 1], [1, 0]])
def test_stored_fields_outlive_the_call_that_made_them(trt: Any, perm: list[int]) -> None:
    """TensorRT borrows the arrays behind its fields and copies them later."""
    import gc

    from helpers.life import through_an_engine
    from nonzero_plugin.dtypes import DType

    register(trt)

    def churn() -> None:
        gc.collect()
        for size in range(1, 64):
            bytearray(b"\xff" * size)

    for _ in range(20):
        loaded, _ = through_an_engine(
            trt, DType.BFLOAT16, (3, 5), perm=perm, index_type=[6], max_nonzero=[77], between=churn
        )
        assert (list(loaded.config.perm), loaded.config.max_nonzero) == (perm, 77)
