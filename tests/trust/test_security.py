"""Models, plans and inputs are data: nothing in the packages runs what they hold."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.graphs import parse

from nonzero_rewrite.cli import main
from nonzero_rewrite.plan import options_from_json

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path
    for folder in (ROOT / "nonzero_rewrite", ROOT / "plugin" / "nonzero_plugin")
    for path in folder.rglob("*.py")
)
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "codeop", "pty"}
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
CALLS = {
    *("os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "os.spawnlp", "os.startfile"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "yaml.load", "torch.load"),
    *("tempfile.mktemp", "tarfile.open", "shutil.unpack_archive", "ctypes.CDLL"),
}
ALLOWED = {
    # Libraries of installed packages, by names that are fixed in the code.
    ("_tensorrt.py", "ctypes.CDLL"),
    ("compile.py", "ctypes.CDLL"),
    # What the benchmark has just compiled from its own source.
    ("bench_peers.py", "ctypes.CDLL"),
}


def findings(path: Path, tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        for name in names:
            if name.split(".")[0] in MODULES:
                yield f"imports {name}"
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in BUILTINS or (called in CALLS and (path.name, called) not in ALLOWED):
            yield f"calls {called}"
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg == "shell" and value is not False:
                yield "runs a shell"
            if keyword.arg == "allow_pickle" and value is not False:
                yield "unpickles arrays"
        if called in ("np.load", "numpy.load") and "allow_pickle" not in ast.unparse(node):
            yield "loads arrays without saying allow_pickle=False"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_module_runs_what_it_reads(path: Path) -> None:
    assert not list(findings(path, ast.parse(path.read_text("utf-8"))))


@pytest.mark.parametrize(
    "code",
    [
        *("import pickle", "from marshal import loads", "import dill.source as s", "eval(text)"),
        *("exec(code)", "subprocess.run(text, shell=True)", "subprocess.Popen(a, shell=flag)"),
        *("np.load(path)", "np.load(path, allow_pickle=True)", "os.system('ls')"),
        *("__import__(name)", "ctypes.CDLL(name)"),
    ],
)
def test_the_scan_would_find_it(code: str) -> None:
    assert list(findings(Path("module.py"), ast.parse(code)))


def test_the_scan_reads_every_package() -> None:
    names = {path.name for path in FILES}
    assert {"load.py", "build_worker.py", "compile.py", "input_files.py"} <= names


def test_every_exception_of_the_scan_is_still_needed() -> None:
    for name, called in ALLOWED:
        assert any(path.name == name and called in path.read_text("utf-8") for path in FILES)


PLAN = json.dumps(
    {
        "format": 1,
        "options": {
            "backend": "cuda_python",
            "rules": ["plugin"],
            "max_nonzero": None,
            "function": True,
            "__class__": "os.system",
        },
        "decisions": [{"id": "i", "outcome": None, "__reduce__": ["os.system", ["ls"]]}],
        "import": "os",
    }
)


def test_a_plan_is_data_and_its_unknown_keys_mean_nothing() -> None:
    options = options_from_json(PLAN)
    assert options.backend == "cuda_python" and set(options.sites) == {"i"}


class _Pickled:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("ran"),))


def test_inputs_are_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = parse("g (float[n] x) => (int64[1, k] i) { i = NonZero(x) }")
    Path("m.onnx").write_bytes(model.SerializeToString())
    np.savez("x.npz", x=np.array([_Pickled()], dtype=object))
    Path("pickle.npz").write_bytes(__import__("pickle").dumps(_Pickled()))
    for name in ("x.npz", "pickle.npz"):
        done = CliRunner().invoke(main, ["m.onnx", "-o", "o.onnx", "--verify", "--inputs", name])
        assert done.exit_code == 1 and name in done.stderr
    assert not Path("ran").exists()


def test_a_name_in_a_model_is_no_path_and_no_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = parse("g (float[n] x) => (int64[1, k] i) { i = NonZero(x) }")
    model.graph.node[0].name = "../../[bold red]$(touch ran)[/]\x1b[2J; touch ran"
    Path("m.onnx").write_bytes(model.SerializeToString())
    for arguments in (["scan", "m.onnx"], ["m.onnx", "-o", "o.onnx", "--verify"]):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        assert "\x1b[2J" not in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "o.onnx"]


def test_dependencies_have_bounds_and_the_lock_names_no_host() -> None:
    lock = (ROOT / "requirements" / "dev-lock.txt").read_text("utf-8")
    pins = [line for line in lock.splitlines() if line and not line.startswith("#")]
    assert pins == sorted(pins, key=str.lower)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", pin) for pin in pins)
    names = {pin.split("==")[0].lower().replace("_", "-") for pin in pins}
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    (block,) = re.findall(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    needed = re.findall(r'"([A-Za-z0-9_.-]+)\s*>=', block)
    assert needed and {name.lower() for name in needed} <= names
    assert {"pytest", "hypothesis", "ruff", "mypy"} <= names
    assert "://" not in lock
