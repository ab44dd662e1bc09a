"""The comparison of engine and original, with recorded runs: onnxruntime plays the engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import patched
from nonzero_plugin.engine_inputs import TensorInfo, check_inputs
from nonzero_plugin.errors import EngineLoadError
from onnx import TensorProto, helper
from onnx.inliner import inline_local_functions

from nonzero_rewrite.errors import VerificationError
from nonzero_rewrite.verification import Outcome
from nonzero_rewrite.verify_engine import verify_engine


class OrtEngine:
    """A FAKE engine: onnxruntime on a patched model, with the limits of a profile.

    ``spoil`` changes the outputs of each run before they are returned.
    """

    version = "onnxruntime as engine"

    def __init__(self, model: onnx.ModelProto, ranges: Mapping[str, list[tuple[int, ...]]]) -> None:
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        self.ranges = ranges
        self.runs: list[dict[str, Any]] = []
        self.spoil: Any = lambda outputs: outputs

    def _tensors(self, found: Any, is_input: bool) -> tuple[TensorInfo, ...]:
        types = {"tensor(float)": "float32", "tensor(bool)": "bool", "tensor(int64)": "int64"}
        return tuple(
            TensorInfo(arg.name, (-1,) * len(arg.shape), np.dtype(types[arg.type]), is_input, False)
            for arg in found
        )

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self._tensors(self.session.get_inputs(), True)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return self._tensors(self.session.get_outputs(), False)

    def profile_range(self, name: str, profile: int) -> list[tuple[int, ...]] | None:
        return self.ranges.get(name)

    def create_context(self, profile: int = 0) -> Any:
        return self

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        arrays = check_inputs(self, inputs, 0)
        self.runs.append(arrays)
        names = [tensor.name for tensor in self.outputs]
        outputs = dict(zip(names, self.session.run(names, arrays), strict=True))
        spoiled: dict[str, Any] = self.spoil(outputs)
        return spoiled

    def __enter__(self) -> OrtEngine:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def original() -> onnx.ModelProto:
    """x[mask], as exporters write it."""
    return helper.make_model(
        helper.make_graph(
            [
                helper.make_node("NonZero", ["mask"], ["found"], name="nz"),
                helper.make_node("Transpose", ["found"], ["indices"], perm=[1, 0]),
                helper.make_node("GatherND", ["x", "indices"], ["y"]),
            ],
            "original",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
                helper.make_tensor_value_info("mask", TensorProto.BOOL, ["n"]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k", 4])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


RANGES = {"x": [(1, 4), (6, 4), (9, 4)], "mask": [(1,), (6,), (9,)]}


@pytest.fixture
def engine() -> OrtEngine:
    return OrtEngine(patched.gather_nd(), RANGES)


def test_equal_on_empty_mixed_full_and_back_on_one_context(engine: OrtEngine) -> None:
    result = verify_engine(original(), engine)
    assert result.outcome is Outcome.EQUAL and result.ok, result
    counts = [int(run["mask"].sum()) for run in engine.runs]
    assert {0, 6} <= set(counts) and any(0 < count < 6 for count in counts)
    assert all(run["mask"].shape == (6,) for run in engine.runs), "the profile's own shapes"
    np.testing.assert_array_equal(engine.runs[0]["mask"], engine.runs[-1]["mask"])
    assert result.cases[-1].name == f"{result.cases[0].name} again"
    assert result.rtol == 1e-2 and result.runtimes[1] == "onnxruntime as engine"
    assert {(s.node, s.items) for s in result.selected} == {("nz", 6)}


def test_b44_a_wrong_shape_is_told_before_any_value(engine: OrtEngine) -> None:
    engine.spoil = lambda outputs: {"y": np.resize(outputs["y"], (outputs["y"].shape[0] + 1, 4))}
    result = verify_engine(original(), engine)
    assert result.outcome is Outcome.DIFFERENT and "shape differs" in result.reason
    assert "another number of items" in result.reason


def test_floats_have_a_tolerance_and_it_is_stated(engine: OrtEngine) -> None:
    engine.spoil = lambda outputs: {"y": outputs["y"] * np.float32(1.004)}
    assert verify_engine(original(), engine).ok
    result = verify_engine(original(), engine, rtol=1e-4)
    assert result.outcome is Outcome.DIFFERENT and "in the engine" in result.reason
    assert (result.rtol, result.atol) == (1e-4, 0.0)


def test_integers_are_exact() -> None:
    model = patched.single(TensorProto.BOOL, ["n"])
    plain = inline_local_functions(model)
    engine = OrtEngine(model, {"x": [(1,), (5,), (9,)]})
    assert verify_engine(plain, engine).ok
    engine.spoil = lambda outputs: {"indices": outputs["indices"][:, ::-1]}
    result = verify_engine(plain, engine)
    assert result.outcome is Outcome.DIFFERENT and "values differ" in result.reason


def test_an_original_that_rolls_dice_is_not_held_against_the_engine() -> None:
    vector = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [8]) for name in "xy"}
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("RandomNormalLike", ["x"], ["y"])], "g", [vector["x"]], [vector["y"]]
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    result = verify_engine(model, OrtEngine(model, {"x": [(8,)] * 3}))
    assert result.outcome is Outcome.NOT_COMPARABLE, result
    assert "two runs of the original" in result.reason and result.outputs[0].unstable


def test_cases_outside_the_profile_are_listed_not_compared(engine: OrtEngine) -> None:
    large = {"x": np.ones((50, 4), np.float32), "mask": np.ones(50, bool)}
    small = {"x": np.ones((9, 4), np.float32), "mask": np.ones(9, bool)}
    result = verify_engine(original(), engine, inputs=[large, small])
    assert result.ok
    skipped = [case for case in result.cases if not case.compared]
    assert all("outside (1, 4) to (9, 4)" in case.note for case in skipped)
    assert {case.name for case in skipped} >= {"inputs 1"}
    assert "inputs 2" in {case.name for case in result.cases if case.compared}


def test_an_engine_of_another_model_is_refused(engine: OrtEngine) -> None:
    other = inline_local_functions(patched.single())
    with pytest.raises(VerificationError, match="not of this model"):
        verify_engine(other, engine)


def test_without_a_gpu_or_engine_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "none.engine"
    with pytest.raises(EngineLoadError, match=r"none\.engine: cannot be read"):
        verify_engine(original(), path)
