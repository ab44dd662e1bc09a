"""Builds an engine in a child process, so that no end of TensorRT is the end of the caller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nonzero_plugin.build_types import BuildEvent, BuildOptions, BuildResult
from nonzero_plugin.errors import EngineBuildError
from nonzero_plugin.places import NO_FILE, not_written, problem_of, remove, temporary_for
from nonzero_plugin.sidecar import sidecar_path, sidecar_text

__all__ = ["BuildEvent", "BuildOptions", "BuildResult", "build_engine"]

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from nonzero_plugin.build_worker import main; sys.exit(main())"
)
_KEPT = 40  # messages of TensorRT an error carries


def build_engine(
    model: str | os.PathLike[str],
    engine: str | os.PathLike[str],
    options: BuildOptions | None = None,
    progress: Callable[[BuildEvent], None] | None = None,
) -> BuildResult:
    """Builds ``model`` (an ONNX file, with external data beside it if it has any) into ``engine``.

    The engine and its sidecar appear whole or not at all; whatever stood there stays until then.
    A KeyboardInterrupt ends the child and leaves nothing behind.

    Args:
        model: path of the ONNX file, which is only read.
        engine: path to write; its folder must exist.
        options: see :class:`BuildOptions`.
        progress: called, on this thread, with each event.

    Raises:
        EngineBuildError: TensorRT could not be loaded, refused the model, could not build it, or
            ended its process; carries its last messages, the phase and the node where known.
    """
    model, engine = Path(model), Path(engine)
    options = options or BuildOptions()
    _check_places(model, engine, options)
    sidecar = sidecar_path(engine)
    temporary, beside = temporary_for(engine), temporary_for(sidecar)
    try:
        run = _Child(model, engine, temporary, options, progress).run()
        facts = {
            **run.facts,
            "max_nonzero": dict(options.max_nonzero),
            "version_compatible": options.version_compatible,
        }
        try:
            text = sidecar_text(engine, temporary, model, options.original, options.command, facts)
            beside.write_text(text, encoding="utf-8")
            temporary.replace(engine)
            beside.replace(sidecar)
        except OSError as error:
            raise EngineBuildError(not_written(engine, error), phase="write") from error
    finally:
        for left in (temporary, beside):
            remove(left)
    return BuildResult(
        engine=engine,
        sidecar=sidecar,
        flavour=facts["flavour"],
        version=facts["version"],
        engine_bytes=facts["engine_bytes"],
        profiles=tuple(facts["profiles"]),
        compute_capabilities=tuple(facts["compute_capabilities"]),
        plugin_nodes=tuple(facts["plugins"]),
        seconds=facts["seconds"],
        notes=tuple(run.notes),
        warnings=tuple(run.warnings),
    )


def _check_places(model: Path, engine: Path, options: BuildOptions) -> None:
    """Refuses, before any work, what could only fail or destroy a file after it."""
    if not model.is_file():
        text = "is no file; name a model" if model.exists() else NO_FILE
        raise EngineBuildError(f"{model}: {text}", phase="import")
    if options.original is not None and not options.original.is_file():
        text = f"{options.original}: the original is no file; check the path"
        raise EngineBuildError(text, phase="import")
    others: list[Path] = []
    for path in (engine, sidecar_path(engine), options.timing_cache):
        if path is not None:
            if problem := problem_of(path, (model, options.original), others):
                raise EngineBuildError(problem, phase="write")
            others.append(path)


class _Child:
    """One child process and what it said."""

    def __init__(
        self,
        model: Path,
        engine: Path,
        temporary: Path,
        options: BuildOptions,
        progress: Callable[[BuildEvent], None] | None,
    ) -> None:
        self.model = model
        self.request = {  # paths as they were given, for the messages
            "model": str(model),
            "engine": str(engine),
            "temporary": str(temporary),
            "options": options.to_dict(),
        }
        self.progress = progress
        self.facts: dict[str, Any] = {}
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.messages: deque[str] = deque(maxlen=_KEPT)
        self.printed: deque[str] = deque(maxlen=_KEPT)
        self.stage = "import"
        self.error: EngineBuildError | None = None

    def run(self) -> _Child:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        assert process.stdin and process.stdout and process.stderr
        reader = threading.Thread(target=self._keep_printed, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            try:
                process.stdin.write(json.dumps(self.request) + "\n")
                process.stdin.flush()
            except OSError:
                pass  # it died at once: what it printed says why
            for event, data in _events(process.stdout):
                self._take(event, data)
            code = process.wait()
        finally:
            if process.poll() is None:  # KeyboardInterrupt, or an error in `progress`
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                stream.close()
            reader.join(timeout=5)
            process.stderr.close()
        if self.error is not None:
            raise self.error
        if code != 0 or not self.facts:
            raise self._died(code)
        return self

    def _take(self, event: str, data: dict[str, Any]) -> None:
        if event == "result":
            self.facts = data
        elif event == "error":
            self.error = EngineBuildError(
                data["text"],
                phase=data["phase"],
                messages=tuple(data["messages"][-_KEPT:]),
                node=data["node"],
            )
        elif event == "crash":
            raise RuntimeError(f"the build process failed:\n{data['text']}")
        else:
            if event == "stage":
                self.stage = data["name"]
            elif event == "note":
                self.notes.append(data["text"])
            elif event == "log" and data["severity"] in ("INTERNAL_ERROR", "ERROR"):
                self.messages.append(data["text"])
            elif event == "log" and data["severity"] == "WARNING":
                self.warnings.append(data["text"])
            if self.progress is not None:
                self.progress(BuildEvent(event, data))

    def _keep_printed(self, stream: Any) -> None:
        for line in stream:
            if line.strip():
                self.printed.append(line.rstrip())

    def _died(self, code: int) -> EngineBuildError:
        from nonzero_plugin.diagnose import explain
        from nonzero_plugin.onnx_file import load_structure

        said = tuple([*self.messages, *self.printed])
        text, node = "", None
        if self.stage in ("parse", "build"):
            text, node = explain(said, load_structure(self.model))
        elif said:
            text = said[-1]
        doing = {"parse": "reading", "build": "building"}.get(self.stage, "starting on")
        return EngineBuildError(
            f"{self.model.name}: TensorRT ended its process ({_how_it_ended(code)}) while "
            f"{doing} the model" + (f", {text}" if text else ""),
            phase="abort",
            messages=said[-_KEPT:],
            node=node,
        )


def _events(stream: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in stream:
        try:
            data = json.loads(line)
            event = data.pop("event")
        except (ValueError, KeyError, AttributeError, TypeError):
            continue  # half a line of a process that is no more
        yield event, data


def _how_it_ended(code: int) -> str:
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    if code >= 0xC0000000:  # an NTSTATUS, where Windows ends a process
        return f"status 0x{code:08X}"
    return f"exit code {code}"
