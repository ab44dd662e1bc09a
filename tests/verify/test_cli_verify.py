"""``nonzero-rewrite verify``: exit codes, what goes where, files for machines."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from helpers import build
from helpers import wrong_rewrites as wrong

from nonzero_rewrite.cli.verify import command


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    model = wrong.original()
    models = {
        "original": model,
        "right": wrong.patched(model),
        "wrong": wrong.patched(model, wrong.last_one_missing()),
        "dice": build.model(
            [onnx.helper.make_node("RandomNormalLike", ["x"], ["y"])],
            {"x": (1, [4])},
            {"y": (1, [4])},
        ),
    }
    for name, item in models.items():
        onnx.save(item, tmp_path / f"{name}.onnx")
    return {name: str(tmp_path / f"{name}.onnx") for name in models}


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def test_equal(files) -> None:
    result = call(files["original"], files["right"])
    assert result.exit_code == 0, result.output
    assert "Parity: equal" in result.stdout
    assert "bit-exact" in result.stdout
    assert "n_x_indices" in result.stdout
    assert "54/54" in result.stdout or "30/30" in result.stdout
    assert result.stdout.isascii()


def test_different(files) -> None:
    result = call(files["original"], files["wrong"])
    assert result.exit_code == 3
    assert "DIFFERENT" in result.stdout
    assert "count differs" in result.stdout


def test_not_comparable(files) -> None:
    result = call(files["dice"], files["dice"])
    assert result.exit_code == 1
    assert "not comparable" in result.stdout
    assert "two runs of the original" in result.stdout


@pytest.mark.parametrize("name", ["missing.onnx", "bad.onnx"])
def test_a_file_that_cannot_be_read_is_one_sentence(files, name: str, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\xff")
    result = call(files["original"], str(tmp_path / name))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert name in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output


def test_usage() -> None:
    assert call().exit_code == 2
    assert call("a.onnx", "b.onnx", "--rtol", "-1").exit_code == 2
    result = call("--json", "a.onnx", "b.onnx", "c.onnx")
    assert result.exit_code == 2
    assert "after the models" in result.stderr


def test_json_on_stdout_is_all_there_is(files) -> None:
    result = call(files["original"], files["wrong"], "--json")
    assert result.exit_code == 3
    data = json.loads(result.stdout)
    assert data["outcome"] == "different"
    assert data["differences"][0]["kind"] == "count differs"


def test_files_for_machines(files, tmp_path: Path) -> None:
    report, junit = tmp_path / "report.json", tmp_path / "junit.xml"
    result = call(files["original"], files["wrong"], "--json", str(report), "--junit", str(junit))
    assert result.exit_code == 3
    assert "DIFFERENT" in result.stdout
    assert json.loads(report.read_text())["ok"] is False
    suite = ElementTree.parse(junit).getroot()
    assert int(suite.get("failures", "0")) == len(suite.findall("testcase/failure")) > 0
    names = {(case.get("classname"), case.get("name")) for case in suite}
    assert {("model", "interface"), ("output", "x_picked"), ("NonZero", "n_x_indices")} <= names


def test_junit_of_what_cannot_be_compared_is_an_error(files, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    assert call(files["dice"], files["dice"], "--junit", str(junit)).exit_code == 1
    assert ElementTree.parse(junit).getroot().get("errors") == "1"


def test_a_report_that_cannot_be_written_is_one_sentence(files, tmp_path: Path) -> None:
    result = call(files["original"], files["right"], "--junit", str(tmp_path / "no" / "x.xml"))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "no does not exist" in result.stderr


def test_inputs_from_a_file(files, tmp_path: Path) -> None:
    given = tmp_path / "given.npz"
    zeros = np.zeros((3, 5), dtype=np.float32)
    np.savez(given, x=zeros, i1=zeros)
    result = call(files["original"], files["right"], "--inputs", str(given), "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["cases"][0]["origin"] == "user"
    assert data["cases"][0]["shapes"] == {"x": "3x5", "y": "3x5"}
    np.savez(given, x=zeros)
    result = call(files["original"], files["right"], "--inputs", str(given))
    assert result.exit_code == 1
    assert "no value for 'y'" in result.stderr


def test_names_from_a_model_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    """Markup, a terminal's escape sequence and letters that are not ASCII."""
    odd = "[/red] \x1b[31m \u5c42 [bold]x"
    node = onnx.helper.make_node("NonZero", ["x"], [odd], name=odd)
    model = build.model([node], {"x": (1, ["n"])}, {odd: (7, [1, None])})
    path = tmp_path / "odd.onnx"
    onnx.save(model, path)
    for encoding in ("utf-8", "ascii"):
        runner = CliRunner(charset=encoding)
        result = runner.invoke(command, [str(path), str(path), "--junit", str(tmp_path / "j.xml")])
        assert result.exit_code == 0, result.output
        assert "[/red]" in result.stdout
        assert "\x1b" not in result.stdout
        assert ("\\u5c42" if encoding == "ascii" else "\u5c42") in result.stdout
    ElementTree.parse(tmp_path / "j.xml")
