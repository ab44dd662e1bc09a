"""docs/troubleshooting.md quotes what the tool says, and has an entry for each advice it gives."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from nonzero_plugin import diagnose

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
SOURCES = [*(ROOT / "nonzero_rewrite").rglob("*.py"), *(ROOT / "plugin").rglob("*.py")]
GAP = "\0"  # a value that is filled in


def own_messages() -> list[str]:
    """The left column of the last table."""
    table = PAGE.split("## nonzero-rewrite itself")[1]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Every string of the sources, with a gap for each value that is filled in."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(p.value) if isinstance(p, ast.Constant) else GAP for p in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


@pytest.mark.parametrize("message", own_messages())
def test_the_tool_says_so(message: str, texts: list[str]) -> None:
    parts = [re.escape(part.strip("' ")) for part in message.split("...") if part.strip("' ")]
    pattern = re.compile(rf"\W*{GAP}.*?".join(parts) if len(parts) > 1 else parts[0])
    assert any(pattern.search(text) for text in texts)


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in diagnose._ADVICE])
def test_each_failure_with_advice_has_an_entry(pattern: str) -> None:
    assert re.search(pattern, PAGE.replace("\n", " "))
