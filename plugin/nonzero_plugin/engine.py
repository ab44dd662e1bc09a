"""Builds and runs engines that hold NonZeroPlugin: one import for both ends of an engine's life."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nonzero_plugin.build import BuildEvent, BuildOptions, BuildResult, build_engine
from nonzero_plugin.engine_inputs import Array
from nonzero_plugin.errors import EngineLoadError, EngineRunError
from nonzero_plugin.execute import Context, Engine, Timing
from nonzero_plugin.places import not_read
from nonzero_plugin.plan_file import plugin_layers
from nonzero_plugin.sidecar import read_sidecar

__all__ = [
    "BuildEvent",
    "BuildOptions",
    "BuildResult",
    "Context",
    "Engine",
    "RunResult",
    "Timing",
    "build_engine",
    "refuse_capture",
    "run_engine",
]


@dataclass(frozen=True)
class RunResult:
    """What an engine computed: outputs by name, of their true shapes.

    ``truncated`` is True when a node's ``max_nonzero`` cut a result short.
    """

    outputs: dict[str, Array]
    truncated: bool
    timing: Timing | None
    device: str
    tensorrt: str


def run_engine(
    engine: str | Path | Engine,
    inputs: Mapping[str, Array],
    *,
    trt: Any = None,
    contexts: int = 1,
    profile: int = 0,
    repeat: int = 0,
) -> RunResult:
    """Runs an engine file, or a loaded engine, once or in several contexts at the same time.

    Args:
        engine: file or :class:`Engine`.
        inputs: array per input name.
        trt: flavour or module, see :class:`Engine`.
        contexts: how many contexts, each with its own stream and thread, run the same inputs; their
            outputs must be equal to the bit.
        profile: number of the optimization profile.
        repeat: timed runs per context; 0 for none.

    Raises:
        EngineLoadError, EngineRunError, ContractError, CudaError: see :class:`Engine` and
            :meth:`Context.run`. EngineRunError also when contexts disagree.
    """
    loaded = engine if isinstance(engine, Engine) else Engine(engine, trt)
    workers = [_Worker(loaded, profile, inputs, repeat) for _ in range(contexts)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    first = workers[0]
    for number, worker in enumerate(workers[1:], 2):
        for name, array in first.outputs.items():
            other = worker.outputs[name]
            if array.shape != other.shape or array.tobytes() != other.tobytes():
                raise EngineRunError(f"contexts 1 and {number} disagree about output {name!r}")
    return RunResult(
        first.outputs,
        any(worker.truncated for worker in workers),
        first.timing,
        loaded.cuda.device_name(),
        loaded.version,
    )


class _Worker(threading.Thread):
    """One context in a thread of its own."""

    def __init__(
        self, engine: Engine, profile: int, inputs: Mapping[str, Array], repeat: int
    ) -> None:
        super().__init__(daemon=True)
        self._engine, self._profile, self._arrays, self._repeat = engine, profile, inputs, repeat
        self.outputs: dict[str, Array] = {}
        self.timing: Timing | None = None
        self.truncated = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Runs, and keeps the error for the caller's thread."""
        from nonzero_plugin.promise import any_promise_broken

        try:
            with self._engine.create_context(self._profile) as context:
                self.outputs = context.run(self._arrays)
                if self._repeat:
                    self.timing = context.time(self._arrays, self._repeat)
                self.truncated = any_promise_broken()
        except BaseException as error:
            self.error = error


def refuse_capture(engine: str | Path) -> None:
    """Says why an engine with NonZero cannot be captured in a CUDA graph.

    Raises:
        EngineRunError: names the nodes.
        EngineLoadError: the file cannot be read.
    """
    path = Path(engine)
    try:
        layers = plugin_layers(path.read_bytes())
    except OSError as error:
        raise EngineLoadError(not_read(path, error)) from error
    sidecar = read_sidecar(path)
    nodes = (sidecar["plugin"]["nodes"] if sidecar else None) or layers
    if not nodes:
        raise EngineRunError(
            f"{path.name} holds no NonZeroPlugin; capture is left to the application here"
        )
    raise EngineRunError(
        f"{path.name} cannot be captured in a CUDA graph: TensorRT copies the count of NonZero "
        f"{', '.join(map(repr, nodes))} to the host before it goes on, and a capture cannot wait "
        "for the host; capture the parts before and after it as engines of their own"
    )
