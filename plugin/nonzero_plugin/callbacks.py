"""Keeps what a plugin callback raised until TensorRT has returned.

TensorRT's bindings print a callback's traceback and go on with a bare failure code, swallow it, or
(clone, attach_to_context, get_capability_interface) end the process. So every callback is wrapped:
the error is recorded, and whoever called TensorRT raises it with :func:`raise_recorded`.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Recorded:
    """What one callback raised, and the node it was working for where that is known."""

    callback: str
    error: Exception
    node: str
    thread: int


_lock = threading.Lock()
_recorded: list[Recorded] = []
_LIMIT = 64  # a caller that never looks must not collect errors for ever


def record(callback: str, error: Exception, node: str = "") -> None:
    """Keeps ``error`` for the thread that is inside TensorRT now."""
    logger.debug("plugin callback %s raised %s", callback, error)
    with _lock:
        _recorded.append(Recorded(callback, error, node, threading.get_ident()))
        del _recorded[:-_LIMIT]


def take_recorded(*, any_thread: bool = False) -> list[Recorded]:
    """Hands out, oldest first, what callbacks on this thread (or on any) raised, and forgets it."""
    here = threading.get_ident()
    with _lock:
        mine = [entry for entry in _recorded if any_thread or entry.thread == here]
        _recorded[:] = [entry for entry in _recorded if entry not in mine]
    return mine


def raise_recorded(*, any_thread: bool = False) -> None:
    """Raises the first error a callback recorded, as what it is; returns if there is none."""
    for entry in take_recorded(any_thread=any_thread):
        raise entry.error


def reported(method: F) -> F:
    """For callbacks that may raise: TensorRT gets its failure code, the caller gets the error."""
    return _recording(method, None)


def never_raises(fallback: Callable[[Any], Any]) -> Callable[[F], F]:
    """For callbacks that must not raise: records the error, gives ``fallback(self)``."""
    return lambda method: _recording(method, fallback)


def _recording(method: F, fallback: Callable[[Any], Any] | None) -> F:
    @functools.wraps(method)
    def wrapper(self: Any, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            record(method.__name__, error, getattr(self, "node", ""))
            if fallback is None:
                raise
            return fallback(self)

    return wrapper  # type: ignore[return-value]
