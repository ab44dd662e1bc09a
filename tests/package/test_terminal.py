"""What people see: narrow and wide terminals, pipes, many NonZero, long names, old code pages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from helpers.graphs import parse

ROOT = Path(__file__).resolve().parents[2]
SCOPE = "/detector/postprocess/class_{}/boxes/with/a/long/scope"
CLASSES = 90
TOOL = "nonzero-rewrite"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``ssd.onnx``: as many NonZero as torchvision's SSD has, two for each class."""
    lines, outputs = [], []
    for number in range(CLASSES):
        lines.append(f"m{number} = Greater(scores, half)")
        for which in "ab":
            name = f"{which}{number}"
            lines += [
                f"i{name} = NonZero(m{number})",
                f"t{name} = Transpose<perm=[1, 0]>(i{name})",
                f"o{name} = GatherND(scores, t{name})",
            ]
            outputs.append(f"float[k] o{name}")
    body = f"g (float[n] scores) => ({', '.join(outputs)}) <float half = {{0.5}}> "
    model = parse(body + "{" + "\n".join(lines) + "}")
    for node in model.graph.node:
        number = re.sub(r"\D", "", node.output[0])
        node.name = f"{SCOPE.format(number)}/{node.op_type}_{node.output[0]}"
    path = tmp_path_factory.mktemp("terminal")
    onnx.save(model, path / "ssd.onnx")
    return path


def run(
    folder: Path, *args: str, code: int = 0, columns: int | None = 80, **environment: str
) -> subprocess.CompletedProcess[str]:
    width = {} if columns is None else {"COLUMNS": str(columns)}
    done = subprocess.run(
        [sys.executable, "-m", "nonzero_rewrite", *args],
        cwd=folder,
        env={**_environment(), **width, **environment},
        capture_output=True,
        encoding=environment.get("PYTHONIOENCODING", "utf-8"),
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def _environment() -> dict[str, str]:
    said = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")
    return {name: value for name, value in os.environ.items() if name not in said}


COMMANDS = (
    ("scan", "ssd.onnx"),
    ("ssd.onnx", "-o", "patched.onnx", "--verify"),
    ("ssd.onnx", "--dry-run", "--no-rule", "share", "--no-rule", "transpose"),
)


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: args[0] + args[1])
def test_180_nonzero_stay_readable(folder: Path, args: tuple[str, ...], columns: int) -> None:
    text = run(folder, *args, columns=columns).stdout
    lines = text.splitlines()
    assert "180 NonZero found" in text and "and 179 more" in re.sub(r"\s+", " ", text)
    assert len(lines) < 40
    assert max(map(len, lines)) <= columns


def test_what_differs_is_never_summed_up(folder: Path) -> None:
    run(folder, "ssd.onnx", "-o", "whole.onnx")
    model = onnx.load(folder / "whole.onnx")
    wrong = next(node for node in model.graph.node if node.output[0] == "ob77")
    wrong.op_type = "Identity"
    del wrong.input[1]
    onnx.save(model, folder / "wrong.onnx")
    done = run(folder, "verify", "ssd.onnx", "wrong.onnx", code=3)
    rows = [line for line in done.stdout.splitlines() if re.match(r"ob77 ", line)]
    assert len(rows) == 1
    assert re.search(r"^oa0 and 178 more", done.stdout, re.MULTILINE)
    assert len(done.stdout.splitlines()) < 40


@pytest.mark.parametrize("columns", [80, 200])
def test_names_wrap_and_keep_their_ends(tmp_path: Path, columns: int) -> None:
    """What tells nodes apart is at the end of their names."""
    model = parse("g (bool[n] x) => (int64[1, k] a) { a = NonZero(x) }")
    model.graph.node[0].name = name = SCOPE.format(7) * 3 + "/NonZero_41"
    onnx.save(model, tmp_path / "m.onnx")
    text = run(tmp_path, "m.onnx", "-o", "p.onnx", columns=columns).stdout
    assert max(map(len, text.splitlines())) <= columns
    column = next(line for line in text.splitlines() if line.startswith("NonZero ")).index("mask")
    cells = [line[:column].strip() for line in text.splitlines()]
    assert name in "".join(cells)


def test_a_pipe_gets_no_escape_codes_and_no_progress(folder: Path) -> None:
    for args in COMMANDS:
        assert "\x1b" not in run(folder, *args).stdout
    done = run(folder, "ssd.onnx", "-O", "out", "-j", "2", columns=None)
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr == ""


if sys.platform != "win32":  # which has no pseudo-terminals

    @pytest.mark.parametrize("no_color", [False, True])
    def test_a_terminal_gets_colour_unless_told(folder: Path, no_color: bool) -> None:
        import pty

        main, secondary = pty.openpty()
        environment = {**_environment(), "TERM": "xterm-256color", "COLUMNS": "80"}
        if no_color:
            environment["NO_COLOR"] = "1"
        process = subprocess.Popen(
            [sys.executable, "-m", "nonzero_rewrite", "ssd.onnx", "--dry-run"],
            cwd=folder,
            env=environment,
            stdout=secondary,
        )
        os.close(secondary)
        data = b""
        try:
            while chunk := os.read(main, 65536):
                data += chunk
        except OSError:  # Linux says that nobody writes any more
            pass
        finally:
            os.close(main)
        assert process.wait(timeout=120) == 0
        colours = re.findall(rb"\x1b\[[\d;]*3[0-7][\d;]*m", data)
        assert bool(colours) is not no_color
        assert b"180 NonZero found" in data


def test_a_log_has_room_for_a_name(tmp_path: Path) -> None:
    """So that ``grep`` finds it."""
    model = parse("g (bool[n] x) => (int64[1, k] a) { a = NonZero(x) }")
    model.graph.node[0].name = name = SCOPE.format(7) + "/NonZero_41"
    onnx.save(model, tmp_path / "m.onnx")
    done = run(tmp_path, "m.onnx", "-o", "p.onnx", "--verify", columns=None)
    assert len(re.findall(rf"^{name} +\S", done.stdout, re.MULTILINE)) == 2


@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: args[0] + args[1])
def test_an_old_code_page_can_show_it(folder: Path, args: tuple[str, ...]) -> None:
    text = run(folder, *args, PYTHONIOENCODING="cp1252").stdout
    assert text.isascii()


def test_json_is_nothing_but_json(folder: Path) -> None:
    (entry,) = json.loads(run(folder, "scan", "ssd.onnx", "--json").stdout)
    assert len(entry["decisions"]) == 2 * CLASSES


def test_help_fits_and_is_ascii(folder: Path) -> None:
    for name in ("", "rewrite", "scan", "verify", "build", "run", "doctor", "restore"):
        text = run(folder, *filter(None, [name]), "--help", columns=80).stdout
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sc"], "plain,scan"),
        (["models/ke"], "file,models/ke"),
        (["model.onnx", "--verif"], "plain,--verify"),
        (["scan", "--js"], "plain,--json"),
        (["model.onnx", "--backend", "cuda"], "plain,cuda_python"),
    ],
)
def test_the_shell_completes(tmp_path: Path, words: list[str], expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"from nonzero_rewrite.cli import main; main(prog_name='{TOOL}')"],
        cwd=tmp_path,
        env={
            **_environment(),
            "_NONZERO_REWRITE_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join([TOOL, *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [expected]
