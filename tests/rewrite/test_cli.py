"""The command line: files, exit codes, and what goes to stdout and what to stderr."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from helpers.command import PLAIN, TEXT, call, load, save
from helpers.graphs import ops, perm, plugins


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path / "model.onnx", TEXT)


# -- rewrite ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], ["rewrite"]])
def test_rewrite(path: Path, tmp_path: Path, command: list[str]) -> None:
    before = path.read_bytes()
    result = call(*command, path, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 0 and result.stderr == ""
    assert "2 NonZero found" in result.stdout and "out.onnx" in result.stdout
    assert len(plugins(load(tmp_path / "out.onnx"))) == 2
    assert path.read_bytes() == before


def test_stdout_of_json_is_json_alone(path: Path, tmp_path: Path) -> None:
    result = call(path, "-o", tmp_path / "out.onnx", "--verify", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 0 == data["exit_code"]
    assert data["changed"] and data["verification"]["ok"]
    assert [d["outcome"] for d in data["decisions"]] == ["plugin", "plugin"]
    assert data["files"]["patched"] == [str(tmp_path / "out.onnx")]


def test_nothing_to_rewrite_writes_an_equal_file(tmp_path: Path) -> None:
    path = save(tmp_path / "plain.onnx", PLAIN)
    result = call(path, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 0 and "No NonZero found: nothing to rewrite." in result.stdout
    assert (tmp_path / "out.onnx").read_bytes() == path.read_bytes()


def test_nothing_but_left_alone_writes_an_equal_file(path: Path, tmp_path: Path) -> None:
    """To the byte, also where a serializer would write other bytes than the exporter did."""
    odd = path.read_bytes() + onnx.ModelProto(producer_name="later").SerializeToString()
    path.write_bytes(odd)
    result = call(path, "-o", tmp_path / "out.onnx", "--skip", "*")
    assert result.exit_code == 0 and "excluded" in result.stdout
    assert (tmp_path / "out.onnx").read_bytes() == odd


def test_in_place(path: Path) -> None:
    assert call(path, "--in-place", "--verify").exit_code == 0
    assert len(plugins(load(path))) == 2
    assert [p.name for p in path.parent.iterdir()] == ["model.onnx"], "no copy is left behind"


def test_the_input_is_never_overwritten_unasked(path: Path) -> None:
    before = path.read_bytes()
    result = call(path, "-o", path)
    assert result.exit_code == 1 and "is the input itself" in result.stderr
    assert path.read_bytes() == before and result.stdout.count("Error") == 0


def test_a_failing_write_leaves_what_was_there(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "missing" / "out.onnx"
    result = call(path, "-o", output)
    assert result.exit_code == 1 and "cannot be written" in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    result = call(path, "-o", tmp_path)
    assert result.exit_code == 1 and "is a folder" in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"", "holds no ONNX graph"),
        (b"not a model at all", "not an ONNX model"),
        (b"\x0a\xff\xff", "not an ONNX model"),
    ],
)
def test_what_is_no_model(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    for args in ([path, "-o", tmp_path / "out.onnx"], ["scan", path]):
        result = call(*args)
        assert result.exit_code == 1 and message in result.stderr and str(path) in result.stderr
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_a_truncated_model(path: Path, tmp_path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])
    result = call(path, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 1 and "truncated" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["MODEL"],
        ["MODEL", "-o", "OUT", "--in-place"],
        ["MODEL", "--dry-run", "--verify"],
        ["MODEL", "-o", "OUT", "--inputs", "x.npz"],
        ["MODEL", "-o", "OUT", "--backend", "tpu"],
        ["MODEL", "-o", "OUT", "--rules", "magic"],
        ["MODEL", "-o", "OUT", "--no-rule", "magic"],
        ["MODEL", "-o", "OUT", "--max-nonzero", "many"],
        ["MODEL", "-o", "OUT", "--max-nonzero", "box_nz=-1"],
        ["MODEL", "-o", "OUT", "--external-data", "forget"],
        ["MODEL", "-o", "OUT", "--no-such-option"],
    ],
)
def test_wrong_command_lines(path: Path, tmp_path: Path, args: list[str]) -> None:
    names = {"MODEL": str(path), "OUT": str(tmp_path / "out.onnx")}
    result = call(*[names.get(arg, arg) for arg in args])
    assert result.exit_code == 2 and "Usage:" in result.stderr and result.stdout == ""
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    "args",
    [
        ["--max-nonzero", "0"],
        ["--max-nonzero", str(2**31)],
        ["--max-nonzero", "nothing=5"],
        ["--only", "nothing"],
        ["--plan", "missing.json"],
    ],
)
def test_settings_that_do_not_fit_the_model(path: Path, tmp_path: Path, args: list[str]) -> None:
    result = call(path, "-o", tmp_path / "out.onnx", *args)
    assert result.exit_code == 1 and result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr and not (tmp_path / "out.onnx").exists()


def test_rules_and_layout_options(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert call(path, "-o", out, "--keep-transpose", "--backend", "torch").exit_code == 0
    assert ops(load(out)) == ["NonZeroPlugin", "Transpose", "GatherND", "NonZeroPlugin"]
    assert call(path, "-o", out, "--no-rule", "plugin").exit_code == 0
    assert out.read_bytes() == path.read_bytes()
    assert call(path, "-o", out, "--rules", "plugin").exit_code == 0
    assert [perm(n) for n in plugins(load(out))] == [[0, 1], [0, 1]]
    assert call(path, "-o", out, "--no-function").exit_code == 0
    assert not load(out).functions
    assert call(path, "-o", out, "--only", "box*").exit_code == 0
    assert ops(load(out)) == ["NonZero", "Transpose", "GatherND", "NonZeroPlugin"]


def test_rules_added_to_the_default(tmp_path: Path) -> None:
    text = """g (float[n] x, bool[n] m) => (float y) { i = NonZero(m) t = Transpose(i)
        p = GatherND(x, t) y = ReduceSum <keepdims = 0> (p) }"""
    path, out = save(tmp_path / "sum.onnx", text), tmp_path / "out.onnx"
    result = call(path, "-o", out, "--rules", "+where-sum", "--verify")
    assert result.exit_code == 0, result.output
    assert not plugins(load(out)) and "where-sum" in result.stdout


def test_caps(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result = call(path, "-o", out, "--max-nonzero", "100", "--max-nonzero", "box_nz=7", "--json")
    assert [d["max_nonzero"] for d in json.loads(result.stdout)["decisions"]] == [100, 7]


def test_blockers_are_named(tmp_path: Path) -> None:
    """B03: after NonZero is solved, the model is still not buildable."""
    text = """g (float[1,n,4] b, float[1,1,n] s) => (int64[k,3] y, int64[1,j] z) <int64 m = {5}> {
        [nms] y = NonMaxSuppression(b, s, m) q = Squeeze(s) z0 = NonZero(q) z = Identity(z0) }"""
    path = save(tmp_path / "nms.onnx", text)
    result = call(path, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 0
    assert "Still in the way:" in result.stdout and "NonMaxSuppression 'nms'" in result.stdout


# -- plan ------------------------------------------------------------------------------------------


def test_write_edit_and_apply_a_plan(path: Path, tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "out.onnx"
    result = call(path, "--dry-run", "--plan", plan)
    assert result.exit_code == 0 and "would" in result.stdout and not out.exists()
    data = json.loads(plan.read_text("utf-8"))
    data["decisions"][0]["outcome"] = "left"
    data["options"]["backend"] = data["decisions"][1]["backend"] = "cupy"
    plan.write_text(json.dumps(data), "utf-8")
    assert call(path, "-o", out, "--plan", plan).exit_code == 0
    assert ops(load(out)) == ["NonZero", "Transpose", "GatherND", "NonZeroPlugin"]
    assert b"cupy" in out.read_bytes()


def test_a_plan_of_another_model(path: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    call(path, "--dry-run", "--plan", plan)
    other = save(tmp_path / "other.onnx", "g (float[n] x) => (int64[1,k] y) { y = NonZero(x) }")
    result = call(other, "-o", tmp_path / "out.onnx", "--plan", plan)
    assert result.exit_code == 1 and "make the plan again from this model" in result.stderr
    plan.write_text("{}", "utf-8")
    result = call(path, "-o", tmp_path / "out.onnx", "--plan", plan)
    assert result.exit_code == 1 and f"{plan}: not a rewrite plan" in result.stderr


def test_a_dry_run_says_what_the_run_does(path: Path, tmp_path: Path) -> None:
    dry = json.loads(call(path, "--dry-run", "--json").stdout)
    wet = json.loads(call(path, "-o", tmp_path / "out.onnx", "--json").stdout)
    assert dry["decisions"] == wet["decisions"] and dry["changed"] == wet["changed"]


# -- the installed command -------------------------------------------------------------------------


def test_as_a_process(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nonzero_rewrite", str(path), "-o", str(tmp_path / "o.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "" and "2 NonZero found" in done.stdout
    done = subprocess.run(
        [*command[:3], "missing.onnx", "-o", "o"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "Error: missing.onnx: there is no such file; check the path\n"
