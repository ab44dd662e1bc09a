"""Break models in every way we know and see whether the tool keeps its promises.

    python tools/fuzz.py [FOLDER...] --cases 100000 --jobs 2 --seed 0

Each case is made from a model in the folders (default: models/) by a few changes of
tools/fuzz_mutations.py, drawn from the seed and the case's number alone. It is loaded, rewritten,
written, restored, and in a share of the cases handed to the command line. A violation is:

* an exception that is not one of the tool's own (a traceback for the user),
* a case that takes longer than --time-limit, or more memory than --memory,
* the end of the process, be it in the C++ code of a library,
* a file written elsewhere than asked, or an input that changed,
* a model that onnx.checker and onnxruntime take, and whose rewrite the checker refuses,
* a model that runs in onnxruntime and whose rewrite gives anything else.

Cases run in child processes, so that the end of one is a finding and not the end of the run.
What onnx.checker and onnxruntime do with a broken model (crash, hang) is counted apart. Inputs that
violate are kept in --keep. Exits with 1 when there are any.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import mmap
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import fuzz_mutations as mutations
from google.protobuf.message import EncodeError

BATCH = 2500
KEPT_OF_A_KIND = 3
PHASES = ("mutate", "tool", "files", "oracle", "idle")
LARGE = 50_000
"""Seeds above so many bytes are drawn fifty times less often."""


# -- one case, in the child -------------------------------------------------------------------


@dataclass
class Case:
    """What is on disk for one case."""

    number: int
    rng: random.Random
    root: Path
    compared: bool = False

    @property
    def source(self) -> Path:
        return self.root / "in" / "model.onnx"

    @property
    def target(self) -> Path:
        return self.root / "out" / "patched.onnx"


class ViolationError(Exception):
    """A broken promise; the text is its kind."""


def make_case(seeds: list[bytes], seed: int, number: int, root: Path) -> Case:
    """Write the case's files; the same for the same arguments."""
    import onnx

    shutil.rmtree(root, ignore_errors=True)
    (root / "in").mkdir(parents=True)
    (root / "out").mkdir()
    rng = random.Random(f"{seed}:{number}")
    case = Case(number, rng, root)
    data = rng.choices(seeds, weights=[1 if len(s) > LARGE else 50 for s in seeds])[0]
    kind = rng.random()
    if kind < 0.85:
        model = onnx.ModelProto.FromString(data)
        for _ in range(rng.choice([1, 1, 1, 2, 3, 5])):
            change = rng.choice(mutations.MODEL)
            # What protobuf refuses to hold cannot be in a file either.
            with contextlib.suppress(ValueError, TypeError):
                change(mutations.Pick(rng, model))
        if rng.random() < 0.1:
            mutations.external_data(rng, model, root / "in")
        with contextlib.suppress(EncodeError):  # nested deeper than protobuf writes
            data = model.SerializeToString()
    if kind > 0.8:
        data = rng.choice(mutations.BYTES)(rng, data)
    case.source.write_bytes(data)
    return case


