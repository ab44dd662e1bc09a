"""The models of this repository, as ``models/manifest.toml`` lists them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODELS = Path(__file__).resolve().parents[2] / "models"


def entries() -> list[dict[str, Any]]:
    with (MODELS / "manifest.toml").open("rb") as file:
        return tomllib.load(file)["model"]


def path_of(entry: dict[str, Any]) -> Path:
    return MODELS / f"{entry['name']}.onnx"
