"""Compares an engine on the GPU with the original model in onnxruntime.

Inputs are searched on the original, with the shapes of the engine's profile, so that each NonZero
selects none, some and all of its items; all cases run on one execution context, and the first one
again at the end. Shapes are judged before values; integers are exact, floats have a tolerance,
since TensorRT orders sums differently and may use TF32.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from nonzero_plugin.engine_inputs import Array, TensorInfo

from nonzero_rewrite.compare import DifferenceKind, Tolerance, ValueDifference, compare_values
from nonzero_rewrite.errors import VerificationError
from nonzero_rewrite.inputs import DEFAULT_TIME_BUDGET, InputCase, Observed, search_inputs
from nonzero_rewrite.observe import find_unobserved
from nonzero_rewrite.runtime import Feeds, ModelSource, RunError, Runner, open_runner
from nonzero_rewrite.verification import (
    CaseResult,
    Difference,
    Outcome,
    OutputParity,
    Selection,
    Verification,
)

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
    comparison = _EngineComparison(source, loaded, Tolerance(rtol, atol), profile)
    outcome, reason = comparison.run(inputs or (), seed, time_budget)
    return Verification(
        original=source.label,
        patched=str(engine) if isinstance(engine, str | Path) else "engine",
        outcome=outcome,
        reason=reason,
        runtimes=tuple(comparison.runtimes),
        seed=seed,
        rtol=rtol,
        atol=atol,
        cases=tuple(comparison.cases),
        outputs=comparison.outputs(),
        selected=tuple(comparison.selected),
        coverage=comparison.coverage,
        unobserved=find_unobserved(source.skeleton),
        differences=tuple(comparison.differences),
        notes=tuple(dict.fromkeys(comparison.notes)),
        seconds=round(time.monotonic() - started, 3),
    )


def _load(engine: str | Path | RunnableEngine) -> RunnableEngine:
    if not isinstance(engine, str | Path):
        return engine
    from nonzero_plugin.engine import Engine

    loaded: RunnableEngine = Engine(engine)
    return loaded


class _EngineComparison:
    """Collects what one comparison finds."""

    def __init__(
        self, source: ModelSource, engine: RunnableEngine, tolerance: Tolerance, profile: int
    ) -> None:
        self._source = source
        self._engine = engine
        self._tolerance = tolerance
        self._profile = profile
        self._observed = Observed.of(source.skeleton)
        self._names = [value.name for value in source.skeleton.graph.output]
        self._equal = dict.fromkeys(self._names, 0)
        self._compared = dict.fromkeys(self._names, 0)
        self._first: dict[str, str] = {}
        self.runtimes: list[str] = []
        self.cases: list[CaseResult] = []
        self.selected: list[Selection] = []
        self.differences: list[Difference] = []
        self.notes: list[str] = []
        self.coverage: tuple[Any, ...] = ()

    def run(self, inputs: Sequence[Feeds], seed: int, budget: float) -> tuple[Outcome, str]:
        """Compare; the outcome and, unless equal, one sentence why."""
        self._check_interface()
        try:
            runner = open_runner(self._source, self._observed.extra, seed)
        except RunError as err:
            return Outcome.NOT_COMPARABLE, f"the original does not run: {err}"
        self.runtimes += [runner.name, self._engine.version]
        found = search_inputs(
            runner,
            replace(self._source, skeleton=self._with_profile_shapes()),
            self._observed,
            inputs=inputs,
            seed=seed,
            time_budget=budget,
        )
        self.notes += found.notes
        self.coverage = found.coverage
        if not found.cases:
            return Outcome.NOT_COMPARABLE, found.notes[0]
        cases = [*found.cases, replace(found.cases[0], name=f"{found.cases[0].name} again")]
        with self._engine.create_context(self._profile) as context:
            for case in cases:
                self._compare(case, runner, context)
        if self.differences:
            first = self.differences[0]
            return Outcome.DIFFERENT, f"{first.tensor!r} in case {first.case!r}: {first.text}"
        if not any(case.compared for case in self.cases):
            return Outcome.NOT_COMPARABLE, f"no case could be run: {self.cases[0].note}"
        return Outcome.EQUAL, ""

    def outputs(self) -> tuple[OutputParity, ...]:
        """Parity of each graph output."""
        return tuple(
            OutputParity(name, self._compared[name], self._equal[name], self._first.get(name, ""))
            for name in self._names
        )

    def _check_interface(self) -> None:
        wanted = {value.name for value in self._source.skeleton.graph.input}
        for what, ours, theirs in (
            ("inputs", {tensor.name for tensor in self._engine.inputs}, wanted),
            ("outputs", set(self._names), {tensor.name for tensor in self._engine.outputs}),
        ):
            if ours - theirs:
                raise VerificationError(
                    f"the engine is not of this model: {what} {sorted(ours - theirs)} are only on "
                    "one side; compare it with the model it was built from"
                )

    def _with_profile_shapes(self) -> onnx.ModelProto:
        """The original's graph with inputs of the size the engine was tuned for."""
        skeleton = onnx.ModelProto()
        skeleton.CopyFrom(self._source.skeleton)
        inputs = {value.name: value for value in skeleton.graph.input}
        for tensor in self._engine.inputs:
            limits = self._engine.profile_range(tensor.name, self._profile)
            if limits is None:
                continue
            shape = inputs[tensor.name].type.tensor_type.shape
            del shape.dim[:]
            for size in limits[1]:
                shape.dim.add().dim_value = size
        return skeleton

    def _compare(self, case: InputCase, runner: Runner, context: Any) -> None:
        from nonzero_plugin.errors import ContractError
        from nonzero_plugin.promise import any_promise_broken

        shapes = tuple(case.shapes.items())
        feeds = self._representable(case.feeds)
        wanted = {tensor.name: np.asarray(feeds[tensor.name]) for tensor in self._engine.inputs}
        try:
            got: Mapping[str, Array] = context.run(wanted)
        except ContractError as err:  # outside the profile
            self.cases.append(CaseResult(case.name, case.origin, shapes, False, str(err)))
            return
        for mask, (selected, items) in zip(self._observed.masks, case.selected, strict=True):
            self.selected.append(Selection(mask.key, mask.input, case.name, selected, items))
        if any_promise_broken():
            note = "beyond max_nonzero: the engine cut a result short"
            self.cases.append(CaseResult(case.name, case.origin, shapes, False, note))
            return
        self.cases.append(CaseResult(case.name, case.origin, shapes))
        expected = dict(zip(self._names, runner.run(self._names, feeds), strict=True))
        for name in self._names:
            self._compare_output(case.name, name, np.asarray(expected[name]), got[name])

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

    def _compare_output(self, case: str, name: str, expected: Array, got: Array) -> None:
        self._compared[name] += 1
        if expected.dtype == np.float64 and got.dtype == np.float32:
            expected = expected.astype(np.float32)
            self.notes.append(f"output {name!r} is DOUBLE, which TensorRT computes as FLOAT")
        found = compare_values(expected, got, self._tolerance)
        if found is None:
            self._equal[name] += 1
            return
        text = _text(found)
        self._first.setdefault(name, f"{text} (case {case!r})")
        self.differences.append(
            Difference(
                kind=found.kind,
                tensor=name,
                case=case,
                text=text,
                index=found.index,
                original=found.original,
                patched=found.patched,
                differing=found.differing,
                items=found.items,
            )
        )


def _text(found: ValueDifference) -> str:
    if found.kind is DifferenceKind.SHAPE:
        return (
            f"{found.text}; so a NonZero selected another number of items (where its mask compares "
            "computed floats, rounding may move items across the threshold)"
        )
    return found.text.replace("in the patched", "in the engine")