def snapshot(root: Path) -> dict[str, str]:
    """Every file below ``root`` with its content."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(root))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(root))] = hashlib.sha1(path.read_bytes()).hexdigest()
    return found


def examine(case: Case, mark: Any) -> str:
    """Run one case; what became of it in a word. Raises what the tool let through, or worse."""
    before = snapshot(case.root)
    mark("tool")
    outcome, result = through_library(case)
    if case.number % 20 == 0:
        through_command_line(case)
    mark("files")
    after = snapshot(case.root)
    if any(after.get(name) != content for name, content in before.items()):
        raise ViolationError("an input changed")
    if strange := [name for name in after if name not in before and not name.startswith("out/")]:
        raise ViolationError(f"wrote {strange[0]}")
    if left := [name for name in after if name.endswith(".tmp")]:
        raise ViolationError(f"left {left[0]}")
    if result is not None and result.changed and case.target.exists():
        mark("oracle")
        check_output(case)
    return outcome + (", compared" if case.compared else "")


def through_library(case: Case) -> tuple[str, Any]:
    from nonzero_plugin.errors import NonZeroPluginError

    from nonzero_rewrite import load, wire
    from nonzero_rewrite.errors import NonZeroRewriteError
    from nonzero_rewrite.load import load_model
    from nonzero_rewrite.options import Options
    from nonzero_rewrite.restore import restore_model
    from nonzero_rewrite.rewrite import rewrite
    from nonzero_rewrite.rules import DEFAULT_RULES, EXACT_RULES
    from nonzero_rewrite.write import write_model

    rules = case.rng.choice([DEFAULT_RULES, DEFAULT_RULES, EXACT_RULES])
    if case.rng.random() < 0.5:  # as if the file were large: its weights stay in it
        load.LARGE_FILE_BYTES, wire.LARGE_BYTES = 1, 64
    else:
        load.LARGE_FILE_BYTES, wire.LARGE_BYTES = 1 << 25, 1 << 20
    result = None
    try:
        source = load_model(case.source)
        result = rewrite(source.model, Options(rules=rules))
        how = case.rng.choice(["copy", "copy", "link", "relative"])
        write_model(result.model, source, case.target, changed=result.changed, external_data=how)
        again = load_model(case.target)
        if restore_model(again.model):
            write_model(again.model, again, case.root / "out" / "restored.onnx")
    except (NonZeroRewriteError, NonZeroPluginError) as err:
        text = str(err)
        if not text or "\n" in text:
            raise ViolationError("an error of several lines") from err
        return f"refused ({type(err).__name__})", result
    return ("rewritten" if result.changed else "nothing to rewrite"), result


def through_command_line(case: Case) -> None:
    from click.testing import CliRunner

    from nonzero_rewrite.cli import main

    out = case.root / "out"
    arguments = case.rng.choice(
        [
            [str(case.source), "-o", str(out / "cli.onnx"), "--max-nonzero", "3"],
            [str(case.source), "-o", str(out / "cli.onnx"), "--rules", "+where-sum", "--json"],
            [str(case.source), "--dry-run", "--plan", str(out / "plan.json")],
            ["scan", str(case.source), "--json"],
            ["scan", str(case.source)],
            ["restore", str(case.source), "-o", str(out / "cli.onnx")],
        ]
    )
    done = CliRunner().invoke(main, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code not in (0, 1):
        raise ViolationError(f"{arguments[0]} ended with {done.exit_code}")


def check_output(case: Case) -> None:
    """A changed model must be as valid as the original, and equal where that runs.

    Only originals count whose declared types are true as far as onnx can tell: the tool believes
    them, onnxruntime shrugs them off at graph outputs.
    """
    import onnx

    original, patched = case.source.read_bytes(), case.target.read_bytes()

    def refusal(data: bytes, full: bool) -> str:
        try:
            onnx.checker.check_model(data, full_check=full)
        except Exception as err:  # RuntimeErrors and ValidationErrors, by version
            return (str(err).strip() or type(err).__name__).splitlines()[0][:160]
        return ""

    refused = refusal(patched, full=False)
    wanted = case.rng.random() < 0.3 and len(original) < LARGE
    if (not refused and not wanted) or refusal(original, full=True):
        return
    try:
        left = session(original, case.source.parent)
    except Exception:  # its exceptions share no base
        return
    if refused:
        raise ViolationError(f"checker: {refused}")
    compare(left, patched, case)


def compare(left: Any, patched: bytes, case: Case) -> None:
    from nonzero_rewrite.compare import compare_values

    try:
        cases = [feeds(left, case.rng, how) for how in ("none", "some", "all")]
        expected = [left.run(None, each) for each in cases]
        again = [left.run(None, each) for each in cases]
    except Exception:  # the original does not run: nothing to hold on to
        return
    if compare_values(expected, again) is not None:
        return
    if not all(map(truthful, [left] * len(cases), cases, expected)):
        return
    try:
        right = session(patched, case.target.parent)
        actual = [right.run(None, each) for each in cases]
    except Exception as err:
        raise ViolationError(f"the patched model does not run: {str(err)[:160]}") from err
    if difference := compare_values(expected, actual):
        raise ViolationError(f"the patched model differs: {difference.text[:160]}")
    case.compared = True


def truthful(runner: Any, given: dict[str, Any], outputs: list[Any]) -> bool:
    """False when a graph input or output has other dims than the model declares."""
    sizes: dict[str, int] = {}
    values = [*given.items(), *zip((o.name for o in runner.get_outputs()), outputs, strict=True)]
    declared = {v.name: dims_of(v) for v in (*runner.get_inputs(), *runner.get_outputs())}
    for name, value in values:
        dims, actual = declared[name], getattr(value, "shape", None)
        if dims is None or actual is None:
            continue
        if len(dims) != len(actual) and dims:  # without dims: scalar or undeclared
            return False
        for dim, size in zip(dims, actual, strict=False):
            known = dim if isinstance(dim, int) else sizes.setdefault(dim, size) if dim else size
            if known != size:
                return False
    return True


def dims_of(value: Any) -> list[int | str | None] | None:
    """Declared dims; None where a dim has a name that onnxruntime cannot say (not UTF-8)."""
    try:
        return value.shape
    except UnicodeDecodeError:
        return None


def session(data: bytes, folder: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(folder)
    )
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def feeds(runner: Any, rng: random.Random, how: str) -> dict[str, Any]:
    import numpy as np

    draw, values = np.random.default_rng(rng.randrange(1 << 30)), {}
    for value in runner.get_inputs():
        dims = [dim if isinstance(dim, int) else 3 for dim in value.shape]
        kind = value.type.removeprefix("tensor(").removesuffix(")")
        name = {"float": "float32", "double": "float64"}.get(kind, kind)
        dtype = np.dtype(name)  # TypeError: no plain tensor, the caller gives up
        if np.prod([float(dim) for dim in dims]) > 1e6:
            raise ValueError("too large to try")
        fill = {"none": 0, "all": 1}.get(how)
        array = draw.integers(0, 3, size=dims) if fill is None else np.full(dims, fill)
        values[value.name] = array.astype(dtype)
    return values


# -- the child --------------------------------------------------------------------------------


def child(folders: list[str], seed: int, first: int, last: int, root: str, memory: int) -> None:
    """Run the cases ``first`` to ``last``; a line of JSON for each violation, one at the end."""
    seeds = read_seeds([Path(folder) for folder in folders])
    warm_up()
    limit_memory(memory)
    with Path(root, "state").open("r+b") as file:
        state = mmap.mmap(file.fileno(), 16)
    counts: Counter[str] = Counter()
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # libraries print what they like

    for number in range(first, last):

        def mark(phase: str, number: int = number) -> None:
            state[:16] = struct.pack("<qq", number, PHASES.index(phase))

        mark("mutate")
        case = make_case(seeds, seed, number, Path(root, "case"))
        try:
            counts[examine(case, mark)] += 1
        except Exception as err:
            kind = str(err) if isinstance(err, ViolationError) else where(err)
            text = "".join(traceback.format_exception(err))
            report = {"case": number, "kind": kind, "text": text[-4000:]}
            channel.write(json.dumps(report) + "\n")
            channel.flush()
            keep(Path(root, "case"), Path(root, f"kept{number}"))
        mark("idle")
        if number % 50 == 0:
            gc.collect()
    channel.write(json.dumps({"counts": counts, "peak": peak_memory()}) + "\n")
    channel.flush()
    os._exit(0)  # nothing to clean up, and libraries may crash doing so


def where(err: Exception) -> str:
    """The exception and the line of the tool it came from: what makes two findings the same."""
    frames = traceback.extract_tb(err.__traceback__)
    own = [f for f in frames if "nonzero_" in f.filename] or list(frames)
    return f"{type(err).__name__} in {Path(own[-1].filename).name}:{own[-1].lineno}"


def warm_up() -> None:
    """Import everything first, so that the memory limit counts the cases alone."""
    import onnx.checker
    import onnx.inliner
    import onnxruntime

    import nonzero_rewrite.cli.restore
    import nonzero_rewrite.cli.rewrite
    import nonzero_rewrite.cli.scan
    import nonzero_rewrite.rewrite

    _ = (onnx, onnxruntime, nonzero_rewrite.cli)


def limit_memory(megabytes: int) -> None:
    """More address space than this is a MemoryError (where the system can say so)."""
    try:
        import resource
    except ImportError:  # Windows
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + megabytes * (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def peak_memory() -> int:
    """Peak resident memory in MB."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def read_seeds(folders: list[Path]) -> list[bytes]:
    paths = sorted(path for folder in folders for path in folder.rglob("*.onnx"))
    return [path.read_bytes() for path in paths]


