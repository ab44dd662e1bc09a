"""Writing small files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from nonzero_rewrite.errors import ModelWriteError


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 through a temporary file in the same folder.

    Raises:
        ModelWriteError: the file cannot be written; what stood there before is untouched.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent or Path())
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as err:
        raise ModelWriteError(
            f"{path}: cannot be written: {err.strerror or err}; choose another place"
        ) from err
