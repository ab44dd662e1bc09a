"""For ``--data-loader-script``: inputs whose masks select chosen shares of their items.

    NONZERO_DENSITIES   shares from 0 to 1; default 0,0.1,0.5,1
    NONZERO_MODEL       the model; default: the first .onnx file on Polygraphy's command line
    NONZERO_SEED        default 0

Polygraphy's own random floats are hardly ever zero, so a comparison on them says little about a
mask such as ``x != 0``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polygraphy.logger import G_LOGGER

from nonzero_rewrite.densities import DEFAULT_DENSITIES, inputs_of_density
from nonzero_rewrite.errors import NonZeroRewriteError


def load_data() -> Iterator[dict[str, Any]]:
    """One feed for each density."""
    text = os.environ.get("NONZERO_DENSITIES", "")
    try:
        densities = [float(part) for part in text.split(",")] if text else DEFAULT_DENSITIES
        seed = int(os.environ.get("NONZERO_SEED", "0"))
    except ValueError as err:
        G_LOGGER.critical(f"NONZERO_DENSITIES and NONZERO_SEED take numbers: {err}")
    try:
        wanted = inputs_of_density(_model(), densities, seed=seed)
    except NonZeroRewriteError as err:
        G_LOGGER.critical(str(err))
    for found in wanted:
        reached = ", ".join(f"{share:.3g}" for share in found.reached) or "no NonZero"
        G_LOGGER.info(f"inputs of density {found.wanted:g}: NonZero nodes select {reached}")
        yield dict(found.feeds)


def _model() -> Path:
    named = os.environ.get("NONZERO_MODEL")
    words = [named] if named else [word for word in sys.argv[1:] if word.endswith(".onnx")]
    if not words:
        G_LOGGER.critical("name the model that needs inputs: NONZERO_MODEL=model.onnx")
    return Path(words[0])
