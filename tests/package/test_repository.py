"""What must not be in the repository's text: places and hosts that only one machine knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", "docs", "examples", "models", "nonzero_rewrite", "plugin", "results", "tests")
TEXT = {".css", ".cu", ".json", ".md", ".py", ".toml", ".txt", ".yaml", ".yml", ""}

FORBIDDEN = {
    "a folder of one machine": r"(?<![\w./])/(?:work|root|mnt|home/\w+|tmp/v)/",
    "a folder of one user": r"(?i)\bc:\\users\\\w",
    "a package registry": r"pypi\.(?:org|nvidia|ngc)|pythonhosted|(?:conda|npmjs)\.(?:org|com)",
    "an address of one network": r"(?<![\d.])(?:10|192\.168|172\.1[6-9])\.\d+\.\d+(?:\.\d+)?:\d",
    "a secret": r"(?i)\b(?:api[_-]?key|passw(?:or)?d|secret)\s*=\s*['\"]\w",
}


def files() -> Iterator[Path]:
    for path in sorted(ROOT.iterdir()):
        if path.is_file() and path.suffix in TEXT:
            yield path
    for folder in (*FOLDERS, "tools"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts:
                yield path


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    found = []
    for path in set(files()) - {Path(__file__).resolve()}:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if re.search(FORBIDDEN[what], line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found


def test_the_search_would_find_them() -> None:
    samples = {
        "a folder of one machine": "see /work/main",
        "a folder of one user": "C:\\Users\\me",
        "a package registry": "https://pypi.org/simple",
        "an address of one network": "http://10.0.0.7:8080",
        "a secret": "API_KEY = 'abc'",
    }
    assert samples.keys() == FORBIDDEN.keys()
    assert all(re.search(FORBIDDEN[what], text) for what, text in samples.items())
    assert ROOT / "README.md" in files() and Path(__file__) in files()
