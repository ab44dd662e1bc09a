"""The JSON beside an engine, as a build writes it, for engines that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nonzero_plugin.sidecar import sidecar_path, sidecar_text

FACTS: dict[str, Any] = {
    "plugins": ["nz"],
    "flavour": "tensorrt_rtx",
    "version": "1.7",
    "compute_capabilities": [],
    "profiles": ["x=1:2:3"],
    "max_nonzero": {},
    "version_compatible": False,
}


def content(engine: Path, **facts: Any) -> dict[str, Any]:
    """What the sidecar of ``engine`` says; the engine serves as its own model."""
    made = json.loads(sidecar_text(engine, engine, engine, None, "command", {**FACTS, **facts}))
    assert isinstance(made, dict)
    return made


def write_sidecar(engine: Path, **facts: Any) -> None:
    sidecar_path(engine).write_text(json.dumps(content(engine, **facts)))
