"""An output is whole or absent, and nothing else changes: kills, full disks, races, bad places."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from helpers.graphs import parse
from onnx import TensorProto, numpy_helper

from nonzero_rewrite.batch import models_below
from nonzero_rewrite.cli import main
from nonzero_rewrite.errors import ModelLoadError, ModelWriteError
from nonzero_rewrite.load import load_model
from nonzero_rewrite.write import atomic_file, copy_file, write_model

posix = pytest.mark.skipif(os.name != "posix", reason="signals and links as POSIX has them")

GRAPH = """g (float[n] x) => (int64[k, 1] pairs, float[n] y) {
    indices = NonZero(x)
    pairs = Transpose<perm = [1, 0]>(indices)
    y = Add(x, w)
}"""


def save(path: Path, external: str = "") -> Path:
    """A model with one weight, embedded or in the file ``external`` beside it."""
    model = parse(GRAPH)
    weight = numpy_helper.from_array(np.ones(1, np.float32), "w")
    if external:
        (path.parent / external).write_bytes(weight.raw_data)
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=external)
    model.graph.initializer.append(weight)
    path.write_bytes(model.SerializeToString())
    return path


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def rewrite(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(each) for each in arguments])
    assert isinstance(done.exception, SystemExit | None), done.exception
    return done.exit_code, done.stderr


def is_whole(path: Path) -> bool:
    onnx.checker.check_model(path)
    return any(node.op_type == "NonZeroPlugin" for node in onnx.load(path).graph.node)


# -- kills ------------------------------------------------------------------------------------

# The child stops at the given call of the given function of ``os`` and says so, to be killed there.
PAUSE = """
import os, sys, time
import pathlib, tempfile, shutil
where, nth = sys.argv.pop(1), int(sys.argv.pop(1))
calls = 0
module, name = where.split(".")
target = {"os": os, "shutil": shutil, "tempfile": tempfile}[module]
real = getattr(target, name)
def paused(*args, **kwargs):
    global calls
    calls += 1
    if calls == nth:
        print("here", flush=True)
        time.sleep(60)
    return real(*args, **kwargs)
import nonzero_rewrite.write, nonzero_rewrite.rewrite, nonzero_rewrite.verify
setattr(target, name, paused)
accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10's own copy of os's functions
if accessor is not None and module == "os" and hasattr(accessor, name):
    setattr(accessor, name, staticmethod(paused))
