"""The result of a comparison: plain data, picklable, and JSON-ready through ``to_dict``."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from nonzero_rewrite.compare import DifferenceKind, Words
from nonzero_rewrite.inputs import MaskCoverage

FORMAT_VERSION = 1
"""Version of the JSON layout; grows when a key changes its meaning or goes away."""


class Outcome(Words):
    """What a comparison found out."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Difference:
    """One difference between the models.

    ``tensor`` is a graph output, or a NonZero's indices or count; ``case`` is the name of the case
    it was found in ("" for the interface). ``index`` is the first differing position in row-major
    order, ``original`` and ``patched`` are what stands there, ``differing`` of ``items`` differ.
    """

    kind: DifferenceKind
    tensor: str
    case: str
    text: str
    index: tuple[int, ...] | None = None
    original: str = ""
    patched: str = ""
    differing: int = 0
    items: int = 0
    node: str = ""


@dataclass(frozen=True)
class OutputParity:
    """One graph output: equal in ``equal`` of ``cases`` compared cases.

    ``unstable`` says that two runs of the original on the same inputs differ from each other.
    """

    name: str
    cases: int
    equal: int
    difference: str
    unstable: bool

    @property
    def ok(self) -> bool:
        """Equal in every case, and in at least one."""
        return self.cases > 0 and self.equal == self.cases


@dataclass(frozen=True)
class Selection:
    """What one NonZero of the original's main graph selected in one case.

    ``selected`` of ``items`` items; ``patched`` is the count in the patched model, None when no
    node there computes these indices. ``over_promise`` says that ``selected`` exceeds the node's
    ``max_nonzero``.
    """

    node: str
    input: str
    case: str
    selected: int
    items: int
    patched: int | None = None
    over_promise: bool = False


@dataclass(frozen=True)
class CaseResult:
    """One set of inputs. ``compared`` is False where outputs were not compared; ``note`` says why.

    ``origin`` is ``searched``, ``edge`` or ``user``; ``shapes`` are the inputs' as text.
    """

    name: str
    origin: str
    shapes: tuple[tuple[str, str], ...]
    compared: bool
    note: str


@dataclass(frozen=True)
class Verification:
    """Original against patched.

    ``coverage`` says for each NonZero of the main graph whether none, some and all of its items
    were selected in some case; ``unobserved`` names those in subgraphs and functions, which are
    compared only through the outputs.
    """

    original: str
    patched: str
    outcome: Outcome
    reason: str
    runtimes: tuple[str, ...]
    seed: int
    rtol: float
    atol: float
    cases: tuple[CaseResult, ...] = ()
    outputs: tuple[OutputParity, ...] = ()
    selected: tuple[Selection, ...] = ()
    coverage: tuple[MaskCoverage, ...] = ()
    unobserved: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True when the models were compared and no difference was found."""
        return self.outcome is Outcome.EQUAL

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers for JSON."""
        data: dict[str, Any] = {"format_version": FORMAT_VERSION, "ok": self.ok, **asdict(self)}
        data["cases"] = [{**case, "shapes": dict(case["shapes"])} for case in data["cases"]]
        plain: dict[str, Any] = _plain(data)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
