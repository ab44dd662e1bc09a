"""Inputs on which masks select a chosen share of their items, for benchmarks and other tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from nonzero_rewrite.errors import VerificationError
from nonzero_rewrite.inputs import DEFAULT_TIME_BUDGET, InputCase, make_inputs

DEFAULT_DENSITIES = (0.0, 0.1, 0.5, 1.0)
_STEPS = 8
"""Mixtures tried between two cases; densities are met about as finely."""


@dataclass(frozen=True)
class DensityInputs:
    """Feeds for one wanted density (share of items that are non-zero), and what they reach.

    ``reached`` has the density of each NonZero of the main graph, in graph order; a mask without
    items counts as the wanted one.
    """

    wanted: float
    reached: tuple[float, ...]
    feeds: Mapping[str, Any]


def inputs_of_density(
    model: str | Path | onnx.ModelProto,
    densities: Sequence[float] = DEFAULT_DENSITIES,
    *,
    seed: int = 0,
    time_budget: float = DEFAULT_TIME_BUDGET,
    folder: Path | None = None,
) -> list[DensityInputs]:
    """For each density, the feeds found whose masks come closest to it.

    Masks are computed inside the model, so a density can be missed; ``reached`` says by how much.

    Args:
        model: path, or a model whose external data lies in ``folder``.
        densities: numbers from 0 to 1.
        seed: equal seeds give equal feeds.
        time_budget: seconds the search for inputs may take.
        folder: see ``model``.

    Raises:
        VerificationError: a density is out of range, or the model does not run.
    """
    for density in densities:
        if not 0 <= density <= 1:
            raise VerificationError(f"density {density} is not between 0 and 1")
    found = make_inputs(model, seed=seed, time_budget=time_budget, folder=folder)
    cases = [case for case in found.cases if case.origin != "edge"] or list(found.cases)
    mixed = list(_mixtures(cases, seed))
    if mixed:
        try:
            again = make_inputs(model, inputs=mixed, seed=seed, time_budget=0, folder=folder)
            cases += [case for case in again.cases if case.origin == "user"]
        except VerificationError:
            pass  # a mixture can break what the model asks of its inputs: the cases do without
    return [_closest(cases, density) for density in densities]


def _closest(cases: Sequence[InputCase], wanted: float) -> DensityInputs:
    def reached(case: InputCase) -> tuple[float, ...]:
        return tuple(k / n if n else wanted for k, n in case.selected)

    best = min(cases, key=lambda case: sum(abs(share - wanted) for share in reached(case)))
    return DensityInputs(wanted, reached(best), best.feeds)


def _mixtures(cases: Sequence[InputCase], seed: int) -> Iterator[dict[str, Any]]:
    """Item by item from the emptiest and the fullest case of equal shapes."""
    groups: dict[tuple[tuple[str, str], ...], list[InputCase]] = {}
    for case in cases:
        groups.setdefault(tuple(case.shapes.items()), []).append(case)
    group = max(groups.values(), key=len)
    low, high = min(group, key=_total).feeds, max(group, key=_total).feeds
    rng = np.random.default_rng([seed, 7])
    if low is high:
        return
    for step in range(1, _STEPS):
        share = step / _STEPS
        yield {name: _mix(low[name], high[name], share, rng) for name in low}
    for share in (0.01, 0.05, 0.1, 0.9, 0.99):
        yield {name: _mix(low[name], high[name], share, rng) for name in low}


def _total(case: InputCase) -> float:
    return sum(k / n for k, n in case.selected if n)


def _mix(low: Any, high: Any, share: float, rng: np.random.Generator) -> Any:
    if not isinstance(low, np.ndarray) or not isinstance(high, np.ndarray):
        return high if rng.random() < share else low
    return np.where(rng.random(low.shape) < share, high, low)
