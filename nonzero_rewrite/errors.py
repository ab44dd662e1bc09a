"""The exceptions of the rewriter that a user can act on. Imports nothing."""

from __future__ import annotations

EXIT_ERROR = 1
EXIT_DIFFERENT = 3
EXIT_BUILD_FAILED = 4
EXIT_INTERRUPTED = 130
"""Exit codes of the command line, and of one model among many; click's own is 2 for wrong usage."""


class NonZeroRewriteError(Exception):
    """Root of everything a user can fix; its text says what, where, why and what to do.

    Broken invariants of this package never derive from it, so they keep their traceback.
    """


class ModelLoadError(NonZeroRewriteError):
    """The file is no ONNX model this tool can read: missing, corrupt, or data files missing."""


class UnsupportedModelError(NonZeroRewriteError):
    """The model is readable, but the tool cannot work on it (no opset import, name clash)."""


class PlanError(NonZeroRewriteError):
    """A rewrite plan does not fit the model or the options it is applied with."""


class ModelWriteError(NonZeroRewriteError):
    """The output cannot be written; whatever stood there before is untouched."""


class VerificationError(NonZeroRewriteError):
    """The comparison itself could not be made (a difference found is a result, not an error)."""
