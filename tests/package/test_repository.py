"""What must not be in the repository's text: places and hosts that only one machine knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = {"build", "dist", "__pycache__"}
TEXT = {".css", ".cu", ".json", ".md", ".py", ".toml", ".txt", ".yaml", ".yml", ""}

FORBIDDEN = {
    "a folder of one machine": r"(?<![\w./])/(?:work|root|mnt|home/\w+|tmp/v)/",
    "a folder of one user": r"(?i)\bc:\\users\\\w",
    "a package registry": r"pypi\.(?:org|nvidia|ngc)|pythonhosted|(?:conda|npmjs)\.(?:org|com)",
    "an address of one network": r"(?<![\d.])(?:10|192\.168|172\.1[6-9])\.\d+\.\d+(?:\.\d+)?:\d",
    "a secret": r"(?i)\b(?:api[_-]?key|passw(?:or)?d|secret)\s*=\s*['\"]\w",
}


def files() -> Iterator[Path]:
    """Text files of the repository; of hidden folders only ``.ci``."""
    for top in sorted(ROOT.iterdir()):
        if top.is_file() or top.name == ".ci" or not top.name.startswith("."):
            for path in [top] if top.is_file() else sorted(top.rglob("*")):
                if path.is_file() and path.suffix in TEXT and not NOT_OURS & set(path.parts):
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


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=lambda path: path.name
)
def test_links_to_headings_arrive(page: Path) -> None:
    for target, anchor in re.findall(
        r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")
    ):
        assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


def test_every_page_is_linked_from_the_readme_or_another_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    linked = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text("utf-8"))
    }
    assert set(pages) - linked <= {ROOT / "README.md"}


def test_reference_links_are_defined() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
        used = set(re.findall(r"\]\[(\w+)\]", text))
        assert used == set(re.findall(r"^\[(\w+)\]: https://\S+$", text, re.MULTILINE)), page.name