def keep(case: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(case, place, symlinks=True)


# -- the parent -------------------------------------------------------------------------------


@dataclass
class Tally:
    """What all children found."""

    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)
    elsewhere: Counter[str] = field(default_factory=Counter)
    peak: int = 0

    def violation(self, kind: str, number: int, text: str, case: Path, folder: Path) -> None:
        self.kinds[kind] += 1
        self.texts.setdefault(kind, f"case {number}\n{text}")
        if self.kinds[kind] <= KEPT_OF_A_KIND and case.is_dir():
            keep(case, folder / f"case{number}")
            (folder / f"case{number}" / "kind.txt").write_text(f"{kind}\n{text}", "utf-8")


@dataclass
class Runner:
    """Runs ranges of cases in children, and goes on behind a case that ended one."""

    folders: list[Path]
    seed: int
    time_limit: float
    memory: int
    keep: Path
    tally: Tally = field(default_factory=Tally)

    def run(self, first: int, last: int) -> None:
        while first < last:
            with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
                first = self._child(first, last, Path(name))

    def _child(self, first: int, last: int, root: Path) -> int:
        """Run one child; the number of the first case that was not run."""
        (root / "state").write_bytes(struct.pack("<qq", first, 0))
        folders = [str(folder) for folder in self.folders]
        request = [folders, self.seed, first, last, str(root), self.memory]
        with (root / "stdout").open("wb") as out, (root / "stderr").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, __file__, "--child", json.dumps(request)], stdout=out, stderr=err
            )
            hung = self._wait(process, root / "state")
        finished = False
        for line in (root / "stdout").read_text("utf-8").splitlines():
            data = json.loads(line)
            if "counts" in data:
                finished = True
                self.tally.counts.update(data["counts"])
                self.tally.peak = max(self.tally.peak, data["peak"])
            else:
                place = root / f"kept{data['case']}"
                self.tally.violation(data["kind"], data["case"], data["text"], place, self.keep)
        if finished:
            return last
        number, phase = struct.unpack("<qq", (root / "state").read_bytes())
        how = "hang" if hung else f"the process ended with {process.returncode}"
        kind = f"{how} in {PHASES[phase]}"
        if PHASES[phase] == "oracle":
            self.tally.elsewhere[kind] += 1
        else:
            text = (root / "stderr").read_text("utf-8", "replace")[-2000:]
            self.tally.violation(kind, number, text, root / "case", self.keep)
        self.tally.counts["cases before it, in its process"] += number - first
        return number + 1

    def _wait(self, process: subprocess.Popen[bytes], state: Path) -> bool:
        """Wait for the child; True when it had to be ended."""
        seen, since = b"", time.monotonic()
        while process.poll() is None:
            now = state.read_bytes()
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self.time_limit + 10 * (since == 0):
                process.kill()
                process.wait()
                return True
            time.sleep(0.05)
        return False


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--cases", default=10_000, show_default=True)
@click.option("--first", default=0, show_default=True, help="Number of the first case.")
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Processes at a time.")
@click.option("--time-limit", default=20.0, show_default=True, help="Seconds for one phase.")
@click.option("--memory", default=1024, show_default=True, help="MB above what imports take.")
@click.option(
    "--keep",
    "keep_folder",
    type=click.Path(path_type=Path),
    default="fuzz-findings",
    show_default=True,
    help="Inputs that violate go here.",
)
def main(
    *,
    folders: tuple[Path, ...],
    cases: int,
    first: int,
    seed: int,
    jobs: int,
    time_limit: float,
    memory: int,
    keep_folder: Path,
) -> None:
    """Run CASES mutated models from FOLDERS through the tool."""
    folders = folders or (Path("models"),)
    if not read_seeds(list(folders)):
        raise click.UsageError(f"{', '.join(map(str, folders))}: no .onnx file")
    started = time.monotonic()
    runner = Runner([f.absolute() for f in folders], seed, time_limit, memory, keep_folder)
    starts = range(first, first + cases, BATCH)
    with ThreadPoolExecutor(jobs) as pool:
        for done, _ in enumerate(
            pool.map(lambda n: runner.run(n, min(n + BATCH, first + cases)), starts), 1
        ):
            if sys.stderr.isatty() or done % 4 == 0:
                click.echo(f"{min(done * BATCH, cases)} cases", err=True)
    tally = runner.tally
    print(f"{cases} cases from seed {seed} in {time.monotonic() - started:.0f} s")
    for word, count in sorted(tally.counts.items()):
        print(f"  {count} {word}")
    print(f"  peak memory of a process: {tally.peak} MB")
    for kind, count in tally.elsewhere.items():
        print(f"  {count} not ours: {kind}")
    for kind, count in tally.kinds.most_common():
        print(f"VIOLATION {count} x {kind}\n{tally.texts[kind]}")
    print(f"violations: {tally.kinds.total()} of {len(tally.kinds)} kinds")
    sys.exit(bool(tally.kinds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*json.loads(sys.argv[2]))
    main()
