"""Parses a model and builds its engine with TensorRT, in the process that calls it.

Only :mod:`nonzero_plugin.build_worker` calls it: TensorRT may end the process it runs in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from nonzero_plugin import callbacks, diagnose, onnx_file
from nonzero_plugin._tensorrt import flavour_of, is_rtx, load_tensorrt, version_tuple
from nonzero_plugin.build import BuildOptions
from nonzero_plugin.errors import EngineBuildError, NonZeroPluginError
from nonzero_plugin.profiles import (
    NetworkInput,
    ShapeRange,
    format_profile,
    parse_profile,
    resolve_profiles,
)
from nonzero_plugin.registry import PluginTriple, register, registered

Emit = Callable[..., None]
"""``emit(event, **data)``: event is log, progress, stage, note or result."""


def build(model_path: Path, engine_path: Path, options: BuildOptions, emit: Emit) -> dict[str, Any]:
    """Builds ``engine_path`` (overwritten) and returns the facts for the result and the sidecar.

    Raises:
        EngineBuildError: with phase, messages and node.
        NonZeroPluginError: what a plugin callback raised, or a problem with the options.
    """
    started = time.perf_counter()
    emit("stage", name="import")
    trt = load_tensorrt(options.trt)
    register(trt, unpatched=options.unpatched, backend=options.backend)
    return _Build(trt, model_path, engine_path, options, emit, started).run()


class _Build:
    def __init__(
        self,
        trt: Any,
        model_path: Path,
        engine_path: Path,
        options: BuildOptions,
        emit: Emit,
        started: float,
    ) -> None:
        self.trt = trt
        self.name = f"{flavour_of(trt)} {trt.__version__}"
        self.model_path = model_path
        self.engine_path = engine_path
        self.options = options
        self.emit = emit
        self.started = started
        self.messages: list[str] = []
        self.model: onnx.ModelProto | None = None
        self.logger = self._make_logger()

    def run(self) -> dict[str, Any]:
        self._check_options()
        self.emit("stage", name="parse")
        model = self.model = onnx_file.load_structure(self.model_path)
        edited = self._edit(model)
        self._check_plugins(model)
        builder = self._create(self.trt.Builder, self.logger)
        network = builder.create_network(self._network_flags())
        self._parse(network, model, edited)
        config = builder.create_builder_config()
        profiles = self._add_profiles(builder, network, config)
        self._configure(config)
        self.emit("stage", name="build")
        plan = builder.build_serialized_network(network, config)
        self._raise_callback_errors()
        if plan is None:
            raise self._failure("build", "could not build the engine")
        self.emit("stage", name="write")
        with self.engine_path.open("wb") as file:
            file.write(plan)
        self._save_timing_cache(config)
        return {
            "flavour": flavour_of(self.trt),
            "version": self.trt.__version__,
            "engine_bytes": plan.nbytes,
            "profiles": [format_profile(profile) for profile in profiles],
            "compute_capabilities": self._compute_capabilities(config),
            "plugins": sorted({request.node for request in self._served(model)}),
            "seconds": round(time.perf_counter() - self.started, 3),
        }

    def _make_logger(self) -> Any:
        trt, messages, emit, verbose = self.trt, self.messages, self.emit, self.options.verbose
        errors = (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR)
        shown = (*errors, trt.ILogger.Severity.WARNING)

        class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
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
                    else "TensorRT needs an NVIDIA GPU and driver to build (TensorRT for RTX does not)"
                ),
                phase="import",
                messages=tuple(self.messages),
            ) from error

    def _check_options(self) -> None:
        trt, options, rtx = self.trt, self.options, is_rtx(self.trt)

        def refuse(text: str) -> None:
            raise EngineBuildError(f"{self.name}: {text}", phase="options")

        for flag, wanted in (("FP16", options.fp16), ("BF16", options.bf16)):
            if wanted and not hasattr(trt.BuilderFlag, flag):
                refuse(
                    f"--{flag.lower()} does not exist: networks are strongly typed, so precision is "
                    "the model's own; convert the model first (for example with "
                    "onnxconverter_common.float16 or NVIDIA ModelOpt) and build that"
                )
        if rtx and options.version_compatible:
            refuse("--version-compatible needs the lean runtime, which TensorRT for RTX has not")
        if rtx and options.hardware_compatible:
            refuse("--hardware-compatible is not accepted; name the GPUs with --compute-capability")
        if not rtx and options.compute_capabilities:
            refuse(
                "--compute-capability belongs to TensorRT for RTX; TensorRT builds for the GPU it "
                "finds (--hardware-compatible widens that to Ampere and newer)"
            )
        if not rtx and options.unpatched:
            refuse(
                "--unpatched works on TensorRT for RTX only; TensorRT's own NonZero takes unpatched "
                "models, and a patched model takes the plugin"
            )
        for text in options.compute_capabilities:
            self._compute_capability(text)

    def _compute_capability(self, text: str) -> Any:
        members = self.trt.ComputeCapability.__members__
        key = text.upper().replace(".", "").removeprefix("SM_").removeprefix("SM")
        name = "CURRENT" if key == "CURRENT" else f"SM{key}"
        if name not in members:
            known = [f"{k[2:-1]}.{k[-1]}" for k in members if k.startswith("SM")]
            raise EngineBuildError(
                f"{self.name} does not build for compute capability {text!r}; it knows "
                f"{', '.join(known)} and current",
                phase="options",
            )
        return members[name]

    def _network_flags(self) -> int:
        """Strongly typed wherever that is a choice, as TensorRT 11 and RTX always are."""
        flags = self.trt.NetworkDefinitionCreationFlag
        if self.options.fp16 or self.options.bf16 or not hasattr(flags, "STRONGLY_TYPED"):
            return 0
        return 1 << int(flags.STRONGLY_TYPED)

    def _edit(self, model: onnx.ModelProto) -> bool:
        """In-memory edits; True when the parser must be given bytes instead of the file."""
        edited = False
        if not is_rtx(self.trt) and version_tuple(self.trt) < (10, 7):
            onnx_file.strip_function(model)
            edited = True
        if self.options.max_nonzero:
            edited |= bool(onnx_file.set_max_nonzero(model, dict(self.options.max_nonzero)))
        return edited

    def _served(self, model: onnx.ModelProto) -> list[onnx_file.PluginRequest]:
        present = registered(self.trt)
        return [request for request in onnx_file.plugin_requests(model) if request.plugin in present]

    def _check_plugins(self, model: onnx.ModelProto) -> None:
        """TensorRT would fall back to the function body in silence, or say "not found"."""
        present = list(registered(self.trt))
        for request in onnx_file.plugin_requests(model):
            by_domain = PluginTriple(request.plugin.name, request.plugin.version, request.domain)
            if request.plugin.name != onnx_file.OP_TYPE or request.plugin in present:
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
        self.messages.extend(error.desc() for error in errors)
        first = next((e for e in errors if getattr(e, "node_name", str)()), None)
        where = f" node {first.node_name()!r} ({first.node_operator()})" if first else ""
        raise self._failure(
            "parse",
            f"could not read{where}" if where else "could not read the model",
            node=first.node_name() if first else None,
        )

    def _add_profiles(self, builder: Any, network: Any, config: Any) -> list[dict[str, ShapeRange]]:
        inputs = self._inputs(network)
        given = [parse_profile(text) for text in self.options.profiles]
        resolved, notes = resolve_profiles(inputs, given)
        for note in notes:
            self.emit("note", text=note)
        shape_tensors = {item.name for item in inputs if item.is_shape_tensor}
        for shapes in resolved:
            profile = builder.create_optimization_profile()
            for name, item in shapes.items():
                setter = profile.set_shape_input if name in shape_tensors else profile.set_shape
                setter(name, item.min, item.opt, item.max)
            if config.add_optimization_profile(profile) < 0 and inputs:
                raise self._failure(
                    "build", f"refused the profile {format_profile(shapes)!r}"
                )
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
                tensor.name, tuple(tensor.shape), symbols.get(tensor.name, ()), tensor.is_shape_tensor
            )
            for tensor in tensors
        ]

    def _configure(self, config: Any) -> None:
        trt, options = self.trt, self.options
        if options.workspace is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
        if options.optimization_level is not None:
            config.builder_optimization_level = options.optimization_level
        for flag, wanted in (
            ("FP16", options.fp16),
            ("BF16", options.bf16),
            ("VERSION_COMPATIBLE", options.version_compatible),
        ):
            if wanted:
                config.set_flag(getattr(trt.BuilderFlag, flag))
        if options.hardware_compatible:
            config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
        if options.compute_capabilities:
            wanted_ccs = [self._compute_capability(text) for text in options.compute_capabilities]
            config.num_compute_capabilities = len(wanted_ccs)
            for index, capability in enumerate(wanted_ccs):
                config.set_compute_capability(capability, index)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        self._load_timing_cache(config)
        if hasattr(trt, "IProgressMonitor"):
            config.progress_monitor = self._make_monitor()

    def _load_timing_cache(self, config: Any) -> None:
        path = self.options.timing_cache
        if path is None:
            return
        stored = path.read_bytes() if path.exists() else b""
        cache = config.create_timing_cache(stored)
        if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
            self.emit("note", text=f"timing cache {path} does not fit {self.name}; starting anew")
            config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)

    def _save_timing_cache(self, config: Any) -> None:
        path = self.options.timing_cache
        cache = config.get_timing_cache() if path is not None else None
        if path is None or cache is None:
            return
        temporary = path.with_name(f".{path.name}.{self.engine_path.name}")
        try:
            temporary.write_bytes(bytes(cache.serialize()))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _make_monitor(self) -> Any:
        trt, emit = self.trt, self.emit

        class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                trt.IProgressMonitor.__init__(self)

            def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
                emit("progress", phase=phase_name, parent=parent_phase, step=0, steps=num_steps)

            def step_complete(self, phase_name: str, step: int) -> bool:
                emit("progress", phase=phase_name, step=step + 1)
                return True

            def phase_finish(self, phase_name: str) -> None:
                emit("progress", phase=phase_name, done=True)

        return Monitor()

    def _compute_capabilities(self, config: Any) -> list[str]:
        if not is_rtx(self.trt):
            return []
        return [
            config.get_compute_capability(index).name
            for index in range(config.num_compute_capabilities)
        ]

    def _raise_callback_errors(self) -> None:
        for callback, error in callbacks.take_recorded(any_thread=True):
            if isinstance(error, NonZeroPluginError):
                raise error
            raise RuntimeError(f"plugin callback {callback} failed") from error

    def _last_message(self) -> str:
        told = [text for text in self.messages if not diagnose.NOISE.search(text)]
        return (told or self.messages or [""])[-1]

    def _failure(self, phase: str, what: str, node: str | None = None) -> EngineBuildError:
        text, found = diagnose.explain(self.messages, self.model)
        return EngineBuildError(
            f"{self.model_path.name}: {self.name} {what}" + (f", {text}" if text else ""),
            phase=phase,
            messages=tuple(self.messages),
            node=node or found,
        )
