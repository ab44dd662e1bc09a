"""``assert_parity``: holds a patched model to its original in a test, and says what differs.

    from nonzero_rewrite.testing import assert_parity

    def test_detector(tmp_path):
        result = rewrite_model("detector.onnx")
        assert_parity("detector.onnx", result.model)

With pytest there is also a fixture of the same name; nothing has to be imported for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from nonzero_rewrite.inputs import DEFAULT_TIME_BUDGET
from nonzero_rewrite.runtime import Feeds
from nonzero_rewrite.verification import Difference, Outcome, Verification
from nonzero_rewrite.verify import verify_models

__all__ = ["ParityError", "assert_parity", "explain"]

MAX_SHOWN = 10


class ParityError(AssertionError):
    """The models differ, or could not be compared; ``verification`` has everything found."""

    def __init__(self, message: str, verification: Verification) -> None:
        super().__init__(message)
        self.verification = verification


def assert_parity(
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
    """Fail unless ``patched`` computes what ``original`` does, to the bit by default.

    The arguments are those of ``verify_models``; indices are always compared exactly and in order.

    Returns:
        What was compared, when all of it is equal.

    Raises:
        ParityError: with a text that names outputs, first differing positions, NonZero nodes and
            how many items each selected on both sides. Also when the models cannot be compared: a
            test that compares nothing must not pass.
        ModelLoadError, VerificationError: see ``verify_models``.
    """
    __tracebackhide__ = True
    result = verify_models(
        original,
        patched,
        inputs=inputs,
        seed=seed,
        time_budget=time_budget,
        rtol=rtol,
        atol=atol,
        folder=folder,
    )
    if not result.ok:
        raise ParityError(explain(result, original), result)
    return result


def explain(result: Verification, original: str | Path | onnx.ModelProto | None = None) -> str:
    """What differs, for people; with ``original``, also which NonZero an output depends on."""
    if result.outcome is Outcome.NOT_COMPARABLE:
        return f"{result.patched} cannot be compared with {result.original}: {result.reason}"
    compared = sum(case.compared for case in result.cases)
    lines = [
        f"{result.patched} differs from {result.original} "
        f"({', '.join(result.runtimes)}, {compared} cases, seed {result.seed})"
    ]
    sources = _sources(original, result) if original is not None else {}
    for difference in result.differences[:MAX_SHOWN]:
        lines += _difference(difference, result, sources)
    if len(result.differences) > MAX_SHOWN:
        lines.append(f"  ... and {len(result.differences) - MAX_SHOWN} more differences")
    equal = [output.name for output in result.outputs if output.ok]
    if equal:
        lines.append(f"  equal in every case: {', '.join(equal)}")
    return "\n".join(lines)


def _difference(
    difference: Difference, result: Verification, sources: dict[str, list[str]]
) -> list[str]:
    where = f"NonZero {difference.node!r}" if difference.node else ""
    if not where and difference.tensor:
        where = f"output {difference.tensor!r}" if difference.case else repr(difference.tensor)
    case = f" in case {difference.case!r}" if difference.case else ""
    lines = [f"  {where}{case}".rstrip() or "  model"]
    if difference.index is not None:
        lines += [
            f"    first difference at {list(difference.index)}; "
            f"{difference.differing} of {difference.items} items differ",
            f"    - original  {difference.original}",
            f"    + patched   {difference.patched}",
        ]
    else:
        lines.append(f"    {difference.text}")
    wanted = [difference.node] if difference.node else sources.get(difference.tensor, [])
    for selection in result.selected:
        if selection.case == difference.case and selection.node in wanted:
            patched = "not observed" if selection.patched is None else selection.patched
            lines.append(
                f"    NonZero {selection.node!r}: K = {selection.selected} of {selection.items} "
                f"in the original, {patched} in the patched"
            )
    return lines


def _sources(original: str | Path | onnx.ModelProto, result: Verification) -> dict[str, list[str]]:
    """The NonZero nodes each differing output gets data from, nearest first."""
    from nonzero_plugin.onnx_file import nonzero_ancestors

    if not isinstance(original, onnx.ModelProto):
        original = onnx.load(original, load_external_data=False)
    names = {d.tensor for d in result.differences if d.tensor and not d.node}
    return {name: nonzero_ancestors(original, name) for name in names}