from nonzero_rewrite.cli import main
main(sys.argv[1:])
"""
PHASES = ["tempfile.mkstemp", "os.fdopen", "os.fsync", "os.chmod", "os.replace"]


def stopped(where: str, nth: int, *arguments: object) -> subprocess.Popen[str]:
    """A run of the tool that waits in one phase of writing."""
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSE, where, str(nth), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    for line in process.stdout:
        if line.strip() == "here":
            return process
    raise AssertionError(f"{where} was never called: {process.communicate()[1]}")


@pytest.mark.parametrize(
    ("where", "before"),
    [*((where, "nothing") for where in PHASES), ("os.replace", "an older file")],
)
def test_a_kill_leaves_the_output_whole_or_as_it_was(
    where: str, before: str, tmp_path: Path
) -> None:
    model, out = save(tmp_path / "model.onnx"), tmp_path / "out" / "patched.onnx"
    out.parent.mkdir()
    if before == "an older file":
        out.write_bytes(b"older")
    inputs = model.read_bytes()
    process = stopped(where, 1, model, "-o", out)
    process.kill()
    process.communicate()
    assert model.read_bytes() == inputs
    assert out.read_bytes() == b"older" if before == "an older file" else not out.exists()
    left = [path.name for path in out.parent.iterdir() if path != out]
    assert all(name.startswith(".") and name.endswith(".tmp") for name in left)
    assert models_below(out.parent) == ([out] if out.exists() else []), "the next run ignores it"
    assert rewrite(model, "-o", out)[0] == 0
    assert is_whole(out)


@pytest.mark.parametrize(("where", "nth"), [("os.replace", 1), ("os.fsync", 2), ("os.replace", 2)])
def test_a_kill_between_data_and_model_leaves_no_model_without_its_data(
    where: str, nth: int, tmp_path: Path
) -> None:
    model, out = save(tmp_path / "model.onnx", "weights.bin"), tmp_path / "out" / "patched.onnx"
    out.parent.mkdir()
    process = stopped(where, nth, model, "-o", out)
    process.kill()
    process.communicate()
    assert not out.exists()
    data = out.parent / "weights.bin"
    assert not data.exists() or data.read_bytes() == (tmp_path / "weights.bin").read_bytes()
    assert rewrite(model, "-o", out)[0] == 0
    assert is_whole(out)


def test_a_kill_in_place_leaves_the_original_or_the_patched_model(tmp_path: Path) -> None:
    model = save(tmp_path / "model.onnx")
    inputs = model.read_bytes()
    for where, nth in (("os.fsync", 1), ("os.fsync", 2), ("os.replace", 2)):
        process = stopped(where, nth, model, "--in-place", "--verify")
        process.kill()
        process.communicate()
        assert model.read_bytes() == inputs
    left = [path.name for path in tmp_path.iterdir() if path != model]
    assert all(name.startswith(".") and name.endswith(".tmp") for name in left)
    assert rewrite(model, "--in-place", "--verify")[0] == 0
    assert is_whole(model)
    assert sorted(path.name for path in tmp_path.iterdir() if path != model) == sorted(left)


@posix
@pytest.mark.parametrize("where", ["os.fsync", "os.replace", "shutil.copyfileobj"])
def test_an_interrupt_leaves_nothing_behind(where: str, tmp_path: Path) -> None:
    model = save(tmp_path / "model.onnx", "weights.bin" if "shutil" in where else "")
    out = tmp_path / "out" / "patched.onnx"
    out.parent.mkdir()
    before = contents(tmp_path)
    process = stopped(where, 1, model, "-o", out)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert said == "interrupted\n"
    assert contents(tmp_path) == before


@posix
def test_an_interrupt_while_a_command_is_imported_is_one(tmp_path: Path) -> None:
    script = (
        "import importlib, sys\n"
        "real = importlib.import_module\n"
        "def stop(name, *rest):\n"
        "    raise KeyboardInterrupt\n"
        "from nonzero_rewrite.cli import main\n"
        "importlib.import_module = stop\n"
        "main(['scan', 'x.onnx'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@posix
@pytest.mark.parametrize("how", ["passes over it", "takes it for a missing package"])
def test_an_import_cannot_swallow_an_interrupt(how: str, tmp_path: Path) -> None:
    """As C extensions do it (onnxruntime's), and importlib in its callbacks."""
    end = "pass" if how == "passes over it" else "raise ImportError('initialization failed')"
    (tmp_path / "swallows.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.2)\n"
        "except BaseException:\n"
        f"    {end}\n"
    )
    script = (
        "import sys, time\n"
        "import nonzero_rewrite.api as api\n"
        "from nonzero_rewrite.cli import main\n"
        "def scan_model(*arguments):\n"
        "    import swallows\n"
        "    time.sleep(20)\n"
        "api.scan_model = scan_model\n"
        "main(['scan', 'x.onnx'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


# -- no room, no rights -----------------------------------------------------------------------


def _mounted(path: Path) -> bool:
    """A small disk of its own at ``path``; False where this user cannot have one."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or not shutil.which("mount"):
        return False
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", path], capture_output=True, check=False
    )
    return done.returncode == 0


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not _mounted(folder):
        pytest.skip("no right to mount a small disk; the limit on a file's size is tested instead")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_a_sentence_and_leaves_nothing(full_disk: Path, tmp_path: Path) -> None:
    model = big(tmp_path / "model.onnx")
    older = full_disk / "patched.onnx"
    older.write_bytes(b"older")
    code, said = rewrite(model, "-o", older)
    assert code == 1
    assert said == (
        f"Error: {older}: cannot be written: No space left on device; "
        "choose another place or make room\n"
    )
    assert contents(full_disk) == {"patched.onnx": hashlib.sha256(b"older").hexdigest()}


def big(path: Path) -> Path:
    model = parse(GRAPH)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(100_000, np.float32), "big"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    path.write_bytes(model.SerializeToString())
    return path


@posix
def test_a_limit_on_file_size_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    model, out = big(tmp_path / "model.onnx"), tmp_path / "patched.onnx"
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "from nonzero_rewrite.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, model, "-o", out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: {out}: cannot be written: File too large; choose another place or make room\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["model.onnx", "-o", "closed/new"],
        ["model.onnx", "--dry-run", "--plan", "closed/new"],
        ["model.onnx", "-o", "o.onnx", "--build", "closed/new"],
        ["restore", "model.onnx", "-o", "closed/new"],
        ["verify", "model.onnx", "model.onnx", "--html", "closed/new"],
        ["build", "model.onnx", "-o", "closed/new"],
        ["build", "model.onnx", "-o", "e", "--timing-cache", "closed/new"],
    ],
    ids=" ".join,
)
def test_a_read_only_folder_is_a_sentence_before_the_work(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("model.onnx"))
    Path("closed").mkdir(mode=0o555)
    if os.name == "nt" or os.geteuid() == 0:  # who may write anywhere, but on a read-only disk
        real = os.access
        closed = lambda path, mode: str(path) != "closed" and real(path, mode)  # noqa: E731
        monkeypatch.setattr(os, "access", closed)
    code, said = rewrite(*arguments)
    assert code == 1
    assert said == (
        "Error: closed/new: cannot be written: its folder closed is read-only; choose another "
        "place\n"
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["closed", "model.onnx"]


def test_a_read_only_input_folder_is_enough(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    model = save(tmp_path / "in" / "model.onnx", "weights.bin")
    for path in (*model.parent.iterdir(), model.parent):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        assert rewrite(model, "-o", tmp_path / "patched.onnx", "--verify")[0] == 0
    finally:
        model.parent.chmod(0o755)
    assert is_whole(tmp_path / "patched.onnx")


# -- places that are none ---------------------------------------------------------------------


def test_a_missing_folder_is_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "nowhere" / "patched.onnx"
    code, said = rewrite(save(tmp_path / "model.onnx"), "-o", out)
    assert code == 1
    assert said == (
        f"Error: {out}: cannot be written: its folder {out.parent} does not exist; "
        "make it, or choose another one\n"
    )


@posix
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_not_replaced(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "pipe" if kind == "pipe" else Path(os.devnull)
    if kind == "pipe":
        os.mkfifo(out)
    code, said = rewrite(save(tmp_path / "model.onnx"), "-o", out)
    assert code == 1
    assert said == (
        f"Error: {out}: is a device or a pipe, which a file would take the place of; name a file\n"
    )
    assert not out.is_file()


def spellings(model: Path) -> Iterator[Path]:
    yield model
    yield model.parent / "." / "sub" / ".." / model.name
    for name, link in (("link.onnx", os.symlink), ("hard.onnx", os.link)):
        path = model.parent / name
        link(model, path)
        yield path
    folder = model.parent.parent / "alias"
    folder.symlink_to(model.parent, target_is_directory=True)
    yield folder / model.name


@posix
def test_the_input_is_never_the_output_however_it_is_spelled(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    model = save(tmp_path / "in" / "model.onnx")
    before = model.read_bytes()
    for out in spellings(model):
        code, said = rewrite(model, "-o", out)
        assert code == 1, out
        assert said == (
            f"Error: {out}: is the input itself; choose another output, or say --in-place\n"
        )
        assert model.read_bytes() == before


@pytest.mark.parametrize("how", ["copy", "link", "relative"])
@pytest.mark.parametrize("folder", [".", "other"])
def test_a_data_file_is_never_the_output(folder: str, how: str, tmp_path: Path) -> None:
    model = save(tmp_path / "model.onnx", "weights.bin")
    out = tmp_path / folder / "weights.bin"
    out.parent.mkdir(exist_ok=True)
    before = contents(tmp_path)
    code, said = rewrite(model, "-o", out, "--external-data", how)
    assert code == 1
    assert "is the name of the model's data file 'weights.bin'; choose another output" in said
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["model.onnx", "--dry-run", "--plan", "model.onnx"],
        ["model.onnx", "-o", "plan.json", "--plan", "plan.json"],
        ["model.onnx", "-o", "out.onnx", "--build", "model.onnx"],
        ["model.onnx", "-o", "arrays.npz", "--verify", "--inputs", "arrays.npz"],
        ["verify", "model.onnx", "model.onnx", "--junit", "model.onnx"],
        ["verify", "model.onnx", "model.onnx", "--html", "model.onnx"],
        ["verify", "model.onnx", "model.onnx", "--inputs", "arrays.npz", "--junit", "arrays.npz"],
        ["run", "engine", "-o", "engine"],
        ["run", "engine", "--inputs", "arrays.npz", "-o", "arrays.npz"],
        ["restore", "model.onnx", "-o", "model.onnx"],
        ["build", "model.onnx", "-o", "model.onnx"],
        ["build", "model.onnx", "-o", "new", "--timing-cache", "model.onnx"],
        ["build", "model.onnx", "-o", "engine", "--original", "engine"],
        ["build", "model.onnx", "-o", "plan", "--original", "plan.json"],
        ["build", "model.onnx", "-o", "new", "--original", "engine", "--timing-cache", "engine"],
        ["model.onnx", "-o", "new", "--build", "e", "--timing-cache", "model.onnx"],
        ["model.onnx", "-O", "new", "--build", "new", "--timing-cache", "model.onnx"],
    ],
    ids=" ".join,
)
def test_no_input_of_a_command_is_its_output(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("model.onnx"))
    Path("engine").write_bytes(b"engine")
    np.savez("arrays.npz", x=np.ones(3, np.float32))
    Path("plan.json").write_text("{}")
    before = contents(tmp_path)
    code, said = rewrite(*arguments)
    assert code == 1
    assert said.count("\n") == 1 and said.startswith("Error: "), said
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["model.onnx", "-o", "new", "--build", "new"],
        ["model.onnx", "-o", "new", "--build", "./new"],
        ["model.onnx", "-o", "new.json", "--build", "new"],
        ["model.onnx", "-o", "new", "--build", "e", "--timing-cache", "new"],
        ["model.onnx", "-o", "new", "--build", "e", "--timing-cache", "sub/../e"],
        ["verify", "model.onnx", "model.onnx", "--html", "new", "--junit", "new"],
        ["verify", "model.onnx", "model.onnx", "--html", "new", "--json", "sub/../new"],
        ["build", "model.onnx", "-o", "new", "--timing-cache", "new"],
        ["build", "model.onnx", "-o", "new", "--timing-cache", "new.json"],
    ],
    ids=" ".join,
)
def test_no_two_outputs_of_a_command_are_one_file(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    save(Path("model.onnx"))
    before = contents(tmp_path)
    code, said = rewrite(*arguments)
    assert code == 1
    assert said.endswith("is named for two outputs of this command; choose another for one\n"), said
    assert said.count("\n") == 1 and said.startswith("Error: ")
    assert contents(tmp_path) == before


def test_a_folder_of_models_is_not_written_onto_itself(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save(tmp_path / name / f"{name}.onnx")
    before = contents(tmp_path)
    code, said = rewrite(tmp_path / "a" / "a.onnx", "-O", tmp_path / "a")
    assert code == 1
    assert said == (
        f"Error: {tmp_path / 'a' / 'a.onnx'} would be written to {tmp_path / 'a' / 'a.onnx'}, "
        "which is one of the models; choose another folder\n"
    )
    assert contents(tmp_path) == before


@posix
def test_a_link_is_not_replaced_in_place(tmp_path: Path) -> None:
    model = save(tmp_path / "model.onnx")
    link = tmp_path / "link.onnx"
    link.symlink_to(model)
    code, said = rewrite(link, "--in-place")
    assert code == 1
    assert said == (f"Error: {link}: is a link to {model}; name that file to replace it in place\n")
    assert link.is_symlink()


@posix
def test_a_link_in_the_outputs_place_is_replaced_not_followed(tmp_path: Path) -> None:
    other, out = tmp_path / "precious", tmp_path / "out.onnx"
    other.write_bytes(b"precious")
    out.symlink_to(other)
    assert rewrite(save(tmp_path / "model.onnx"), "-o", out)[0] == 0
    assert other.read_bytes() == b"precious"
    assert is_whole(out) and not out.is_symlink()


@pytest.mark.parametrize(
    "name",
    ["with space.onnx", "\u00fcml\u00e4ut \u4e2d\u6587 \U0001f600.onnx", "-dash.onnx", "[x].onnx"],
)
def test_names_of_any_kind(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("model.onnx"), "weights \u00fc.bin")
    (tmp_path / "a folder").mkdir()
    out = Path("a folder") / name
    code, said = rewrite("model.onnx", "-o", out, "--verify", "--json")
    assert code == 0, said
    assert is_whole(out)
    assert rewrite("restore", out, "-o", f"./{name}")[0] == 0


def test_names_as_long_as_names_can_be(tmp_path: Path) -> None:
    model = save(tmp_path / "model.onnx")
    for stem in ("x" * 250, "\U0001f600" * 62):
        out = tmp_path / f"{stem}.onnx"
        assert rewrite(model, "-o", out)[0] == 0
        assert is_whole(out)
        assert rewrite(out, "--in-place", "--verify")[0] == 0
    code, said = rewrite(model, "-o", tmp_path / ("y" * 300))
    assert code == 1 and "File name too long" in said


# -- at the same time -------------------------------------------------------------------------


def test_two_runs_on_one_output_leave_a_whole_one(tmp_path: Path) -> None:
    models = [save(tmp_path / "one.onnx"), big(tmp_path / "two.onnx")]
    out = tmp_path / "patched.onnx"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from nonzero_rewrite.load import load_model\n"
        "from nonzero_rewrite.rewrite import rewrite\n"
        "from nonzero_rewrite.write import write_model\n"
        "source = load_model(sys.argv[1])\n"
        "result = rewrite(source.model)\n"
        "for _ in range(100):\n"
        "    write_model(result.model, source, Path(sys.argv[2]))\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script, model, out], stderr=subprocess.PIPE)
        for model in models
    ]
    seen = 0
    while any(process.poll() is None for process in running):
        if out.exists():
            onnx.load(out)
            seen += 1
        time.sleep(0.001)
    assert [process.communicate()[1] for process in running] == [b"", b""]
    assert seen and is_whole(out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.onnx", "patched.onnx", "two.onnx"]


def test_the_input_may_vanish_between_reading_and_copying(tmp_path: Path) -> None:
    source = load_model(save(tmp_path / "model.onnx"))
    source.path.unlink()
    with pytest.raises(ModelLoadError, match="cannot be read: No such file"):
        write_model(source.model, source, tmp_path / "out.onnx", changed=False)
    with pytest.raises(ModelLoadError):
        copy_file(source.path, tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_an_error_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(ZeroDivisionError), atomic_file(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    with pytest.raises(ModelWriteError), atomic_file(path) as file:
        raise OSError(28, "No space left on device")
    assert not list(tmp_path.iterdir())
