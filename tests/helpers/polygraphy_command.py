"""Runs the installed ``polygraphy`` as a user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_MAIN = "from polygraphy.tools._main import main; import sys; sys.exit(main())"
# What an installation without this package's entry point looks like to Polygraphy.
_NO_EXTENSION = "from importlib import metadata; metadata.entry_points = lambda: {}; "


def polygraphy(
    *arguments: object,
    folder: Path,
    rtx: bool = True,
    extension: bool = True,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Standard output and error come together, as in a terminal."""
    return subprocess.run(
        [sys.executable, "-c", ("" if extension else _NO_EXTENSION) + _MAIN, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "POLYGRAPHY_USE_TENSORRT_RTX": "1" if rtx else "0", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
