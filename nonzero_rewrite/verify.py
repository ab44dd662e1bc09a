"""Compares an original model with its patched version in onnxruntime.

Types and shapes of the interface first; then, on each case of inputs, how many items each NonZero
selects and which, in order; then each graph output: type, shape, every value.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from nonzero_rewrite.compare import DifferenceKind, Tolerance, ValueDifference, compare_values
from nonzero_rewrite.comparison import Comparison, values_of
from nonzero_rewrite.function import is_our_function, is_ours
from nonzero_rewrite.inputs import DEFAULT_TIME_BUDGET, InputCase, Observed
from nonzero_rewrite.interface import interface_differences
from nonzero_rewrite.node import subgraphs
from nonzero_rewrite.observe import Mask, match_masks
from nonzero_rewrite.rules.tape import RULE_KEY
from nonzero_rewrite.runtime import Feeds, ModelSource, RunError, Runner, same_kind
from nonzero_rewrite.verification import Difference, Selection, Verification

_SELECT_NOTE = (
    "the rewrite selects by Where, and onnxruntime's Where gives 0.0 where it selects -0.0 "
    "(TensorRT's gives -0.0): 0.0 and -0.0 count as equal"
)

_BARE = (
    "the patched file has NonZeroPlugin without the function by which onnxruntime runs it: rewrite "
    "without --no-function, or compare an engine of it (nonzero-rewrite verify ORIGINAL ENGINE)"
)


def verify_models(
    original: str | Path | onnx.ModelProto,
    patched: str | Path | onnx.ModelProto,
    *,
    inputs: Sequence[Feeds] | None = None,
    seed: int = 0,
    time_budget: float = DEFAULT_TIME_BUDGET,
    rtol: float = 0.0,
    atol: float = 0.0,
    folder: str | Path | None = None,
) -> Verification:
    """Run both models on the same inputs and compare everything a user of the model can see.

    Args:
        original: path, or a model in memory.
        patched: path, or a model in memory (as ``rewrite_model`` returns it).
        inputs: the user's own feeds, each a mapping from graph input name (or ``i0, i1, ...``) to
            an array. Searched inputs are always added to them.
        seed: of the searched inputs; equal seeds give equal inputs.
        time_budget: seconds the search for inputs may take.
        rtol, atol: allowed deviation of floats, for rules that change the order of float sums.
            Zero (the default) means bit-equal, NaN included.
        folder: where external data of models in memory lies. Default: the folder of the other
            model, when that one is a path.

    Returns:
        A Verification. Its outcome is ``not comparable``, with a reason, when the original itself
        does not run on any inputs or is not deterministic.

    Raises:
        ModelLoadError: a file is missing or is no ONNX model.
        VerificationError: given inputs do not fit the original, or onnxruntime is missing.
    """
    started = time.monotonic()
    folders = [Path(m).resolve().parent for m in (original, patched) if _is_path(m)]
    default = Path(folder) if folder is not None else next(iter(folders), None)
    left = ModelSource.of(original, label="original", folder=default)
    right = ModelSource.of(patched, label="patched", folder=default)
    tolerance = Tolerance(rtol, atol, signed_zero=not _selects(right.skeleton.graph))
    comparison = _ModelComparison(left, right, tolerance, seed)
    return comparison.verify(inputs or (), time_budget, started)


def _bare(model: onnx.ModelProto) -> bool:
    """True when ``model`` has our nodes, but not the function by which onnxruntime runs them."""
    ours = any(is_ours(node) for node in model.graph.node)
    return ours and not any(map(is_our_function, model.functions))


def _selects(graph: onnx.GraphProto) -> bool:
    """True when a rule wrote a Where into ``graph`` or below."""
    for node in graph.node:
        if node.op_type == "Where" and any(e.key == RULE_KEY for e in node.metadata_props):
            return True
        if any(_selects(body) for _, body in subgraphs(node)):
            return True
    return False


class _ModelComparison(Comparison):
    """Against a model, whose NonZero can be observed too."""

    def __init__(
        self, original: ModelSource, patched: ModelSource, tolerance: Tolerance, seed: int
    ) -> None:
        super().__init__(original, patched.label, tolerance, seed)
        self._model = patched
        self._watched = Observed.of(patched.skeleton)
        self._matched = match_masks(self.observed.masks, self._watched.masks)
        if not tolerance.signed_zero:
            self.notes.append(_SELECT_NOTE)

    def check_interface(self) -> None:
        self.differences += interface_differences(self.original.skeleton, self._model.skeleton)

    def compare_cases(self, original: Runner, cases: Sequence[InputCase]) -> str:
        if self.differences:  # of the interface: the values have nothing to stand against
            return ""
        try:
            patched = same_kind(original, self._model, self._watched.extra, self.seed)
        except RunError as err:
            if _bare(self._model.skeleton):
                return _BARE
            self._note_failure("", err)
            return ""
        left_names = list(dict.fromkeys([*self.names, *self.observed.extra]))
        right_names = list(dict.fromkeys([*self.names, *self._watched.extra]))
        for case in cases:
            left = values_of(original, left_names, case.feeds)
            try:
                right = values_of(patched, right_names, case.feeds)
            except RunError as err:
                self._note_failure(case.name, err)
                self.note_case(case, str(err))
                continue
            over = self._compare_masks(case, left, right)
            self.note_case(case, "beyond max_nonzero of " + ", ".join(over) if over else "")
            if not over:
                again = functools.partial(values_of, original, self.names, case.feeds)
                self.compare_outputs(case, left, right, again)
        return ""

    def _compare_masks(
        self, case: InputCase, left: Mapping[str, Any], right: Mapping[str, Any]
    ) -> list[str]:
        """Compare what each NonZero selects; names of nodes whose promise the case exceeds."""
        over = []
        for mask, (selected, items) in zip(self.observed.masks, case.selected, strict=True):
            ours = self._matched.get(mask.indices)
            if ours is None:
                self.selected.append(Selection(mask.key, mask.input, case.name, selected, items))
                continue
            expected = mask.as_nonzero(left[mask.indices])
            promise = ours.max_nonzero
            beyond = promise is not None and selected > promise
            if beyond:
                over.append(ours.key)
                expected = expected[:, :promise]
                if case.origin == "user":  # real inputs break the promise: that is the finding
                    cut = f"{promise} (its max_nonzero)"
                    broken = ValueDifference(DifferenceKind.COUNT, str(selected), cut)
                    self.add(broken, ours.indices, case.name, node=mask.key)
            indices = np.asarray(right[ours.indices])
            count = int(indices.shape[ours.along]) if indices.ndim else None
            self.selected.append(
                Selection(mask.key, mask.input, case.name, selected, items, count, beyond)
            )
            for difference in compare_masks(expected, indices, ours, right.get(ours.count)):
                self.add(difference, ours.indices, case.name, node=mask.key)
        return over

    def _note_failure(self, case: str, err: RunError) -> None:
        text = f"{DifferenceKind.FAILS}: {err}"
        self.differences.append(Difference(DifferenceKind.FAILS, "", case, text))


def compare_masks(
    expected: np.ndarray, indices: np.ndarray, ours: Mask, count: Any = None
) -> list[ValueDifference]:
    """Differences of one node's indices and count.

    ``expected`` is ``[rank, num_nonzero]`` as NonZero-13 defines it, ``indices`` is in the layout
    of ``ours``, ``count`` its second output or None. The count is judged before the indices.
    """
    wanted = expected.T if ours.rank_last else expected
    extent = expected.shape[-1]
    if count is not None and (np.shape(count) != () or int(count) != extent):
        return [ValueDifference(DifferenceKind.COUNT, str(extent), f"{np.asarray(count)} (count)")]
    if indices.ndim == 2 and indices.shape[1 + ours.along] == wanted.shape[1 + ours.along]:
        got = indices.shape[ours.along]
        if got != extent:
            return [ValueDifference(DifferenceKind.COUNT, str(extent), str(got))]
    if ours.int32:
        wanted = wanted.astype(np.int32)
    found = compare_values(np.ascontiguousarray(wanted), np.ascontiguousarray(indices))
    if found is None:
        return []
    if found.kind is DifferenceKind.VALUES:
        return [
            ValueDifference(
                DifferenceKind.INDICES,
                f"{found.original} at {list(found.index or ())}",
                found.patched,
                found.index,
                found.differing,
                found.items,
            )
        ]
    return [found]


def _is_path(model: Any) -> bool:
    return not isinstance(model, onnx.ModelProto)
