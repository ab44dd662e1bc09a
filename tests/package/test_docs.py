"""Runs every command of README.md and docs/*.md, in order, in a folder that has the models.

How to write a document:

* a ``console`` block: each line that starts with ``$ `` is a command (``\\`` at its end goes on in
  the next line), other lines are output and are not compared;
* a ``bash`` block is one script, a ``python`` block one program;
* a ``yaml`` block is a CI configuration: the commands of its jobs are run;
* other languages, and blocks without one, are text.

The blocks of one document share a folder and run from top to bottom. A comment right above a block
changes how it is run:

    <!-- not run: REASON -->     e.g. needs an account; the reason is required
    <!-- needs: gpu -->          runs only where the marker ``gpu`` does; likewise ``rtx``
    <!-- exit: 3 -->             the last command ends with this code

Commands that build with TensorRT need ``rtx`` by themselves. ``pip install ... &&`` in front of a
command, and whole commands that only install, are left out: the environment is installed. So are
``pytest ...`` and ``.ci/run`` at the beginning of a line, which is the run that runs this.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUNNABLE = ("console", "bash", "python", "yaml")
NEEDED_FILES = ("models", "examples", "plugin")
SECONDS_PER_BLOCK = 180

_BLOCK = re.compile(
    r"(?P<comments>(?:^<!--[^\n]*-->[ ]*\n+)*)^```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"<!--\s*(not run|needs|exit):\s*(.*?)\s*-->")
_INSTALL = re.compile(r"^(?:python -m )?pip install [^&|;\n]*(?:&&\s*)?")
_BUILDS = re.compile(
    r"--build|nonzero-rewrite build|--trt|polygraphy convert|capability|--unpatched"
)
_TEST_SUITE = re.compile(r"^(?:\w+=\S+ )*(?:pytest\b|\.ci/run\b)")  # this very run


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    script: str
    needs: frozenset[str]
    exit_code: int
    not_run: str


def blocks_of(text: str) -> Iterator[Block]:
    for match in _BLOCK.finditer(text):
        if match["language"] not in RUNNABLE:
            continue
        notes = dict(_COMMENT.findall(match["comments"]))
        script = script_of(match["language"], match["text"])
        needs = set(notes.get("needs", "").replace(",", " ").split())
        if _BUILDS.search(script):
            needs.add("rtx")
        yield Block(
            text.count("\n", 0, match.start("language")) + 1,
            match["language"],
            script,
            frozenset(needs),
            int(notes.get("exit", 0)),
            notes.get("not run", ""),
        )


def script_of(language: str, text: str) -> str:
    if language == "console":
        commands = [match[1] for match in re.finditer(r"^\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)]
    elif language == "yaml":
        commands = list(_ci_commands(yaml.safe_load(text)))
    elif language == "bash":
        commands = [text]
    else:
        return text
    return "\n".join(filter(None, map(_without_install, commands)))


def _without_install(command: str) -> str:
    lines = [_INSTALL.sub("", line) for line in command.splitlines()]
    return "\n".join(line for line in lines if not _TEST_SUITE.match(line.strip()))


def _ci_commands(node: object) -> Iterator[str]:
    """``run`` of GitHub Actions' steps and ``script`` lists of GitLab's jobs."""
    if isinstance(node, list):
        for item in node:
            yield from _ci_commands(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "run" and isinstance(value, str):
                yield value.rstrip("\n")
            elif key in ("script", "before_script"):
                yield from value
            else:
                yield from _ci_commands(value)


def _parameters() -> Iterator[object]:
    for document in DOCUMENTS:
        blocks = [block for block in blocks_of(document.read_text("utf-8")) if not block.not_run]
        plain = [block for block in blocks if "gpu" not in block.needs]
        name = document.relative_to(ROOT).as_posix()
        for chosen, label in ((plain, name), (blocks, f"{name} gpu")):
            if chosen and (chosen is plain or len(blocks) > len(plain)):
                needs = sorted(set().union(*(block.needs for block in chosen)))
                marks = [getattr(pytest.mark, need) for need in needs]
                yield pytest.param(name, "gpu" in needs, id=label, marks=marks)


@pytest.mark.parametrize(("name", "gpu"), list(_parameters()))
def test_commands_of(name: str, gpu: bool, tmp_path: Path) -> None:
    for folder in NEEDED_FILES:
        if (ROOT / folder).is_dir():
            shutil.copytree(
                ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
            )
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "COLUMNS": "100",
    }
    text = (ROOT / name).read_text("utf-8")
    for block in blocks_of(text):
        if block.not_run or ("gpu" in block.needs and not gpu):
            continue
        if block.language == "python":
            command = [sys.executable, "-c", block.script]
        else:
            command = ["bash", "-eu", "-o", "pipefail", "-c", block.script]
        started = time.monotonic()
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_PER_BLOCK,
            check=False,
        )
        print(f"{name}:{block.line}: {time.monotonic() - started:.1f} s")
        assert done.returncode == block.exit_code, (
            f"{name}:{block.line} ended with {done.returncode}, not {block.exit_code}\n"
            f"{block.script}\n--- output ---\n{done.stdout[-4000:]}"
        )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_form_of(document: Path) -> None:
    """Links inside the repository lead somewhere, and no command hides from this module."""
    text = document.read_text("utf-8")
    for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", text):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"
    assert not re.search(r"^    (?:\$ |nonzero-rewrite |polygraphy )", text, re.MULTILINE), (
        "commands belong into a block that is run"
    )
    for block in blocks_of(text):
        assert block.not_run != "REASON"


def test_a_failing_command_is_found() -> None:
    text = (
        "<!-- needs: gpu -->\n\n<!-- exit: 3 -->\n"
        "```console\n$ pip install x && false\n0\n$ a \\\n  b\n```\n"
    )
    (block,) = blocks_of(text)
    assert block == Block(4, "console", "false\na \\\n  b", frozenset({"gpu"}), 3, "")


def test_ci_commands_are_found() -> None:
    github = "jobs:\n a:\n  steps:\n  - uses: x\n  - run: |\n      pip install y\n      b c\n"
    assert script_of("yaml", github).strip() == "b c"
    assert script_of("yaml", "job:\n  script:\n    - pip install x\n    - d e\n") == "d e"
