"""Standard output and error that outlive whoever reads them.

``nonzero-rewrite verify A B | head -1`` closes the pipe after a line. The run goes on without it:
files are written, and the exit code is the verdict's, not the pipe's.
"""

from __future__ import annotations

import errno
import io
import sys
from typing import Any

import click

_READER_GONE = (errno.EPIPE, errno.EINVAL)  # the second on Windows


def outlive_readers() -> None:
    """Put such streams in the place of the process's own, unless they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__") or stream.isatty():
            continue
        stream.flush()
        lasting = io.TextIOWrapper(
            io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False)),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
        )
        setattr(sys, name, lasting)


class _Lasting(io.FileIO):
    """Drops what nobody reads; says once, as an error, what else keeps it from being written."""

    _failed = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as err:
            if err.errno in _READER_GONE or self._failed:
                return len(data)
            self._failed = True
            raise click.ClickException(
                f"the output cannot be written: {err.strerror}; make room, or send it elsewhere"
            ) from err
