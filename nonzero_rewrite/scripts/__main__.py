"""Print where a script of this folder lies: ``python -m nonzero_rewrite.scripts trt_config``.

``rtx_libraries`` prints the folder from which TensorRT for RTX's Linux wheel finds all of its
libraries, and nothing where that is not needed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

_FOLDER = Path(__file__).parent
_LIBRARIES = "rtx_libraries"
_NAMES = [*sorted(path.stem for path in _FOLDER.glob("[!_]*.py")), _LIBRARIES]


def main() -> int:
    """Print the path; 2 for a name that is none."""
    if len(sys.argv) != 2 or sys.argv[1] not in _NAMES:
        click.echo(f"usage: python -m nonzero_rewrite.scripts {{{','.join(_NAMES)}}}", err=True)
        return 2
    if sys.argv[1] == _LIBRARIES:
        from nonzero_plugin._tensorrt import prepare_rtx_libraries

        click.echo(str(prepare_rtx_libraries() or ""))
    else:
        click.echo(str(_FOLDER / f"{sys.argv[1]}.py"))
    return 0


sys.exit(main())
