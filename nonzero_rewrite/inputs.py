"""Inputs for a comparison: searched ones that exercise every mask, and the user's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from nonzero_rewrite.errors import VerificationError
from nonzero_rewrite.goals import Candidate, cover
from nonzero_rewrite.input_files import bind_inputs, load_inputs
from nonzero_rewrite.input_specs import ModelSpec, read_spec
from nonzero_rewrite.observe import Mask, find_masks, fixed_masks, observable_names
from nonzero_rewrite.runtime import Feeds, ModelSource, OrtRunner, RunError, Runner, open_runner
from nonzero_rewrite.scout import is_risky, surviving
from nonzero_rewrite.search import InputSearch, SearchState

__all__ = [
    "DEFAULT_TIME_BUDGET",
    "InputCase",
    "MaskCoverage",
    "VerificationInputs",
    "load_inputs",
    "make_inputs",
]

DEFAULT_TIME_BUDGET = 20.0


@dataclass(frozen=True)
class InputCase:
    """Feeds under a name. ``origin`` is ``searched``, ``edge`` (dims of size 0 or 1) or ``user``.

    ``selected`` has ``(selected, items)`` for each NonZero of the main graph, in graph order.
    """

    name: str
    origin: str
    feeds: Mapping[str, Any]
    selected: tuple[tuple[int, int], ...] = ()

    @property
    def shapes(self) -> dict[str, str]:
        """Input name to its shape, as text."""
        return {name: _shape_text(value) for name, value in self.feeds.items()}


@dataclass(frozen=True)
class MaskCoverage:
    """Whether some case selects none, some and all items of one NonZero.

    ``note`` says why not, where some is missing.
    """

    node: str
    none: bool
    some: bool
    all: bool
    note: str = ""


@dataclass(frozen=True)
class VerificationInputs:
    """Cases to compare on, what they reach, and what the search could not do (``notes``)."""

    cases: tuple[InputCase, ...]
    coverage: tuple[MaskCoverage, ...]
    tries: int
    notes: tuple[str, ...] = ()


def make_inputs(
    model: str | Path | onnx.ModelProto,
    *,
    inputs: Sequence[Feeds] = (),
    seed: int = 0,
    time_budget: float = DEFAULT_TIME_BUDGET,
    folder: Path | None = None,
) -> VerificationInputs:
    """Inputs on which each NonZero of ``model`` selects none, some and all, where that was found.

    Args:
        model: the original model; a ModelProto's external data lies in ``folder``.
        inputs: the user's own feeds, kept as cases and used as starting points.
        seed: the same seed gives the same inputs, unless the time budget cuts the search short.
        time_budget: seconds the search may take.
        folder: where a ModelProto's external data lies.

    Raises:
        VerificationError: the model does not run in onnxruntime on any inputs that were tried.
    """
    source = ModelSource.of(model, label="model", folder=folder)
    observed = Observed.of(source.skeleton)
    try:
        runner = open_runner(source, observed.extra, seed)
    except RunError as err:
        raise VerificationError(f"{source.label}: does not run: {err}") from err
    found = search_inputs(
        runner, source, observed, inputs=inputs, seed=seed, time_budget=time_budget
    )
    if not found.cases:
        raise VerificationError(f"{source.label}: {' '.join(found.notes)}")
    return found


@dataclass(frozen=True)
class Observed:
    """The masks of a model and the tensors to ask for so that they can be watched.

    ``fixed`` are positions of masks that depend on no input's values.
    """

    masks: tuple[Mask, ...]
    extra: tuple[str, ...]
    fixed: frozenset[int]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Observed:
        """Masks of the main graph whose indices a run can return."""
        masks = find_masks(model)
        names = [n for m in masks for n in (m.input, m.indices, m.count, *m.transposed) if n]
        return cls(masks, tuple(observable_names(model, names)), fixed_masks(model, masks))


def search_inputs(
    runner: Runner,
    source: ModelSource,
    observed: Observed,
    *,
    inputs: Sequence[Feeds] = (),
    seed: int = 0,
    time_budget: float = DEFAULT_TIME_BUDGET,
) -> VerificationInputs:
    """As make_inputs, with a runner that already has ``observed.extra`` as outputs.

    Returns no searched case, and a note with the runtime's words, when nothing ran.
    """
    spec = read_spec(source.skeleton)
    search = InputSearch(
        runner,
        spec,
        observed.masks,
        [value.name for value in source.skeleton.graph.output],
        fixed=observed.fixed,
        constants=_constants(source.skeleton, observed.masks),
        scout=_scout(runner, source),
        seed=seed,
        deadline=time.monotonic() + time_budget,
    )
    user = []
    for position, feeds in enumerate(inputs):
        name = f"inputs {position + 1}" if len(inputs) > 1 else "inputs"
        try:
            candidate = search.measure(name, bind_inputs(spec, feeds, name))
        except RunError as err:
            raise VerificationError(
                f"{source.label}: does not run on the given {name}: {err}; check their shapes and "
                "types against the model's inputs"
            ) from err
        user.append(candidate)
        search.add(candidate)
    unsupported = [item for item in spec.inputs if not item.supported]
    if unsupported:
        names = ", ".join(f"{item.name!r} ({item.kind})" for item in unsupported)
        state, note = search.state, f"no inputs can be made for {names}: give them with --inputs"
    else:
        state = search.run(_sizes_of(spec, inputs[0]) if inputs else None)
        note = ""
    cases = [InputCase(c.name, "user", c.feeds, c.selected) for c in user]
    cases += _named_cases(state, user)
    notes = tuple(filter(None, (note, *_notes(state, bool(cases)))))
    coverage = tuple(
        _coverage(i, m, state, i in observed.fixed) for i, m in enumerate(observed.masks)
    )
    return VerificationInputs(tuple(cases), coverage, state.tries, notes)


def _scout(runner: Runner, source: ModelSource) -> Callable[[Sequence[Feeds], float], list[str]]:
    """A scout in another process, where a crash is possible at all."""
    if not isinstance(runner, OrtRunner) or not is_risky(source.skeleton):
        return lambda cases, _timeout: [""] * len(cases)
    outputs = [value.name for value in source.skeleton.graph.output]
    return lambda cases, timeout: surviving(source, outputs, cases, timeout)


def _sizes_of(spec: ModelSpec, feeds: Feeds) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for item, value in ((i, bind_inputs(spec, feeds)[i.name]) for i in spec.inputs):
        for dim, size in zip(item.dims or (), np.shape(value), strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, int(size))
    return sizes


def _constants(model: onnx.ModelProto, masks: Sequence[Mask]) -> dict[str, np.ndarray]:
    """Masks that are initializers: only their number of items is asked for."""
    wanted = {mask.input for mask in masks}
    found = {}
    for tensor in model.graph.initializer:
        if tensor.name in wanted:
            try:
                found[tensor.name] = numpy_helper.to_array(tensor)
            except Exception:  # data left out or external: the dims are what counts
                found[tensor.name] = np.broadcast_to(np.zeros((), bool), tuple(tensor.dims))
    return found


def _named_cases(state: SearchState, user: Sequence[Candidate]) -> list[InputCase]:
    cases = []
    known = {id(candidate) for candidate in (*user, *state.edges)}
    numbers: dict[str, int] = {}
    for candidate in cover(state.reached, user):
        if id(candidate) not in known:
            kind = _kind(candidate)
            numbers[kind] = numbers.get(kind, 0) + 1
            name = kind if numbers[kind] == 1 else f"{kind} {numbers[kind]}"
            cases.append(InputCase(name, "searched", candidate.feeds, candidate.selected))
    cases += [InputCase(c.name, "edge", c.feeds, c.selected) for c in state.edges]
    return cases


def _kind(candidate: Candidate) -> str:
    """What the masks do on it, in one word."""
    filled = [(selected, items) for selected, items in candidate.selected if items]
    if filled and all(selected == 0 for selected, _ in filled):
        return "empty"
    if filled and all(selected == items for selected, items in filled):
        return "full"
    return "random"


def _notes(state: SearchState, any_case: bool) -> list[str]:
    notes = []
    if not any_case and state.first_error:
        notes.append(
            f"the original does not run on any of {state.tries} searched inputs "
            f"({state.first_error}); give inputs that fit with --inputs"
        )
    if state.out_of_time:
        notes.append(f"the search for inputs ended by its time budget after {state.tries} tries")
    if state.edge_failures:
        notes.append(f"the original does not run with {', '.join(state.edge_failures)}")
    return notes


def _coverage(position: int, mask: Mask, state: SearchState, fixed: bool) -> MaskCoverage:
    none, some, full = ((name, position) in state.reached for name in ("none", "some", "all"))
    note = ""
    if not some:
        always = "all" if full and not none else "none" if none and not full else "all or none"
        if not (none or full):
            note = "no searched input reaches it with any item"
        elif fixed:
            note = f"selects {always} of its items whatever the inputs' values are"
        else:
            note = f"selects {always} of its items on each of {state.tries} searched inputs"
    return MaskCoverage(mask.key, none, some, full, note)


def _shape_text(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(_shape_text(item) for item in value)})"
    return "x".join(map(str, np.shape(value))) or "scalar"
