"""Notices when more elements were non-zero than a node's ``max_nonzero`` promised."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any

logger = logging.getLogger(__name__)

_lock = threading.Lock()
_watches: weakref.WeakSet[PromiseWatch] = weakref.WeakSet()


class PromiseWatch:
    """Asks the launches of one context, and logs the first broken promise of its context.

    Args:
        node: the node's name, for the message.
        max_nonzero: what was promised.
    """

    def __init__(self, node: str, max_nonzero: int) -> None:
        self._node, self._max = node, max_nonzero
        self._launch: Any = None
        self._logged = self._broken = False
        with _lock:
            _watches.add(self)

    def watch(self, launch: Any) -> None:
        """From now on ask ``launch`` (a ``backends.Launch``), after a last look at the one before.

        A launch answers for runs whose stream was synchronised with.
        """
        self.look()
        self._launch = launch

    def look(self) -> None:
        """Reads a word of host memory; no call to CUDA."""
        if self._launch is None or not self._launch.overflowed():
            return
        self._broken = True
        if not self._logged:
            self._logged = True
            logger.warning(
                "node %r: more than max_nonzero = %d elements were non-zero, and the first %d were "
                "given; build with a larger one",
                self._node,
                self._max,
                self._max,
            )

    def take(self) -> bool:
        """Whether the promise was broken since this was asked last."""
        self.look()
        broken, self._broken = self._broken, False
        return broken


def any_promise_broken() -> bool:
    """Whether any context of this process broke one since the last call; synchronise first."""
    with _lock:
        watches = list(_watches)
    return any([watch.take() for watch in watches])
