"""What comparisons of an original model share: its inputs, its runs, the account, the verdict."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nonzero_rewrite.compare import Tolerance, ValueDifference, compare_values
from nonzero_rewrite.inputs import InputCase, MaskCoverage, Observed, search_inputs
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

MAX_DIFFERENCES = 100
"""Differences kept; each output's count of equal cases is complete all the same."""


class Comparison(ABC):
    """Collects what one comparison finds; holds the values of one case at a time.

    A subclass runs the other side and says which of its values stand against which.
    """

    def __init__(
        self, original: ModelSource, patched: str, tolerance: Tolerance, seed: int
    ) -> None:
        self.original = original
        self.observed = Observed.of(original.skeleton)
        self.names = [value.name for value in original.skeleton.graph.output]
        self.seed = seed
        self.runtimes: list[str] = []
        self.selected: list[Selection] = []
        self.differences: list[Difference] = []
        self.notes: list[str] = []
        self._patched = patched
        self._tolerance = tolerance
        self._cases: list[CaseResult] = []
        self._coverage: tuple[MaskCoverage, ...] = ()
        self._equal = dict.fromkeys(self.names, 0)
        self._compared = dict.fromkeys(self.names, 0)
        self._first: dict[str, str] = {}
        self._unstable: set[str] = set()

    @abstractmethod
    def check_interface(self) -> None:
        """Compare names and types of the two sides, before anything runs."""

    @abstractmethod
    def compare_cases(self, original: Runner, cases: Sequence[InputCase]) -> str:
        """Compare on each case; why the sides are not comparable, or nothing."""

    def searched(self) -> ModelSource:
        """The original, as the search for inputs shall see it."""
        return self.original

    def text_of(self, found: ValueDifference) -> str:
        """A difference in the words of this comparison."""
        return found.text

    def verify(self, inputs: Sequence[Feeds], time_budget: float, started: float) -> Verification:
        """Compare; ``started`` is when the caller began, on the monotonic clock."""
        outcome, reason = self._run(inputs, time_budget)
        return Verification(
            original=self.original.label,
            patched=self._patched,
            outcome=outcome,
            reason=reason,
            runtimes=tuple(self.runtimes),
            seed=self.seed,
            rtol=self._tolerance.rtol,
            atol=self._tolerance.atol,
            cases=tuple(self._cases),
            outputs=tuple(self._parity(name) for name in self.names),
            selected=tuple(self.selected),
            coverage=self._coverage,
            unobserved=find_unobserved(self.original.skeleton),
            differences=tuple(self.differences[:MAX_DIFFERENCES]),
            notes=tuple(dict.fromkeys(self.notes)),
            seconds=round(time.monotonic() - started, 3),
        )

    def _run(self, inputs: Sequence[Feeds], time_budget: float) -> tuple[Outcome, str]:
        """The outcome and, unless equal, one sentence why."""
        self.check_interface()
        try:
            original = open_runner(self.original, self.observed.extra, self.seed)
        except RunError as err:
            return Outcome.NOT_COMPARABLE, f"the original does not run: {err}"
        self.runtimes.append(original.name)
        found = search_inputs(
            original,
            self.searched(),
            self.observed,
            inputs=inputs,
            seed=self.seed,
            time_budget=time_budget,
        )
        self.notes += found.notes
        self._coverage = found.coverage
        if not found.cases:
            return Outcome.NOT_COMPARABLE, found.notes[0]
        if refused := self.compare_cases(original, found.cases):
            return Outcome.NOT_COMPARABLE, refused
        if self.differences:
            first = self.differences[0]
            where = f"{first.tensor!r} in case {first.case!r}: " if first.case else ""
            return Outcome.DIFFERENT, where + first.text
        if self._unstable:
            names = ", ".join(sorted(map(repr, self._unstable)))
            return Outcome.NOT_COMPARABLE, (
                f"two runs of the original on the same inputs differ in {names}"
            )
        if not any(case.compared for case in self._cases):
            return Outcome.NOT_COMPARABLE, f"no case could be compared: {self._cases[0].note}"
        return Outcome.EQUAL, ""

    def _parity(self, name: str) -> OutputParity:
        first, unstable = self._first.get(name, ""), name in self._unstable
        return OutputParity(name, self._compared[name], self._equal[name], first, unstable)

    def note_case(self, case: InputCase, why_not: str = "") -> None:
        """List a case as compared, or why its outputs were not."""
        shapes = tuple(case.shapes.items())
        self._cases.append(CaseResult(case.name, case.origin, shapes, not why_not, why_not))

    def compare_outputs(
        self,
        case: InputCase,
        original: Mapping[str, Any],
        patched: Mapping[str, Any],
        again: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Compare the graph outputs; where some differ, the original runs once more."""
        repeated: Mapping[str, Any] | None = None
        for name in self.names:
            self._compared[name] += 1
            found = compare_values(original[name], patched[name], self._tolerance)
            if found is None:
                self._equal[name] += 1
                continue
            repeated = repeated if repeated is not None else again()
            if compare_values(original[name], repeated[name], self._tolerance) is not None:
                self._unstable.add(name)
                continue
            self._first.setdefault(name, f"{self.text_of(found)} (case {case.name!r})")
            self.add(found, name, case.name)

    def add(self, found: ValueDifference, tensor: str, case: str, node: str = "") -> None:
        """Keep a difference of one tensor."""
        self.differences.append(
            Difference(
                kind=found.kind,
                tensor=tensor,
                case=case,
                text=self.text_of(found),
                index=found.index,
                original=found.original,
                patched=found.patched,
                differing=found.differing,
                items=found.items,
                node=node,
            )
        )


def values_of(runner: Runner, names: Sequence[str], feeds: Feeds) -> dict[str, Any]:
    """Name to value of one run."""
    return dict(zip(names, runner.run(names, feeds), strict=True))
