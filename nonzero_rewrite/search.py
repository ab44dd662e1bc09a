"""Searches inputs on which every NonZero selects none, some and all of its items.

Random normal values make ``x > 0.99`` empty and ``x != 0`` full, and a parity on such inputs proves
little. So the original is run on many candidates, and a small set is kept which reaches, for each
NonZero, as many of these goals as could be found: some selected, none, all, and what a wrong
rewrite is most likely to get wrong (as many selected as the rank is, -0.0 and NaN looked at).
The result depends on the model and the seed alone, unless the time budget ends the search first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nonzero_rewrite.goals import Candidate, Goal, mask_goals, shapes_of
from nonzero_rewrite.input_sizes import sizings
from nonzero_rewrite.input_specs import ModelSpec
from nonzero_rewrite.input_values import draws_for, make_value, special_draw
from nonzero_rewrite.observe import Mask
from nonzero_rewrite.runtime import Feeds, RunError, Runner

MAX_TRIES = 200
PATIENCE = 40
"""Tries without a new goal after which the search ends, once every mask was partly selected."""
MAX_SHAPES = 4
"""Candidates kept because their output shapes are new: they reach what subgraphs select."""
MAX_EDGE_GROUPS = 6
FEW_ITEMS = 8
LOOK_ON = 4
"""Larger sizes are tried so often when the first that run leave a mask with few items."""
SPECIAL_TURNS = 7
"""Draws of special values: small tensors do not hold all of them at once."""


@dataclass
class SearchState:
    """What was found so far, and why it ended."""

    sizes: dict[str, int] = field(default_factory=dict)
    reached: dict[Goal, Candidate] = field(default_factory=dict)
    edges: list[Candidate] = field(default_factory=list)
    tries: int = 0
    failed: int = 0
    first_error: str = ""
    out_of_time: bool = False
    edge_failures: list[str] = field(default_factory=list)


class InputSearch:
    """One search over one original model. ``outputs`` are its graph outputs.

    ``fixed`` are positions of masks that no input value changes, ``constants`` masks that are
    initializers. ``scout`` says for inputs that may crash the runtime, within so many seconds, why
    the original does not run on each ("" when it does).
    """

    def __init__(
        self,
        runner: Runner,
        spec: ModelSpec,
        masks: Sequence[Mask],
        outputs: Sequence[str],
        *,
        fixed: frozenset[int],
        constants: Mapping[str, np.ndarray],
        scout: Callable[[Sequence[Feeds], float], list[str]],
        seed: int,
        deadline: float,
    ) -> None:
        self._runner = runner
        self._spec = spec
        self._masks = tuple(masks)
        self._outputs = tuple(outputs)
        self._fixed = fixed
        self._constants = constants
        self._scout = scout
        self._seed = seed
        self._deadline = deadline
        self._fed = {item.name for item in spec.inputs}
        self._extremes: dict[int, dict[str, tuple[float, Feeds]]] = {}
        self.state = SearchState()

    def run(self, known_sizes: Mapping[str, int] | None = None) -> SearchState:
        """Search; ``known_sizes`` are sizes of dynamic dims that are known to run."""
        self._find_sizes(known_sizes or {})
        self._sweep()
        self._explore()
        if self._reached:
            self._edges()
        return self.state

    def measure(self, name: str, feeds: Feeds) -> Candidate:
        """Run the original once. Raises RunError with the runtime's words."""
        wanted = list(self._outputs)
        for mask in self._masks:
            wanted += [n for n in (mask.input, mask.indices) if self._must_fetch(n)]
        wanted = list(dict.fromkeys(wanted))
        values = dict(zip(wanted, self._runner.run(wanted, feeds), strict=True))
        selected, goals = [], set()
        for position, mask in enumerate(self._masks):
            looked_at = np.asarray(self._value(mask.input, values, feeds))
            indices = mask.as_nonzero(values[mask.indices])
            selected.append((int(indices.shape[-1]), int(looked_at.size)))
            goals |= mask_goals(position, looked_at, indices)
        shapes = tuple(shapes_of(values[n]) for n in self._outputs)
        goals.add(("shapes", shapes))
        return Candidate(name, feeds, tuple(selected), frozenset(goals))

    def _must_fetch(self, name: str) -> bool:
        return name not in self._fed and name not in self._constants

    def _value(self, name: str, values: Mapping[str, Any], feeds: Feeds) -> Any:
        for known in (values, feeds, self._constants):
            if name in known:
                return known[name]
        raise KeyError(name)

    def _find_sizes(self, known: Mapping[str, int]) -> None:
        """Sizes of the dynamic dims with which the original runs and no mask is tiny."""
        choices = list(sizings(self._spec, known))
        best: tuple[int, dict[str, int]] = (-1, choices[0])
        given = dict(self._reached)
        looked_on = 0
        for sizes in choices:
            self.state.sizes = sizes
            found = self._first_run()
            if found is not None:
                fewest = min((items for _, items in found.selected), default=FEW_ITEMS)
                best = max(best, (fewest, sizes), key=lambda pair: pair[0])
            looked_on += best[0] >= 0
            enough = best[0] >= FEW_ITEMS or looked_on > LOOK_ON
            if enough or not self._spec.symbols or self._late():
                break
        self.state.sizes = best[1]
        if self._spec.inputs and not self._late():
            # The sweep reaches the same and more at the sizes chosen.
            self.state.reached = given
            self._extremes.clear()

    def _first_run(self) -> Candidate | None:
        for choice in (0, 3, 1, 2, 4):
            found = self._try(f"candidate {choice}", self._feeds([choice], 0))
            if found is not None or not self._spec.inputs or self._late():
                return found
        return None

    def _sweep(self) -> None:
        """Every distribution, the same kind for all inputs."""
        longest = max((len(self._draws(i)) for i in range(len(self._spec.inputs))), default=0)
        for choice in range(longest):
            if self._late():
                return
            self._try(f"candidate {choice}", self._feeds([choice], 1))
        if any(self._looks_at_float(position) for position in range(len(self._masks))):
            for turn in range(SPECIAL_TURNS):
                self._try("special values", self._special(turn))

    def _explore(self) -> None:
        """Random combinations and mixtures of the extremes of masks not yet partly selected."""
        if not self._spec.inputs:
            return
        rng = np.random.default_rng([self._seed, 2])
        quiet = 0
        while self.state.tries < MAX_TRIES and not self._late() and self._missing():
            partly_missing = [goal[1] for goal in self._missing() if goal[0] == "some"]
            if not partly_missing and quiet >= PATIENCE:
                return
            before = len(self.state.reached)
            feeds = None
            if partly_missing and rng.random() < 0.6:
                feeds = self._mixture(partly_missing[int(rng.integers(len(partly_missing)))], rng)
            if feeds is None:
                choices = [int(rng.integers(1 << 16)) for _ in self._spec.inputs]
                feeds = self._feeds(choices, int(rng.integers(1 << 31)))
            self._try(f"try {self.state.tries}", feeds)
            quiet = 0 if len(self.state.reached) > before else quiet + 1

    def _edges(self) -> None:
        """Dynamic dims of size 0 and 1, all together and by groups of equal base size."""
        groups: dict[int, list[str]] = {}
        for symbol, size in self.state.sizes.items():
            groups.setdefault(size, []).append(symbol)
        choices = [("/".join(group), group) for group in groups.values()][:MAX_EDGE_GROUPS]
        if len(groups) > 1:
            choices.insert(0, ("every dynamic dim", list(self.state.sizes)))
        base = dict(self.state.sizes)
        planned: list[tuple[str, Feeds]] = []
        for label, symbols in choices:
            for size in (0, 1):
                if any(base[symbol] != size for symbol in symbols):
                    self.state.sizes = {**base, **dict.fromkeys(symbols, size)}
                    name = f"{label} = {size}"
                    planned += [(name, self._feeds([choice], 3)) for choice in (0, 3)]
        self.state.sizes = base
        left = self._deadline - time.monotonic()
        verdicts = self._scout([feeds for _, feeds in planned], left) if planned else []
        runs: dict[str, Candidate] = {}
        reasons: dict[str, str] = {}
        for (name, feeds), verdict in zip(planned, verdicts, strict=True):
            if verdict:
                reasons.setdefault(name, verdict)
            elif name not in runs and (found := self._try(name, feeds)) is not None:
                runs[name] = found
        self.state.edges = list(runs.values())
        for name in dict.fromkeys(name for name, _ in planned):
            if name not in runs:
                crashes = "crashes" in reasons.get(name, "")
                why = "onnxruntime crashes" if crashes else "refused"
                self.state.edge_failures.append(f"{name} ({why})")

    def _missing(self) -> list[Goal]:
        goals = []
        for position in sorted(set(range(len(self._masks))) - self._fixed):
            names = ["some", "none", "all", "several"]
            goals += [(name, position) for name in names if (name, position) not in self._reached]
        return goals

    @property
    def _reached(self) -> dict[Goal, Candidate]:
        return self.state.reached

    def _try(self, name: str, feeds: Feeds) -> Candidate | None:
        self.state.tries += 1
        try:
            candidate = self.measure(name, feeds)
        except RunError as err:
            self.state.failed += 1
            self.state.first_error = self.state.first_error or str(err)
            return None
        self.add(candidate)
        return candidate

    def add(self, candidate: Candidate) -> None:
        """Take the candidate's goals that no earlier one reached."""
        for goal in sorted(candidate.goals, key=repr):
            if goal in self._reached:
                continue
            if goal[0] == "shapes" and sum(g[0] == "shapes" for g in self._reached) >= MAX_SHAPES:
                continue
            self._reached[goal] = candidate
        for position, (selected, items) in enumerate(candidate.selected):
            if ("some", position) in self._reached:
                self._extremes.pop(position, None)
            elif items:
                found = self._extremes.setdefault(position, {})
                found["low" if selected == 0 else "high"] = (selected / items, candidate.feeds)

    def _mixture(self, position: int, rng: np.random.Generator) -> Feeds | None:
        """Between feeds on which the mask is empty and feeds on which it is full."""
        found = self._extremes.get(position, {})
        if len(found) < 2:
            return None
        low, high = found["low"][1], found["high"][1]
        share, blend = rng.random(), rng.random() < 0.4
        mixed: dict[str, Any] = {}
        for name, left in low.items():
            right = high.get(name)
            if not isinstance(left, np.ndarray) or not isinstance(right, np.ndarray):
                mixed[name] = left if rng.random() < share else right
            elif left.shape != right.shape:
                mixed[name] = left
            elif blend and left.dtype.kind == "f":
                mixed[name] = (left + (right - left) * 0.5).astype(left.dtype)
            else:
                mixed[name] = np.where(rng.random(left.shape) < share, left, right)
        return mixed

    def _draws(self, position: int) -> list[Any]:
        return draws_for(self._spec.inputs[position], self._spec, self.state.sizes)

    def _feeds(self, choices: Sequence[int], salt: int) -> Feeds:
        """One value per input; ``choices`` picks distributions, one for all or one for each."""
        feeds = {}
        for position, spec in enumerate(self._spec.inputs):
            draws = self._draws(position)
            choice = choices[position % len(choices)]
            seed = [self._seed, salt, position, choice]
            feeds[spec.name] = make_value(spec, draws[choice % len(draws)], self.state.sizes, seed)
        return feeds

    def _special(self, turn: int) -> Feeds:
        feeds = dict(self._feeds([0], 4))
        for position, spec in enumerate(self._spec.inputs):
            draw = special_draw(spec, turn)
            if draw is not None:
                seed = [self._seed, 5, position, turn]
                feeds[spec.name] = make_value(spec, draw, self.state.sizes, seed)
        return feeds

    def _looks_at_float(self, position: int) -> bool:
        return ("float", position) in self._reached

    def _late(self) -> bool:
        if time.monotonic() < self._deadline:
            return False
        self.state.out_of_time = True
        return True
