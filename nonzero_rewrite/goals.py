"""What a comparison's inputs should reach, and a small set of inputs that reaches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nonzero_rewrite.input_values import float_info

Goal = tuple[str, Any]


@dataclass(frozen=True)
class Candidate:
    """Feeds that run, with what each mask selected on them: ``(selected, items)``."""

    name: str
    feeds: Mapping[str, Any]
    selected: tuple[tuple[int, int], ...]
    goals: frozenset[Goal]


def cover(reached: Mapping[Goal, Candidate], order: Sequence[Candidate] = ()) -> list[Candidate]:
    """A small set of candidates that reaches all goals: the one with most open goals first."""
    unique = list({id(c): c for c in (*order, *reached.values())}.values())
    open_goals = set(reached)
    chosen = []
    while open_goals:
        best = max(unique, key=lambda candidate: len(candidate.goals & open_goals))
        chosen.append(best)
        open_goals -= best.goals
    return chosen


def mask_goals(position: int, looked_at: np.ndarray, indices: np.ndarray) -> set[Goal]:
    """What one run reaches for the mask at ``position``; ``indices`` is ``[rank, num_nonzero]``."""
    selected, items = indices.shape[-1], looked_at.size
    goals: set[Goal] = set()
    if not items:
        return goals
    if selected == 0:
        goals.add(("none", position))
    elif selected == items:
        goals.add(("all", position))
    else:
        goals.add(("some", position))
        if selected >= 2:
            goals.add(("several", position))
        if indices.shape[0] == selected > 1 and not np.array_equal(indices, indices.T):
            goals.add(("as many as the rank", position))
    if looked_at.dtype.kind not in "biucOUS":
        with np.errstate(invalid="ignore"):
            size = np.abs(looked_at)
            small = (size > 0) & (size < float_info(looked_at.dtype).smallest_normal)
        seen = {
            "float": True,
            "-0.0": np.any((looked_at == 0) & np.signbit(looked_at)),
            "NaN": np.any(np.isnan(looked_at)),
            "subnormal": np.any(small),
        }
        goals |= {(name, position) for name, reached in seen.items() if reached}
    return goals


def shapes_of(value: Any) -> Any:
    """The shape of an array, or of each element of a sequence."""
    if isinstance(value, list):
        return tuple(shapes_of(item) for item in value)
    return getattr(value, "shape", ())
