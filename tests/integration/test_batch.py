"""Many models: where they go, what a failure costs, how a run ends."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from helpers import wrong_rewrites
from helpers.dying import dies
from helpers.manifest import MODELS

from nonzero_rewrite import batch
from nonzero_rewrite.batch import find_models, rewrite_files, worst_code
from nonzero_rewrite.cli import main
from nonzero_rewrite.errors import ModelLoadError, PlanError
from nonzero_rewrite.file_task import FileResult, FileTask, rewrite_file, tolerances
from nonzero_rewrite.rules import DEFAULT_RULES

EXAMPLE = MODELS.parent / "examples" / "cluster.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models, one of them deeper, and one file that is no model."""
    path = tmp_path / "in"
    (path / "deep").mkdir(parents=True)
    shutil.copy(MODELS / "keypoints.onnx", path)
    shutil.copy(MODELS / "early_exit.onnx", path / "deep")
    (path / "junk.onnx").write_text("junk")
    return path


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(word) for word in arguments])


def test_a_folder_keeps_its_layout_and_goes_on_past_a_failure(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(folder, "-O", out, "-j", 2, "--verify")
    assert done.exit_code == 1
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()) == [
        "deep/early_exit.onnx",
        "keypoints.onnx",
    ]
    assert "3 models: 1 error, 2 done" in done.stdout or "2 done, 1 error" in done.stdout
    assert done.stderr.count("Error: ") == 1
    assert "junk.onnx: not an ONNX model" in done.stderr
    again = run(folder, "-O", folder / "out", "--json")
    account = json.loads(again.stdout)
    assert [Path(m["model"]).name for m in account["models"]] == [
        "early_exit.onnx",
        "junk.onnx",
        "keypoints.onnx",
    ]
    assert [m["exit_code"] for m in account["models"]] == [0, 1, 0]
    assert account["models"][2]["outcomes"] == {"plugin": 1}
    assert account["exit_code"] == 1
    # The results of the run before are no models of this one.
    assert len(json.loads(run(folder, "-O", folder / "out", "--json").stdout)["models"]) == 3


