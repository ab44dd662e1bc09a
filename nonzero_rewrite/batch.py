"""Many models in processes: where each goes, how a run over all of them ends."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from pathlib import Path
from typing import NoReturn

from nonzero_rewrite.errors import (
    EXIT_BUILD_FAILED,
    EXIT_DIFFERENT,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    ModelLoadError,
    PlanError,
)
from nonzero_rewrite.file_task import FileResult, FileTask, rewrite_file

logger = logging.getLogger(__name__)


_SEVERITY = (0, EXIT_BUILD_FAILED, EXIT_ERROR, EXIT_DIFFERENT)
"""Exit codes from harmless to grave: a wrong result is worse than none."""


_TIDY_SECONDS = 10.0
"""How long a process may take to end by an interrupt before it is ended."""


def worst_code(results: Sequence[FileResult]) -> int:
    """The exit code of a run: that of its gravest result (3, then 1, then 4, then 0)."""
    return max((result.code for result in results), key=_SEVERITY.index, default=0)


def find_models(paths: Sequence[Path], folder: Path) -> list[tuple[Path, Path]]:
    """Each model, with its place below ``folder``: files by name, those of folders by sub-path.

    Raises:
        ModelLoadError: a folder without ``.onnx`` files.
        PlanError: two models would get the same place.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        for model, place in _models_of(path, folder):
            target = folder / place
            if found.setdefault(target, model) != model:
                raise PlanError(
                    f"{found[target]} and {model} would both be written to {target}; "
                    "name a folder that holds both"
                )
    sources = {model.resolve() for model in found.values()}
    for target, model in found.items():
        if target.resolve() in sources:
            raise PlanError(
                f"{model} would be written to {target}, which is one of the models; "
                "choose another folder"
            )
    return [(model, target) for target, model in found.items()]


def _models_of(path: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    if not path.is_dir():
        yield path, Path(path.name)
        return
    for model in models_of(path, but=folder):
        yield model, model.relative_to(path)


def models_of(folder: Path, *, but: Path | None = None) -> list[Path]:
    """The models of a folder, of which one is expected; none of those below ``but``.

    Raises:
        ModelLoadError: there is none, so the folder is not the one that was meant.
    """
    models = models_below(folder)
    if but is not None:
        inside = but.resolve()
        models = [path for path in models if not path.resolve().is_relative_to(inside)]
    if not models:
        raise ModelLoadError(
            f"{folder}: no .onnx file in this folder; name the models, or the folder that holds "
            "them"
        )
    return models


def models_below(folder: Path) -> list[Path]:
    """The ``.onnx`` files of a folder and of those in it; hidden ones are not meant."""
    return [path for path in sorted(folder.rglob("*.onnx")) if not path.name.startswith(".")]


def rewrite_files(
    tasks: Sequence[FileTask],
    *,
    jobs: int = 1,
    on_result: Callable[[FileResult], None] | None = None,
) -> list[FileResult]:
    """``rewrite_file`` for each task, ``jobs`` at a time, each in a process of its own kind.

    A process that dies (out of memory, a crash in a native library) costs the model it was working
    on and no other. Scripts that call this need ``if __name__ == "__main__":``, since the
    processes are spawned.

    Args:
        tasks: what to do.
        jobs: how many processes.
        on_result: called in this thread with each result as it comes.

    Returns:
        The results, in the order of ``tasks``.
    """
    if not tasks:
        return []
    results: dict[int, FileResult] = {}
    workers = _Workers()
    threads = ThreadPoolExecutor(min(jobs, len(tasks)), initializer=_hold_interrupts)
    try:
        running = {threads.submit(workers.run, task): n for n, task in enumerate(tasks)}
        for done in as_completed(running):
            results[running[done]] = done.result()
            if on_result is not None:
                on_result(done.result())
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        workers.interrupt()
        raise
    finally:
        workers.close()
        threads.shutdown()
    return [results[number] for number in range(len(tasks))]


def _hold_interrupts() -> None:
    """Processes started from this thread get an interrupt when they are ready to end quietly."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        resource_tracker.ensure_running()  # which would unblock them, were it started later
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _start_process() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _die_quietly()


def _end_with_parent() -> None:
    """A parent that was killed wants nothing any more, and no process waits for ever for work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if os.name == "posix":
            os.kill(os.getpid(), signal.SIGINT)  # files being written are taken along
            time.sleep(_TIDY_SECONDS)
        os._exit(EXIT_INTERRUPTED)


def _die_quietly() -> None:
    """Ctrl-C reaches every process of the terminal; an idle one has nothing to say about it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _stop_work(number: int, frame: object) -> NoReturn:
    """As Python's own handler, but what is interrupted then has nowhere to say so.

    The parent was interrupted too and speaks for all. A terminal and the parent may both send it:
    the second must not end the tidying up.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    raise KeyboardInterrupt


def _interruptible(work: Callable[[FileTask], FileResult], task: FileTask) -> FileResult:
    """``work`` that takes its temporary files along when it is interrupted."""
    signal.signal(signal.SIGINT, _stop_work)
    try:
        return work(task)
    except KeyboardInterrupt:
        os._exit(EXIT_INTERRUPTED)
    finally:
        _die_quietly()


def _failure(task: FileTask, what: str, started: float) -> FileResult:
    seconds = round(time.monotonic() - started, 3)
    error = f"{task.source}: {what}; run this model alone to see more"
    return FileResult(task.source, EXIT_ERROR, error, seconds=seconds)


class _Workers:
    """One process for each thread that asks; replaced when it dies."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[ProcessPoolExecutor] = queue.SimpleQueue()
        self._all: dict[ProcessPoolExecutor, int | None] = {}  # and the process's number
        self._interrupted = False
        self._lock = threading.Lock()

    def run(self, task: FileTask) -> FileResult:
        """The task's result; a result of its own when the process died over it."""
        try:
            process = self._free.get_nowait()
        except queue.Empty:
            process = ProcessPoolExecutor(
                1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_process,
            )
            with self._lock:
                self._all[process] = None
        started = time.monotonic()
        try:
            if not self._is_ready(process):
                return _failure(task, "interrupted", started)
            result = process.submit(_interruptible, rewrite_file, task).result()
        except BrokenProcessPool:
            with self._lock:
                del self._all[process]
            process.shutdown(wait=False)
            return _failure(
                task,
                "the process working on it died (out of memory, or a crash in a native library)",
                started,
            )
        except Exception as err:  # a fault of this package: the other models do not pay for it
            logger.error("%s: %s", task.source, err.__cause__ or err)
            self._free.put(process)
            return _failure(task, f"unexpected {type(err).__name__}: {err}", started)
        self._free.put(process)
        return result

    def _is_ready(self, process: ProcessPoolExecutor) -> bool:
        """Wait for the process to start; False where no work is wanted any more."""
        number = process.submit(os.getpid).result() if self._all[process] is None else None
        with self._lock:
            self._all[process] = self._all[process] or number
            return not self._interrupted

    def interrupt(self) -> None:
        """End what they work on, for an interrupt that reached this process alone."""
        with self._lock:
            self._interrupted = True
            for number in self._all.values() if os.name == "posix" else ():
                if number is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGINT)

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            for process in self._all:
                process.shutdown(wait=False, cancel_futures=True)
