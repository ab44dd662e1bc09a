"""Parses a model and builds its engine with TensorRT, in the process that calls it.

Only :mod:`nonzero_plugin.build_worker` calls it: TensorRT may end the process it runs in.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from nonzero_plugin import build_config, callbacks, diagnose, onnx_file
from nonzero_plugin._tensorrt import flavour_of, is_rtx, load_tensorrt, version_tuple
from nonzero_plugin.build_types import BuildOptions
from nonzero_plugin.contract import OP_TYPE
from nonzero_plugin.errors import EngineBuildError, NonZeroPluginError
from nonzero_plugin.places import not_written
from nonzero_plugin.profiles import (
    NetworkInput,
    ShapeRange,
    format_profile,
    parse_profile,
    resolve_profiles,
)
from nonzero_plugin.registry import (
    PluginTriple,
    load_standard_plugins,
    register,
    registered,
)

Emit = Callable[..., None]
"""``emit(event, **data)``: event is log, progress, stage, note or result."""


def build(
    model_path: Path, engine_path: Path, options: BuildOptions, emit: Emit, *, temporary: Path
) -> dict[str, Any]:
    """Builds the engine and returns the facts for the result and the sidecar.

    Args:
        model_path: the ONNX file.
        engine_path: what the engine will be called, for messages.
        options: see :class:`BuildOptions`.
        emit: takes each event.
        temporary: where the engine is written (overwritten).

    Raises:
        EngineBuildError: with phase, messages and node.
        NonZeroPluginError: what a plugin callback raised, or a problem with the options.
    """
    started = time.perf_counter()
    emit("stage", name="import")
    trt = load_tensorrt(options.trt)
    if build_config.serves_functions_only(trt) and not options.unpatched:
        options = replace(options, unpatched=True)
        emit("note", text=build_config.FUNCTIONS_ONLY)
    if options.leftovers and is_rtx(trt) and not options.unpatched:
        options = replace(options, unpatched=True)
        note = f"{options.leftovers} NonZero that were left alone are served where they stand"
        emit("note", text=note)
    register(trt, unpatched=options.unpatched, backend=options.backend)
    facts = _Build(trt, model_path, options, emit).run(engine_path, temporary)
    return {**facts, "seconds": round(time.perf_counter() - started, 3)}


class _Build:
    def __init__(
        self,
        trt: Any,
        model_path: Path,
        options: BuildOptions,
        emit: Emit,
    ) -> None:
        self.trt = trt
        self.name = f"{flavour_of(trt)} {trt.__version__}"
        self.model_path = model_path
        self.options = options
        self.emit = emit
        self.messages: list[str] = []
        self.reading: list[str] = []  # the parser's last word on which node it reads
        self.model: onnx.ModelProto | None = None
        self.logger = self._make_logger()

    def run(self, engine_path: Path, temporary: Path) -> dict[str, Any]:
        trt = self.trt
        build_config.check(trt, self.options)
        self.emit("stage", name="parse")
        model = self.model = onnx_file.load_structure(self.model_path)
        edited = self._edit(model)
        self._check_plugins(model)
        builder = self._create(trt.Builder, self.logger)
        load_standard_plugins(trt, self.logger)
        network = builder.create_network(build_config.network_flags(trt, self.options))
        self._parse(network, model, edited)
        config = builder.create_builder_config()
        profiles = self._add_profiles(builder, network, config)
        build_config.apply(trt, config, self.options, self._note)
        if hasattr(trt, "IProgressMonitor"):
            config.progress_monitor = self.monitor = self._make_monitor()
        self.emit("stage", name="build")
        plan = builder.build_serialized_network(network, config)
        self._raise_callback_errors()
        if plan is None:
            raise self._failure("build", "could not build the engine")
        self.emit("stage", name="write")
        try:
            temporary.write_bytes(plan)
        except OSError as error:
            raise EngineBuildError(not_written(engine_path, error), phase="write") from error
        build_config.save_timing_cache(config, self.options, self._note)
        return {
            "flavour": flavour_of(self.trt),
            "version": self.trt.__version__,
            "engine_bytes": plan.nbytes,
            "profiles": [format_profile(profile) for profile in profiles],
            "compute_capabilities": build_config.compute_capabilities(trt, config),
            "plugins": self._served(model),
        }

    def _note(self, text: str) -> None:
        self.emit("note", text=text)

    def _make_logger(self) -> Any:
        trt, messages, emit, verbose = self.trt, self.messages, self.emit, self.options.verbose
        reading = self.reading
        errors = (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR)
        shown = (*errors, trt.ILogger.Severity.WARNING)

        class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
                if "arsing node: " in msg:
                    reading[:] = [msg]
                if severity in errors:
                    messages.append(msg)
                if verbose or (severity in shown and not diagnose.NOISE.search(msg)):
                    emit("log", severity=severity.name, text=msg)

        return Logger()

    def _create(self, factory: Any, *arguments: Any) -> Any:
        try:
            return factory(*arguments)
        except Exception as error:  # the bindings raise TypeError when the library returns null
            raise EngineBuildError(
                f"{self.name} cannot start here: {self._last_message() or error}; "
                + (
                    "see `nonzero-rewrite doctor`"
                    if is_rtx(self.trt)
                    else "TensorRT builds on a machine with an NVIDIA GPU (TensorRT for RTX on any)"
                ),
                phase="import",
                messages=tuple(self.messages),
            ) from error

    def _edit(self, model: onnx.ModelProto) -> bool:
        """In-memory edits; True when the parser must be given bytes instead of the file."""
        edited = False
        if not is_rtx(self.trt) and version_tuple(self.trt) < (10, 7):
            onnx_file.strip_function(model)
            edited = True
        if self.options.max_nonzero:
            edited |= bool(onnx_file.set_max_nonzero(model, dict(self.options.max_nonzero)))
        return edited

    def _served(self, model: onnx.ModelProto) -> list[str]:
        """Names of the nodes that our plugin runs."""
        kinds = {OP_TYPE, "NonZero"} if self.options.unpatched else {OP_TYPE}
        nodes = [node for _, node in onnx_file.walk_nodes(model.graph) if node.op_type in kinds]
        return sorted(onnx_file.node_label(node) for node in nodes)

    def _check_plugins(self, model: onnx.ModelProto) -> None:
        """TensorRT would fall back to the function body in silence, or say "not found"."""
        present = list(registered(self.trt))
        for request in onnx_file.plugin_requests(model):
            by_domain = PluginTriple(request.plugin.name, request.plugin.version, request.domain)
            if request.plugin.name != OP_TYPE or request.plugin in present:
                continue
            if by_domain in present and not request.has_function:
                continue  # TensorRT 10.10 and newer take the domain for the namespace
            raise EngineBuildError(
                f"{self.model_path.name}: node {request.node!r} asks for plugin {request.plugin}, "
                f"but {onnx_file.explain_mismatch(request.plugin, present)}; write the node with "
                "this version of nonzero-rewrite",
                phase="parse",
                node=request.node,
            )

    def _parse(self, network: Any, model: onnx.ModelProto, edited: bool) -> None:
        parser = self.trt.OnnxParser(network, self.logger)
        if edited:
            ok = parser.parse(model.SerializeToString(), path=str(self.model_path))
        else:
            ok = parser.parse_from_file(str(self.model_path))
        self._raise_callback_errors()
        if ok:
            return
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        self.messages.extend(error.desc() for error in reversed(errors))
        raise self._failure(
            "parse", "could not read the model", _stopped_at(errors, model, self.reading)
        )

    def _add_profiles(self, builder: Any, network: Any, config: Any) -> list[dict[str, ShapeRange]]:
        inputs = self._inputs(network)
        given = [parse_profile(text) for text in self.options.profiles]
        resolved, notes = resolve_profiles(inputs, given)
        for note in notes:
            self._note(note)
        shape_tensors = {item.name for item in inputs if item.is_shape_tensor}
        for shapes in resolved:
            profile = builder.create_optimization_profile()
            for name, item in shapes.items():
                setter = profile.set_shape_input if name in shape_tensors else profile.set_shape
                setter(name, item.min, item.opt, item.max)
            if config.add_optimization_profile(profile) < 0 and inputs:
                raise self._failure("build", f"refused the profile {format_profile(shapes)!r}")
        return resolved

    def _inputs(self, network: Any) -> list[NetworkInput]:
        assert self.model is not None
        symbols = {
            value.name: tuple(dim.dim_param for dim in value.type.tensor_type.shape.dim)
            for value in self.model.graph.input
        }
        tensors = [network.get_input(index) for index in range(network.num_inputs)]
        return [
            NetworkInput(
                tensor.name,
                tuple(tensor.shape),
                symbols.get(tensor.name, ()),
                tensor.is_shape_tensor,
            )
            for tensor in tensors
        ]

    def _make_monitor(self) -> Any:
        trt, emit = self.trt, self.emit

        class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                trt.IProgressMonitor.__init__(self)

            def phase_start(
                self, phase_name: str, parent_phase: str | None, num_steps: int
            ) -> None:
                emit("progress", phase=phase_name, parent=parent_phase, step=0, steps=num_steps)

            def step_complete(self, phase_name: str, step: int) -> bool:
                emit("progress", phase=phase_name, step=step + 1)
                return True

            def phase_finish(self, phase_name: str) -> None:
                emit("progress", phase=phase_name, done=True)

        return Monitor()

    def _raise_callback_errors(self) -> None:
        for entry in callbacks.take_recorded(any_thread=True):
            if not isinstance(entry.error, NonZeroPluginError):
                raise RuntimeError(f"plugin callback {entry.callback} failed") from entry.error
            text = str(entry.error)
            if entry.node and repr(entry.node) not in text:
                text = f"node {entry.node!r}: {text}"
            raise EngineBuildError(
                f"{self.model_path.name}: {text}",
                phase="parse" if entry.callback == "create_plugin" else "build",
                messages=tuple(self.messages),
                node=entry.node or None,
            ) from entry.error

    def _last_message(self) -> str:
        told = [text for text in self.messages if not diagnose.NOISE.search(text)]
        return (told or self.messages or [""])[-1]

    def _failure(
        self, phase: str, what: str, node: onnx.NodeProto | None = None
    ) -> EngineBuildError:
        text, found = diagnose.explain(self.messages, self.model, node)
        return EngineBuildError(
            f"{self.model_path.name}: {self.name} {what}" + (f", {text}" if text else ""),
            phase=phase,
            messages=tuple(self.messages),
            node=found,
        )


def _stopped_at(
    errors: list[Any], model: onnx.ModelProto, reading: list[str]
) -> onnx.NodeProto | None:
    """The node a parser error counts to, or the one the parser said it reads.

    Positions count in the main graph, but inside functions and subgraphs otherwise: the name has to
    agree.
    """
    for error in errors:
        index = error.node()
        if 0 <= index < len(model.graph.node):
            node: onnx.NodeProto = model.graph.node[index]
            if node.op_type == error.node_operator() and node.name == error.node_name():
                return node
    said = re.search(r"arsing node: (.*) \[(\w+)\]", reading[0]) if reading else None
    for _, node in onnx_file.walk_nodes(model.graph) if said else ():
        if said and node.name and (node.name, node.op_type) == said.groups():
            return node
    return None