@pytest.mark.rtx
def test_engines_go_beside_each_other(tmp_path: Path) -> None:
    done = run(
        *(MODELS / "keypoints.onnx", MODELS / "pillar_scatter.onnx", "-O", tmp_path / "out"),
        *("--build", tmp_path / "engines", "--trt", "tensorrt_rtx", "-j", 2),
    )
    assert done.exit_code == 4, done.output
    assert (tmp_path / "engines" / "keypoints.engine").is_file()
    assert not (tmp_path / "engines" / "pillar_scatter.engine").exists()
    assert (tmp_path / "out" / "pillar_scatter.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("a.onnx", "b.onnx"), "several models need a folder"),
        (("a.onnx", "-O", "out", "-o", "b.onnx"), "-o works on one model"),
        (("a.onnx", "-O", "out", "--in-place"), "--in-place works on one model"),
        (("a.onnx", "-O", "out", "--dry-run"), "--dry-run"),
    ],
)
def test_a_wrong_command_line(arguments: tuple[str, ...], sentence: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_two_models_never_share_an_output(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(MODELS / "keypoints.onnx", other)
    one, two = folder / "keypoints.onnx", other / "keypoints.onnx"
    with pytest.raises(PlanError, match=r"would both be written to .*keypoints\.onnx"):
        find_models([one, two], tmp_path / "out")
    assert find_models([one, one], tmp_path / "out") == [(one, tmp_path / "out" / one.name)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match=r"no \.onnx file"):
        find_models([tmp_path / "empty"], tmp_path / "out")


def test_the_gravest_result_decides() -> None:
    def results(*codes: int) -> list[FileResult]:
        return [FileResult(Path("x"), code) for code in codes]

    assert worst_code([]) == 0
    assert worst_code(results(0, 4, 0)) == 4
    assert worst_code(results(4, 1)) == 1
    assert worst_code(results(1, 3, 4)) == 3


def test_a_wrong_result_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nonzero_rewrite.rewrite as rewriting

    source = tmp_path / "x.onnx"
    onnx.save(wrong_rewrites.original(), source)
    right = rewriting.rewrite

    def wrong(model: onnx.ModelProto, options: Any) -> Any:
        result = right(model, options)
        for node in result.model.graph.node:
            if node.op_type == "Greater":
                node.op_type = "Less"
        return result

    monkeypatch.setattr(rewriting, "rewrite", wrong)
    task = FileTask(source, tmp_path / "out" / "x.onnx", verify=True, time_budget=1.0)
    result = rewrite_file(task)
    assert result.code == 3
    assert result.verification is not None
    assert not result.verification.ok
    assert result.error == result.verification.reason


def test_tasks_and_results_travel(tmp_path: Path) -> None:
    task = FileTask(MODELS / "keypoints.onnx", tmp_path / "out.onnx", verify=True, time_budget=1.0)
    task = pickle.loads(pickle.dumps(task))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        result = executor.submit(rewrite_file, task).result()
    assert result.code == 0
    assert result.verification is not None
    assert result.verification.ok
    assert json.loads(json.dumps(result.to_dict()))["outcomes"] == {"plugin": 1}


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = rewrite_file(FileTask(MODELS / "keypoints.onnx", tmp_path / "file" / "x.onnx"))
    assert result.code == 1
    assert "cannot be made" in result.error


def test_a_process_that_dies_costs_one_model(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch, "rewrite_file", dies)
    names = ["a", "dies", "b", "bug", "c"]
    tasks = [FileTask(Path(f"{name}.onnx"), Path(f"out/{name}.onnx")) for name in names]
    seen: list[FileResult] = []
    results = rewrite_files(tasks, jobs=1, on_result=seen.append)
    assert [result.source.stem for result in results] == names
    assert [result.code for result in results] == [0, 1, 0, 1, 0]
    assert "the process working on it died" in results[1].error
    assert "unexpected ZeroDivisionError: a bug" in results[3].error
    assert "in dies" in caplog.text  # the traceback of a fault of ours is kept
    assert sorted(map(id, seen)) == sorted(map(id, results))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for a process group")
def test_an_interrupt_leaves_whole_files_and_no_traceback(tmp_path: Path) -> None:
    done = subprocess.Popen(
        [sys.executable, "-m", "nonzero_rewrite", MODELS, "-O", "out", "-j", "2", "--verify"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out/*.onnx")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(done.pid, signal.SIGINT)
    _, errors = done.communicate(timeout=60)
    assert done.returncode == 130
    assert errors.splitlines()[-1] == "interrupted"
    assert "Traceback" not in errors
    written = [path.name for path in (tmp_path / "out").iterdir()]
    assert all(name.endswith(".onnx") and not name.startswith(".") for name in written)
    for name in written:
        onnx.checker.check_model(onnx.load(tmp_path / "out" / name))


TESTS = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="masks as POSIX has them")
def test_a_process_that_starts_cannot_be_interrupted_before_it_is_ready(tmp_path: Path) -> None:
    """Else the modules it imports end in a traceback on the terminal."""
    script = tmp_path / "main.py"
    script.write_text(
        "import multiprocessing\n"
        "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\n"
        "from helpers.dying import blocked\n"
        "from nonzero_rewrite.batch import _hold_interrupts\n"
        "def first():\n"
        "    spawn = multiprocessing.get_context('spawn')\n"
        "    with ProcessPoolExecutor(1, mp_context=spawn) as process:\n"
        "        return process.submit(blocked).result()\n"
        "if __name__ == '__main__':\n"
        "    with ThreadPoolExecutor(1, initializer=_hold_interrupts) as threads:\n"
        "        print(threads.submit(first).result())\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": TESTS},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"


SLEEPS = """
from pathlib import Path
from helpers.dying import sleeps
from nonzero_rewrite import batch
from nonzero_rewrite.file_task import FileTask
if __name__ == "__main__":
    batch.rewrite_file = sleeps
    try:
        batch.rewrite_files([FileTask(Path("m.onnx"), Path("started"))])
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize(("how", "says"), [("SIGINT", "interrupted\n"), ("SIGKILL", "")])
def test_the_work_ends_with_the_parent_alone(how: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SLEEPS)
    process = subprocess.Popen(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": TESTS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(getattr(signal, how))
    out, errors = process.communicate(timeout=30)  # the pipes close when the last process ends
    assert out == says and "Traceback" not in errors
    assert not (tmp_path / "started").exists(), "the work took its file along"


def test_only_inexact_rules_get_a_tolerance() -> None:
    assert tolerances(DEFAULT_RULES) == (0.0, 0.0)
    assert tolerances(DEFAULT_RULES | {"where-sum"}) == (1e-5, 1e-6)


@pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="dask[distributed] is not installed"
)
def test_the_cluster_example_on_a_local_dask_cluster(folder: Path, tmp_path: Path) -> None:
    done = _example(folder, tmp_path / "out", "--dask", "local", "--jobs", "1")
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "out" / "deep" / "early_exit.onnx").is_file()
    assert "keypoints.onnx: 1 plugin" in done.stdout
    assert "junk.onnx: " in done.stdout


def test_the_cluster_example_on_this_machine(folder: Path, tmp_path: Path) -> None:
    done = _example(folder / "keypoints.onnx", tmp_path / "out", "--jobs", "1")
    assert (done.returncode, done.stdout) == (0, "keypoints.onnx: 1 plugin\n"), done.stderr


def _example(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLE), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
