"""A gate for CI: each model must rewrite, stay equal, and have nothing left in the way.

    python examples/ci_gate.py MODELS...

Exits with 0 when all pass, 3 when a patched model differs, 1 for anything else.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nonzero_rewrite import NonZeroRewriteError, rewrite_model, verify_models


def check(path: Path) -> int:
    """The exit code for one model, its reasons on stdout."""
    try:
        result = rewrite_model(path)
        verification = verify_models(path, result.model)
    except NonZeroRewriteError as err:
        print(f"FAIL {err}")
        return 1
    if not verification.ok:
        print(f"FAIL {path}: {verification.outcome}: {verification.reason}")
        return 3 if str(verification.outcome) == "different" else 1
    for blocker in result.blockers:
        print(f"FAIL {path}: {blocker.op_type} {blocker.node!r}: {blocker.reason}")
    for decision in result.plan.decisions:
        if decision.outcome == "left":
            print(f"FAIL {path}: NonZero {decision.site.node!r} is left: {decision.summary}")
    left = result.plan.count("left")
    if result.blockers or left:
        return 1
    print(f"ok   {path}: {len(result.plan.decisions)} NonZero")
    return 0


if __name__ == "__main__":
    paths = [Path(name) for name in sys.argv[1:]] or [Path("models/keypoints.onnx")]
    sys.exit(max([check(path) for path in paths], default=0))
