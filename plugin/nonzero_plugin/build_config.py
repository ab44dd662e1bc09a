"""Build options as TensorRT's builder configuration; what a flavour lacks is refused up front."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nonzero_plugin._tensorrt import flavour_of, is_rtx, version_tuple
from nonzero_plugin.build_types import BuildOptions
from nonzero_plugin.errors import EngineBuildError
from nonzero_plugin.places import not_written, remove, temporary_for, words

FUNCTIONS_ONLY = (
    "TensorRT for RTX 1.6 takes no custom operators: it reads NonZeroPlugin's function body, and "
    "our plugin serves the NonZero in it; 1.7 or newer takes the node itself, with the "
    "Transpose inside"
)


def serves_functions_only(trt: Any) -> bool:
    """True for TensorRT for RTX 1.6, whose parser refuses custom operators but asks for NonZero."""
    return is_rtx(trt) and version_tuple(trt)[:2] == (1, 6)


def check(trt: Any, options: BuildOptions) -> None:
    """Refuses what this TensorRT does not have.

    Raises:
        EngineBuildError: phase ``options``; names the option and what to do instead.
    """
    rtx = is_rtx(trt)

    def refuse(text: str) -> None:
        raise EngineBuildError(f"{flavour_of(trt)} {trt.__version__}: {text}", phase="options")

    if rtx and version_tuple(trt) < (1, 6):
        refuse(
            "its ONNX parser takes neither custom operators nor a plugin for NonZero; install "
            "TensorRT for RTX 1.7 or newer"
        )
    for flag, wanted in (("FP16", options.fp16), ("BF16", options.bf16)):
        if wanted and not hasattr(trt.BuilderFlag, flag):
            refuse(
                f"--{flag.lower()} does not exist: networks are strongly typed, so the precision "
                "is the model's own; convert the model first (for example with "
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
        compute_capability(trt, text)


def compute_capability(trt: Any, text: str) -> Any:
    """TensorRT for RTX's member for ``8.9``, ``89``, ``sm_89`` or ``current``.

    Raises:
        EngineBuildError: phase ``options``; lists what it builds for.
    """
    members = trt.ComputeCapability.__members__
    key = text.upper().replace(".", "").removeprefix("SM_").removeprefix("SM")
    name = "CURRENT" if key == "CURRENT" else f"SM{key}"
    if name not in members:
        known = [f"{k[2:-1]}.{k[-1]}" for k in members if k.startswith("SM")]
        raise EngineBuildError(
            f"{flavour_of(trt)} {trt.__version__} does not build for compute capability {text!r}; "
            f"it knows {', '.join(known)} and current",
            phase="options",
        )
    return members[name]


def compute_capabilities(trt: Any, config: Any) -> list[str]:
    """What the engine is for, as configured; empty for TensorRT's own choice."""
    if not is_rtx(trt):
        return []
    count = config.num_compute_capabilities
    return [config.get_compute_capability(index).name for index in range(count)]


def network_flags(trt: Any, options: BuildOptions) -> int:
    """Strongly typed wherever that is a choice, as TensorRT 11 and TensorRT for RTX always are."""
    flags = trt.NetworkDefinitionCreationFlag
    if options.fp16 or options.bf16 or not hasattr(flags, "STRONGLY_TYPED"):
        return 0
    return 1 << int(flags.STRONGLY_TYPED)


def apply(trt: Any, config: Any, options: BuildOptions, note: Callable[[str], None]) -> None:
    """Sets everything on ``IBuilderConfig``; :func:`check` has passed."""
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
        config.num_compute_capabilities = len(options.compute_capabilities)
        for index, text in enumerate(options.compute_capabilities):
            config.set_compute_capability(compute_capability(trt, text), index)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if options.timing_cache is not None:
        _load_timing_cache(trt, config, options, note)


def _load_timing_cache(
    trt: Any, config: Any, options: BuildOptions, note: Callable[[str], None]
) -> None:
    path = options.timing_cache
    assert path is not None
    try:
        stored = path.read_bytes() if path.exists() else b""
    except OSError as error:
        note(f"timing cache {path} cannot be read: {words(error)}; starting anew")
        stored = b""
    cache = config.create_timing_cache(stored)
    if cache is None or not config.set_timing_cache(cache, False):
        note(f"timing cache {path} does not fit {flavour_of(trt)} {trt.__version__}; starting anew")
        config.set_timing_cache(config.create_timing_cache(b""), False)


def save_timing_cache(config: Any, options: BuildOptions, note: Callable[[str], None]) -> None:
    """Writes the timing cache back, whole or not at all.

    The engine is worth having without it, so a failure is only noted.
    """
    path = options.timing_cache
    cache = config.get_timing_cache() if path is not None else None
    if path is None or cache is None:
        return
    temporary = temporary_for(path)
    try:
        temporary.write_bytes(bytes(cache.serialize()))
        temporary.replace(path)
    except OSError as error:
        note(f"the timing cache was not kept: {not_written(path, error)}")
    finally:
        remove(temporary)
