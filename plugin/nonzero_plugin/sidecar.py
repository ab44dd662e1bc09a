"""The JSON file beside an engine: what it was made from, by what, for what. Never needed to run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nonzero_plugin.contract import PLUGIN_NAME, PLUGIN_NAMESPACE, PLUGIN_VERSION
from nonzero_plugin.fields import FORMAT_VERSION

SIDECAR_FORMAT = 1
_TEXTS = ("engine.sha256", "model.file", "tensorrt.flavour", "tensorrt.version")
_LISTS = ("profiles", "plugin.nodes")
"""What is read of one later, by its path, and so must be there."""


def sidecar_path(engine: Path) -> Path:
    """``model.engine`` -> ``model.engine.json``."""
    return engine.with_name(engine.name + ".json")


def sha256_of(path: Path) -> str:
    """The file's SHA-256, read in pieces (external weights are not followed)."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def sidecar_text(
    engine: Path,
    built: Path,
    model: Path,
    original: Path | None,
    command: str,
    facts: Mapping[str, Any],
) -> str:
    """What the sidecar of ``engine`` says; ``built`` is the file that will take that name."""

    def source(path: Path) -> dict[str, str]:
        return {"file": path.name, "sha256": sha256_of(path)}

    content = {
        "format": SIDECAR_FORMAT,
        "engine": {"file": engine.name, "sha256": sha256_of(built)},
        "model": source(model),
        "original": source(original) if original else None,
        "plugin": {
            "name": PLUGIN_NAME,
            "version": PLUGIN_VERSION,
            "namespace": PLUGIN_NAMESPACE,
            "fields_format": FORMAT_VERSION,
            "nodes": facts["plugins"],
        },
        "tensorrt": {"flavour": facts["flavour"], "version": facts["version"]},
        "compute_capabilities": facts["compute_capabilities"],
        "profiles": facts["profiles"],
        "max_nonzero": facts["max_nonzero"],
        "version_compatible": facts["version_compatible"],
        "command": command,
    }
    return json.dumps(content, indent=2) + "\n"


def read_sidecar(engine: Path) -> dict[str, Any] | None:
    """The sidecar's content, or None where there is none of the shape :func:`sidecar_text` gives.

    Anybody may have written a file of that name.
    """
    try:
        content = json.loads(sidecar_path(engine).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if _is_one(content) else None


def _is_one(content: Any) -> bool:
    lists = [_at(content, path) for path in _LISTS]
    return (
        _at(content, "format") == SIDECAR_FORMAT
        and all(isinstance(_at(content, path), str) for path in _TEXTS)
        and all(isinstance(found, list) for found in lists)
        and all(isinstance(text, str) for found in lists for text in found)
    )


def _at(content: Any, path: str) -> Any:
    for key in path.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    return content
