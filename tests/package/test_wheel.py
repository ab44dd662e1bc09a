"""The sdist and the wheel: what they hold, and that they work where there is no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "*.engine*", "dist", "build")


def build(source: Path, target: Path, kind: str) -> Path:
    """Without build isolation, which would ask a registry: hatchling is installed."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "source", ignore=LEFT_OUT)
    return build(folder / "source", folder, "sdist")


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Made from the sdist, as an installer does it."""
    folder = sdist.parent / "unpacked"
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            assert not Path(member.name).is_absolute() and ".." not in Path(member.name).parts
        archive.extractall(folder)
    return build(folder / sdist.name.removesuffix(".tar.gz"), sdist.parent / "wheel", "wheel")


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = set()
    for package, folder in (("nonzero_rewrite", ROOT), ("nonzero_plugin", ROOT / "plugin")):
        for path in (folder / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                expected.add(path.relative_to(folder).as_posix())
    assert names == expected
    assert {Path(name).suffix for name in names} == {".py", ".cu", ".css", ".typed"}


def test_its_metadata_says_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        data = HeaderParser().parsestr(archive.read(name).decode("utf-8"))
        assert archive.read(name.replace("METADATA", "licenses/LICENSE"))
    assert data["Requires-Python"] == ">=3.10" and data["License-Expression"] == "Apache-2.0"
    extras = set(data.get_all("Provides-Extra") or [])
    assert {"rtx", "trt", "cuda12", "cuda13", "torch", "test"} <= extras
    always = [text for text in data.get_all("Requires-Dist") or [] if "extra ==" not in text]
    assert all(">=" in text for text in always), "each requirement has the bound it was tested with"
    assert not [text for text in always if "tensorrt" in text or "cuda" in text]


def test_the_sdist_can_be_tested(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        paths = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"README.md", "LICENSE", "pyproject.toml", "tests/conftest.py", "docs/rules.md"}
    assert needed <= paths
    assert not [path for path in paths if path.endswith((".onnx", ".engine", ".pyc"))]


def test_it_works_without_a_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    model = tmp_path / "model.onnx"
    shutil.copy(ROOT / "models" / "yolo_score_head.onnx", model)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    for args in (["-m", "nonzero_rewrite", "model.onnx", "-o", "patched.onnx", "--verify"], CHECK):
        command = [sys.executable, *args]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(site)


CHECK = [
    "-c",
    """
import nonzero_plugin, nonzero_rewrite
from nonzero_plugin.compile import kernel_source
assert b"nonzero" in kernel_source()
print(nonzero_plugin.__file__)
""",
]
