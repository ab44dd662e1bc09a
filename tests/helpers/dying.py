"""A task whose process dies; here, because a spawned process can import helpers but no test."""

from __future__ import annotations

import os

from nonzero_rewrite.file_task import FileResult, FileTask


def dies(task: FileTask) -> FileResult:
    """Ends its process for ``dies.onnx``, raises for ``bug.onnx``, and is done with the rest."""
    if task.source.name == "dies.onnx":
        os._exit(11)
    if task.source.name == "bug.onnx":
        raise ZeroDivisionError("a bug")
    return FileResult(task.source, 0)
