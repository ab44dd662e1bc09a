"""What an output may not be: a folder, a device, an input, or another output of the same work.

Outputs replace what stands in their place, so each is checked before any work is done.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path

NO_FILE = "there is no such file; check the path"
_NAME_PART = 40
"""Characters of a file's name in that of its temporary: at most 160 bytes of the usual 255."""


def problem_of(
    path: Path, inputs: Iterable[Path | None] = (), others: Iterable[Path | None] = ()
) -> str | None:
    """The sentence that refuses ``path`` as an output, or None where it is fit for one.

    Args:
        path: the file that would be written or replaced.
        inputs: files that are read; None stands for one that was not given.
        others: the other outputs, in the same way.
    """
    if any(each is not None and is_same(path, each) for each in inputs):
        return f"{path}: is an input of this command; choose another output"
    if any(each is not None and is_same(path, each) for each in others):
        return f"{path}: is named for two outputs of this command; choose another for one"
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except (OSError, ValueError) as err:  # ValueError: a name with a zero byte
        return f"{path}: cannot be written: {words(err)}; choose another"
    if stat.S_ISDIR(mode):
        return f"{path}: is a folder; name a file in it"
    if not stat.S_ISREG(mode):
        return f"{path}: is a device or a pipe, which a file would take the place of; name a file"
    if not path.parent.is_dir():
        return (
            f"{path}: cannot be written: its folder {path.parent} does not exist; make it, or "
            "choose another one"
        )
    if not os.access(path.parent, os.W_OK):
        folder = path.parent
        return f"{path}: cannot be written: its folder {folder} is read-only; choose another place"
    return None


def not_written(path: Path, err: OSError) -> str:
    """The sentence for an output that could not be written after all."""
    return f"{path}: cannot be written: {words(err)}; choose another place or make room"


def not_read(path: Path, err: OSError) -> str:
    """The sentence for an input that cannot be read."""
    return f"{path}: cannot be read: {words(err)}; check the path"


def temporary_for(path: Path) -> Path:
    """A new name beside ``path`` for what will replace it: starts with a dot, ends in ``.tmp``."""
    return path.with_name(f".{path.name[:_NAME_PART]}.{uuid.uuid4().hex}.tmp")


def remove(path: Path) -> None:
    """Takes a temporary file away, where that can be done; what went wrong before counts more."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def is_same(one: Path, other: Path) -> bool:
    """Whether both name one file, be it through a link, or before it is there."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return _real(one) == _real(other)


def _real(path: Path) -> str:
    return os.path.normcase(os.path.realpath(path))


def words(err: Exception) -> str:
    """What the system says of an error, without its number and the path."""
    return getattr(err, "strerror", None) or str(err)
