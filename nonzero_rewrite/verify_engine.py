"""Compares an engine on the GPU with the original model in onnxruntime.

Inputs are searched on the original, with the shapes of the engine's profile, so that each NonZero
selects none, some and all of its items; all cases run on one execution context, and the first one
again at the end. Shapes are judged before values; integers are exact, floats have a tolerance,
since TensorRT orders sums differently and may use TF32.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from nonzero_plugin.engine_inputs import Array, TensorInfo

from nonzero_rewrite.compare import DifferenceKind, Tolerance, ValueDifference
from nonzero_rewrite.comparison import Comparison, values_of
from nonzero_rewrite.errors import VerificationError
from nonzero_rewrite.inputs import DEFAULT_TIME_BUDGET, InputCase
from nonzero_rewrite.runtime import Feeds, ModelSource, Runner
from nonzero_rewrite.verification import Selection, Verification

DEFAULT_RTOL = 1e-2
DEFAULT_ATOL = 1e-3
"""For floats of an engine: TF32 keeps 10 bits of mantissa in matrix products and convolutions."""


class RunnableEngine(Protocol):
    """What is asked of ``nonzero_plugin.engine.Engine``."""

    version: str

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Its inputs."""
        ...

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Its outputs."""
        ...

    def profile_range(self, name: str, profile: int) -> list[tuple[int, ...]] | None:
        """Smallest, tuned-for and largest shape of an input, or None."""
        ...

    def create_context(self, profile: int = 0) -> Any:
        """A context with ``run`` and ``close``."""
        ...


def verify_engine(
    original: str | Path | onnx.ModelProto,
    engine: str | Path | RunnableEngine,
    *,
    inputs: Sequence[Feeds] | None = None,
    seed: int = 0,
    time_budget: float = DEFAULT_TIME_BUDGET,
    rtol: float = 0.0,
    atol: float = 0.0,
    profile: int = 0,
) -> Verification:
    """Run the original in onnxruntime and the engine on the GPU, on the same inputs, and compare.

    Args:
        original: the model before rewriting: path, or a model in memory.
        engine: the engine's file, or a loaded engine.
        inputs: the user's own feeds, as in ``verify_models``; searched ones are added.
        seed: of the searched inputs.
        time_budget: seconds the search may take.
        rtol, atol: allowed deviation of floats; both zero take the defaults of this module.
        profile: number of the engine's optimization profile.

    Returns:
        A Verification. ``Selection.patched`` is None: an engine does not show its counts; what a
        NonZero selected shows in the shapes of the outputs behind it.

    Raises:
        EngineLoadError: no GPU, not this GPU, or not this engine; in the library's words.
        VerificationError: the interfaces of model and engine do not fit.
    """
    started = time.monotonic()
    if not rtol and not atol:
        rtol, atol = DEFAULT_RTOL, DEFAULT_ATOL
    loaded = _load(engine)
    source = ModelSource.of(original, label="original")
    label = str(engine) if isinstance(engine, str | Path) else "engine"
    comparison = _EngineComparison(source, loaded, label, Tolerance(rtol, atol), seed, profile)
    return comparison.verify(inputs or (), time_budget, started)


def _load(engine: str | Path | RunnableEngine) -> RunnableEngine:
    if not isinstance(engine, str | Path):
        return engine
    from nonzero_plugin.engine import Engine

    loaded: RunnableEngine = Engine(engine)
    return loaded


class _EngineComparison(Comparison):
    """Against an engine, which shows its outputs alone."""

    def __init__(
        self,
        original: ModelSource,
        engine: RunnableEngine,
        label: str,
        tolerance: Tolerance,
        seed: int,
        profile: int,
    ) -> None:
        super().__init__(original, label, tolerance, seed)
        self._engine = engine
        self._profile = profile

    def check_interface(self) -> None:
        wanted = {value.name for value in self.original.skeleton.graph.input}
        for what, ours, theirs in (
            ("inputs", {tensor.name for tensor in self._engine.inputs}, wanted),
            ("outputs", set(self.names), {tensor.name for tensor in self._engine.outputs}),
        ):
            if ours - theirs:
                raise VerificationError(
                    f"the engine is not of this model: {what} {sorted(ours - theirs)} are only on "
                    "one side; compare it with the model it was built from"
                )

    def searched(self) -> ModelSource:
        """With inputs of the size the engine was tuned for."""
        skeleton = onnx.ModelProto()
        skeleton.CopyFrom(self.original.skeleton)
        inputs = {value.name: value for value in skeleton.graph.input}
        for tensor in self._engine.inputs:
            limits = self._engine.profile_range(tensor.name, self._profile)
            if limits is None:
                continue
            shape = inputs[tensor.name].type.tensor_type.shape
            del shape.dim[:]
            for size in limits[1]:
                shape.dim.add().dim_value = size
        return replace(self.original, skeleton=skeleton)

    def compare_cases(self, original: Runner, cases: Sequence[InputCase]) -> str:
        self.runtimes.append(self._engine.version)
        again = replace(cases[0], name=f"{cases[0].name} again")
        with self._engine.create_context(self._profile) as context:
            for case in (*cases, again):
                self._compare(case, original, context)
        return ""

    def _compare(self, case: InputCase, original: Runner, context: Any) -> None:
        from nonzero_plugin.errors import ContractError
        from nonzero_plugin.promise import any_promise_broken

        feeds = self._representable(case.feeds)
        wanted = {tensor.name: np.asarray(feeds[tensor.name]) for tensor in self._engine.inputs}
        try:
            got: Mapping[str, Array] = context.run(wanted)
        except ContractError as err:  # outside the profile
            self.note_case(case, str(err))
            return
        for mask, (selected, items) in zip(self.observed.masks, case.selected, strict=True):
            self.selected.append(Selection(mask.key, mask.input, case.name, selected, items))
        if any_promise_broken():
            self.note_case(case, "beyond max_nonzero: the engine cut a result short")
            return
        self.note_case(case)
        expected = functools.partial(self._expected, original, feeds, got)
        self.compare_outputs(case, expected(), got, expected)

    def _expected(
        self, original: Runner, feeds: Feeds, got: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The original's outputs, in the types that the engine can have."""
        values = {}
        for name, value in values_of(original, self.names, feeds).items():
            values[name] = np.asarray(value)
            if values[name].dtype == np.float64 and got[name].dtype == np.float32:
                values[name] = values[name].astype(np.float32)
                self.notes.append(f"output {name!r} is DOUBLE, which TensorRT computes as FLOAT")
        return values

    def _representable(self, feeds: Feeds) -> dict[str, Any]:
        """The feeds with values both sides can hold: TensorRT turns DOUBLE into FLOAT."""
        types = {tensor.name: tensor.dtype for tensor in self._engine.inputs}
        result = {}
        for name, value in feeds.items():
            array = value
            if np.asarray(value).dtype == np.float64 and types.get(name) == np.float32:
                array = np.asarray(value).astype(np.float32).astype(np.float64)
                self.notes.append(f"input {name!r} is DOUBLE, which TensorRT computes as FLOAT")
            result[name] = array
        return result

    def text_of(self, found: ValueDifference) -> str:
        if found.kind is DifferenceKind.SHAPE:
            return (
                f"{found.text}; so a NonZero selected another number of items (where its mask "
                "compares computed floats, rounding may move items across the threshold)"
            )
        return found.text.replace("in the patched", "in the engine")
