"""Refuses graphs that no runtime can run: values made twice, or out of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nonzero_rewrite.errors import UnsupportedModelError
from nonzero_rewrite.node import NOT_UTF8

if TYPE_CHECKING:
    from nonzero_rewrite.index import Index


def check_names(index: Index, by_type: dict[str, list[int]]) -> None:
    """Protobuf gives bytes for what is not UTF-8; no name may be one."""
    groups = (index.producer, index.uses, by_type, index.inputs, index.outputs, index.initializers)
    if any(bytes in set(map(type, names)) for names in groups):
        raise UnsupportedModelError(NOT_UTF8)


def check_order(index: Index) -> None:
    """Refuse nodes that wait for each other; those that merely stand in any order pass.

    Raises:
        UnsupportedModelError: two nodes make one value, or a value follows from itself.
    """
    place = index.path or "the main graph"
    made: dict[str, int] = {}
    for handle, node in enumerate(index.nodes):
        for name in node.output:
            if name and made.setdefault(name, handle) != handle:
                raise UnsupportedModelError(
                    f"value {name!r} in {place} is made by two nodes, "
                    f"{index.label(made[name])!r} and {index.label(handle)!r}, so no runtime "
                    "can run the model; export it again"
                )
    waiting = [sum(name in index.producer for name in node.input if name) for node in index.nodes]
    ready = [handle for handle, count in enumerate(waiting) if not count]
    for handle in ready:
        for name in index.nodes[handle].output:
            for user in index.uses.get(name, ()):
                waiting[user] -= 1
                if not waiting[user]:
                    ready.append(user)
    if len(ready) < len(index.nodes):
        stuck = next(handle for handle, count in enumerate(waiting) if count)
        raise UnsupportedModelError(
            f"node {index.label(stuck)!r} in {place} waits for its own result, so no runtime "
            "can run the model; export it again"
        )
