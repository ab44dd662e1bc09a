"""Tasks whose process dies or waits; here, as a spawned process can import helpers but no test."""

from __future__ import annotations

import os
import signal
import time

from nonzero_rewrite.file_task import FileResult, FileTask


def dies(task: FileTask) -> FileResult:
    """Ends its process for ``dies.onnx``, raises for ``bug.onnx``, and is done with the rest."""
    if task.source.name == "dies.onnx":
        os._exit(11)
    if task.source.name == "bug.onnx":
        raise ZeroDivisionError("a bug")
    return FileResult(task.source, 0)


def blocked() -> bool:
    """Whether this process came to its first work with interrupts blocked."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def sleeps(task: FileTask) -> FileResult:
    """Works on its target for a minute, and removes it in the end."""
    task.target.touch()
    try:
        time.sleep(60)
    finally:
        time.sleep(0.5)
        task.target.unlink()
    return FileResult(task.source, 0)
