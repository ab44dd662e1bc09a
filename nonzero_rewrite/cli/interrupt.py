"""Ctrl-C ends a command wherever it falls."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_AGAIN_SECONDS = 0.05


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it, an interrupt that falls into an import comes when the import is done.

    importlib swallows a KeyboardInterrupt in its callbacks, and C extensions make an ImportError
    of it: the command would go on, or say that a package is missing.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            again = threading.Timer(_AGAIN_SECONDS, _send_again)
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _send_again() -> None:
    if hasattr(signal, "pthread_kill"):  # which wakes the main thread, whatever it waits for
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)
