"""The exact sentence for what goes wrong around TensorRT: contract, kernel, build and run.

Libraries that are not here, and a GPU, are played by fakes; that TensorRT itself says what these
rows let it say is tested with the real one, in tests/plugin and tests/cli_engine.
"""

from __future__ import annotations

import argparse
import errno
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import onnx
from helpers import patched
from helpers.fake_runtime import FakeCuda, make_fake_runtime
from helpers.fake_tensorrt import make_fake_tensorrt
from helpers.messages import Case, Row, exact_test
from helpers.sidecar import write_sidecar
from nonzero_plugin import (
    _tensorrt,
    adapter,
    backends,
    bench,
    build_config,
    builder,
    cudart,
    diagnose,
    execute,
    fields,
    launch,
    onnx_file,
    plan_file,
    profiles,
    promise,
    shapes,
)
from nonzero_plugin.build import BuildOptions, _Child, build_engine
from nonzero_plugin.contract import NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.engine import Engine, refuse_capture, run_engine
from nonzero_plugin.errors import BackendUnavailableError, CudaError
from nonzero_plugin.kernel_cache import CACHE_VARIABLE, cache_folder
from nonzero_plugin.network import add_nonzero
from nonzero_plugin.profiles import NetworkInput, ShapeRange
from nonzero_plugin.registry import register
from onnx import TensorProto, helper

WHO = "plugin NonZeroPlugin, version 1, namespace 'nonzero_rewrite'"
OURS = "NonZeroPlugin, version 1, namespace 'nonzero_rewrite'"
HALTED = "import of {} halted; None in sys.modules"
NO_DEVICE = "cudaGetDeviceCount failed with cudaErrorNoDevice (100): no CUDA device"

# -- the contract -----------------------------------------------------------------------------


def stored(**changes: Any) -> list[fields.Field]:
    """An engine's fields; None takes one away."""
    written = {f.name: f for f in fields.to_fields(NonZeroConfig(), 9, "nonzero-rewrite 9.9")}
    written |= changes
    return [field for field in written.values() if field is not None]


def int32(name: str, *values: int) -> fields.Field:
    return fields.Field(name, "INT32", np.array(values, np.int32))


BACKEND = fields.Field("backend", "CHAR", np.frombuffer(b"torch", np.int8))
ATTRIBUTE = f"node 'nz' ({WHO}): attribute"
LAYER = f"engine layer 'nz' ({WHO})"


def parsed(*given: fields.Field) -> Any:
    return fields.from_parser_fields(given, "nz")


def loaded(*given: fields.Field, **changes: Any) -> Any:
    return fields.from_engine_fields([*stored(**changes), *given], "nz")


CONTRACT: list[Row] = [
    ("perm (2, 0) is neither (0, 1) nor (1, 0)", lambda _: NonZeroConfig(perm=(2, 0))),
    ("index_type 1 is neither 7 (INT64) nor 6 (INT32)", lambda _: NonZeroConfig(index_type=1)),
    (
        "backend 'opencl' is unknown; choose one of cuda_python, cupy, torch",
        lambda _: NonZeroConfig("opencl"),
    ),
    ("max_nonzero 0 is outside 1 to 2147483647", lambda _: NonZeroConfig(max_nonzero=0)),
    (
        "NonZeroPlugin does not take ONNX element type 8; it takes "
        + ", ".join(member.name for member in DType),
        lambda _: DType.from_onnx(8),
    ),
    (
        "NonZeroPlugin does not take TensorRT element type INT4; it takes "
        + ", ".join(member.trt_name for member in DType if member.trt_name),
        lambda _: DType.from_trt(make_fake_tensorrt().DataType.INT4),
    ),
    (
        f"NonZeroPlugin takes ranks 1 to 8, not rank 9 {(1,) * 9}",
        lambda _: launch.num_items((1,) * 9),
    ),
    ("NonZeroPlugin needs known extents, not (-1, 3)", lambda _: launch.num_items((-1, 3))),
    (
        "NonZeroPlugin takes up to 2**40 items, not 1099511627778 (2, 549755813889)",
        lambda _: launch.num_items((2, 549755813889)),
    ),
    (
        "the input has rank 0; NonZeroPlugin takes ranks 1 to 8",
        lambda _: shapes.output_dims((), NonZeroConfig(), MagicMock()),
    ),
    (
        f"{ATTRIBUTE} 'later' is unknown; write the node with nonzero-rewrite",
        lambda _: parsed(int32("later", 1)),
    ),
    (
        f"{ATTRIBUTE} 'perm' is missing; write the node with nonzero-rewrite",
        lambda _: parsed(BACKEND),
    ),
    (
        f"{ATTRIBUTE} 'backend' has type INT32, not CHAR; write the node with nonzero-rewrite",
        lambda _: parsed(int32("backend", 1)),
    ),
    (
        f"{ATTRIBUTE} 'index_type' has 2 values, not 1; write the node with nonzero-rewrite",
        lambda _: parsed(BACKEND, int32("perm", 0, 1), int32("index_type", 7, 7)),
    ),
    (
        f"node 'nz' ({WHO}): perm has 3 values, not 2; write the node with nonzero-rewrite",
        lambda _: parsed(BACKEND, int32("perm", 0, 1, 2)),
    ),
    (
        f"node 'nz' ({WHO}): perm (1, 1) is neither (0, 1) nor (1, 0)",
        lambda _: parsed(BACKEND, int32("perm", 1, 1)),
    ),
    (f"{LAYER}: a field is stored twice; build the engine again", lambda _: loaded(stored()[0])),
    (
        f"{LAYER}: field 'later' is unknown; build the engine again",
        lambda _: loaded(int32("later", 1)),
    ),
    (f"{LAYER}: field 'perm' is missing; build the engine again", lambda _: loaded(perm=None)),
    (
        f"{LAYER}: field 'perm' has 3 values, not 2; build the engine again",
        lambda _: loaded(perm=int32("perm", 0, 1, 2)),
    ),
    (
        f"{LAYER}: field 'backend' has type INT32, not CHAR; build the engine again",
        lambda _: loaded(backend=int32("backend", 1)),
    ),
    (
        f"{LAYER}: field 'format_version' is missing, so the engine was not written by "
        "nonzero-rewrite, or its fields were lost while it was built; build it again",
        lambda _: loaded(format_version=None),
    ),
    (
        f"{LAYER}: its fields have format 2, written by nonzero-rewrite 9.9; this package reads "
        "format 1; install a newer nonzero-rewrite",
        lambda _: loaded(format_version=int32("format_version", 2)),
    ),
    (
        f"{LAYER}: its fields have format 0, written by nonzero-rewrite 9.9; this package reads "
        "format 1; build the engine again",
        lambda _: loaded(format_version=int32("format_version", 0)),
    ),
]

# -- packages, NVRTC, driver ------------------------------------------------------------------


def without_backend(case: Case, name: str, module: str) -> None:
    case.patch.delitem(backends._loaded, name, raising=False)
    case.patch.delitem(sys.modules, f"nonzero_plugin.backends.{name}", raising=False)
    case.without(module)
    backends.get_backend(name)


def torch_backend(case: Case) -> Any:
    """The backend on a PyTorch that is none."""
    import importlib

    fake = MagicMock(__version__="2.6.0+cpu")
    fake.version.cuda = None
    case.patch.setitem(sys.modules, "torch", fake)
    case.patch.delitem(sys.modules, "nonzero_plugin.backends.torch", raising=False)
    return importlib.import_module("nonzero_plugin.backends.torch")


def cupy_refuses(case: Case) -> None:
    import importlib

    fake = MagicMock()
    for name in ("CompileException", "CUDADriverError", "CUDARuntimeError"):
        kind = type(name, (Exception,), {})
        for part in (fake.cuda.compiler, fake.cuda.driver, fake.cuda.runtime):
            setattr(part, name, kind)
    log = "nonzero.cu(1): error: identifier expected\nmore"
    fake.RawModule.return_value.compile.side_effect = fake.cuda.compiler.CompileException(log)
    case.patch.setitem(sys.modules, "cupy", fake)
    case.patch.delitem(sys.modules, "nonzero_plugin.backends.cupy", raising=False)
    module = importlib.import_module("nonzero_plugin.backends.cupy")
    module._module(DType.FLOAT, NonZeroConfig(), wide=False)


def no_cuda_python(case: Case) -> None:
    case.patch.setitem(sys.modules, "cuda.bindings", types.ModuleType("cuda.bindings"))
    case.patch.delitem(sys.modules, "cuda.bindings.runtime", raising=False)
    cudart.Cuda()


def no_nvrtc(case: Case) -> None:
    from nonzero_plugin import compile as compiler

    case.without("cuda.bindings")
    compiler._nvrtc()


def nvrtc_fails(case: Case) -> None:
    from nonzero_plugin import compile as compiler

    fake = SimpleNamespace(
        nvrtcVersion=lambda: (6,), nvrtcGetErrorString=lambda code: (0, b"NVRTC_ERROR_COMPILATION")
    )
    case.patch.setattr(compiler, "_nvrtc", lambda: fake)
    compiler.nvrtc_version()


def nvrtc_knows(case: Case, capability: int, *known: int) -> None:
    from nonzero_plugin import compile as compiler

    case.patch.setattr(compiler, "supported_architectures", lambda: known)
    case.patch.setattr(compiler, "nvrtc_version", lambda: (13, 0))
    compiler.target_for(capability)


def bad_kernel(case: Case) -> None:
    from nonzero_plugin import compile as compiler

    case.patch.setenv(CACHE_VARIABLE, "0")
    case.patch.setattr(compiler, "kernel_source", lambda: b"not C at all\n")
    compiler.compile_kernel("sm_90", {"RANK": 1})


def no_driver(case: Case) -> None:
    from cuda.bindings import driver
    from nonzero_plugin import device

    def refuse(flags: int) -> Any:
        raise RuntimeError("libcuda.so.1 was not found\nand more")

    case.patch.setattr(driver, "cuInit", refuse)
    device.current_context()


def open_cache(case: Case) -> None:
    (case.path / "kernels").write_bytes(b"precious")
    case.patch.setenv(CACHE_VARIABLE, str(case.path / "kernels"))
    cache_folder()


def broken_promise(_: Case) -> None:
    watch = promise.PromiseWatch("nz", 9)
    watch.watch(SimpleNamespace(overflowed=lambda: True))
    watch.take()


NEEDS = (
    "backend {0!r} needs the package {0}, which cannot be imported (import of {0} halted; None in "
    "sys.modules); install it with: pip install 'nonzero-rewrite[{1}]'"
)
KERNEL: list[Row] = [
    (
        NEEDS.format("torch", "torch"),
        lambda case: without_backend(case, "torch", "torch"),
    ),
    (
        NEEDS.format("cupy", "cuda13"),
        lambda case: without_backend(case, "cupy", "cupy"),
    ),
    (
        "backend 'torch' needs PyTorch 2.7 or newer built for CUDA, this is 2.6.0+cpu; install it "
        "with: pip install 'nonzero-rewrite[torch]'",
        lambda case: torch_backend(case).create(),
    ),
    (
        "backend 'torch' takes fewer than 2**31 items, not 2147483648; use backend 'cuda_python'",
        lambda case: torch_backend(case).TorchLaunch((1 << 31,), DType.BOOL, NonZeroConfig()),
    ),
    ("CuPy cannot compile nonzero.cu: nonzero.cu(1): error: identifier expected", cupy_refuses),
    (
        "running an engine needs the package cuda-python, which cannot be imported (cannot import "
        "name 'runtime' from 'cuda.bindings' (unknown location)); install it with: pip install "
        "'nonzero-rewrite[cuda13]' (or cuda12)",
        no_cuda_python,
    ),
    (
        f"the kernel needs NVRTC through the package cuda-python ({HALTED.format('cuda.bindings')})"
        "; install it with: pip install 'nonzero-rewrite[cuda13]' (CUDA 12: [cuda12])",
        no_nvrtc,
    ),
    ("nvrtcVersion failed with NVRTC_ERROR_COMPILATION", nvrtc_fails),
    (
        "NVRTC 13.0 compiles the kernel for compute capability 7.5 and up, this device has 5.2; "
        "the plugin runs on 7.5 and up, as TensorRT 10 does",
        lambda case: nvrtc_knows(case, 52, 75, 90),
    ),
    (
        "NVRTC 13.0 compiles the kernel for compute capability 9.0 and up, this device has 8.9; "
        "install an older NVRTC (nonzero-rewrite[cuda12])",
        lambda case: nvrtc_knows(case, 89, 90, 100),
    ),
    (
        "NVRTC cannot compile nonzero.cu for sm_90: nonzero.cu(1): error: expected a declaration",
        bad_kernel,
    ),
    (
        "no NVIDIA driver can be loaded (libcuda.so.1 was not found); install the display driver "
        "of the GPU",
        no_driver,
    ),
    (
        "compiled kernels are not kept in FOLDER/kernels: File exists; "
        "set NONZERO_REWRITE_CACHE_DIR to a folder of your own, or to 0",
        open_cache,
    ),
    (
        "node 'nz': more than max_nonzero = 9 elements were non-zero, and the first 9 were given; "
        "build with a larger one",
        broken_promise,
    ),
]


# -- TensorRT ---------------------------------------------------------------------------------


def no_flavour(case: Case) -> None:
    import importlib.util

    for name in _tensorrt.FLAVOURS:
        case.patch.delitem(sys.modules, name, raising=False)
    case.patch.delenv(_tensorrt.ENV_RTX, raising=False)
    case.patch.setattr(importlib.util, "find_spec", lambda name: None)
    _tensorrt.load_tensorrt()


def no_tensorrt(case: Case) -> None:
    case.without("tensorrt")
    _tensorrt.load_tensorrt("tensorrt")


def rtx_first(case: Case) -> None:
    (case.path / "libtensorrt_rtx.so.1").write_bytes(b"")
    spec = SimpleNamespace(submodule_search_locations=[str(case.path)])
    case.patch.setattr(_tensorrt.sys, "platform", "linux")
    case.patch.setattr(_tensorrt.importlib.util, "find_spec", lambda name: spec)
    case.patch.setattr(_tensorrt, "_link_folder", lambda libs, links: Path("LINKS"))
    case.patch.setattr(_tensorrt, "_finds_unversioned_name", lambda folder: False)
    case.patch.setitem(sys.modules, "tensorrt_rtx", types.ModuleType("tensorrt_rtx"))
    _tensorrt.prepare_rtx_libraries()


def foreign_creator(_: Case) -> None:
    trt = make_fake_tensorrt()
    creator = type("TheirCreator", (trt.IPluginCreatorV3One,), {"__module__": "theirs"})()
    creator.name, creator.plugin_version = "NonZeroPlugin", "1"
    creator.plugin_namespace = "nonzero_rewrite"
    trt.registry.all_creators.append(creator)
    register(trt)


def two_backends(_: Case) -> None:
    trt = make_fake_tensorrt()
    register(trt, unpatched=True, backend="torch")
    register(trt, unpatched=True, backend="cupy")


def refused_creator(_: Case) -> None:
    trt = make_fake_tensorrt()
    trt.registry.refuse = "NonZeroPlugin"
    register(trt)


def network_of(case: Case, **methods: Any) -> Any:
    trt = make_fake_tensorrt("tensorrt_rtx", "1.7.1")
    case.patch.setitem(sys.modules, "tensorrt_rtx", trt)
    return type("Network", (), {"__module__": "tensorrt_rtx", **methods})()


def unserialized(_: Case) -> None:
    from nonzero_plugin import callbacks

    trt = make_fake_tensorrt()
    plugin = adapter.make_classes(trt).plugin(NonZeroConfig(), "nz")
    plugin.get_fields_to_serialize()
    callbacks.raise_recorded()


def missing_backend(case: Case) -> None:
    def refuse(config: Any) -> Any:
        raise BackendUnavailableError("no cupy here")

    case.patch.setattr(adapter, "_backend", refuse)
    adapter._require_backend(NonZeroConfig(), "nz")


TENSORRT: list[Row] = [
    (
        "neither tensorrt nor tensorrt_rtx is installed: pip install 'nonzero-rewrite[rtx]', or "
        "install TensorRT 10.3 or newer from NVIDIA's package index (pip install tensorrt)",
        no_flavour,
    ),
    (
        f"tensorrt cannot be imported ({HALTED.format('tensorrt')}); install TensorRT 10.3 or "
        "newer from NVIDIA's package index (pip install tensorrt)",
        no_tensorrt,
    ),
    (
        "TensorRT flavour 'trt8' is unknown; choose one of auto, tensorrt, tensorrt_rtx",
        lambda _: _tensorrt.load_tensorrt("trt8"),
    ),
    (
        "tensorrt (unknown version) has no IPluginV3: an output whose size depends on data needs "
        "the IPluginV3 interface, so TensorRT 10.3 or newer, or TensorRT for RTX 1.6 or newer",
        lambda _: _tensorrt.load_tensorrt(types.ModuleType("tensorrt")),
    ),
    (
        "tensorrt_rtx was imported before nonzero_plugin could load its libraries: its ONNX "
        "parser opens libtensorrt_rtx.so, which the wheel lacks, and ends the process at the "
        "first plugin; call nonzero_plugin.register() before importing tensorrt_rtx, or start "
        "with LD_LIBRARY_PATH=LINKS",
        rtx_first,
    ),
    (
        f"theirs.TheirCreator is already registered as {OURS}; TensorRT would run it instead: "
        "deregister it, or start a process that does not load it",
        foreign_creator,
    ),
    (
        "NonZero, version 1, namespace '' is already registered with backend 'torch', not 'cupy'; "
        "a process can use one",
        two_backends,
    ),
    (f"TensorRT refused to register {OURS}; its log says why", refused_creator),
    (
        "layout 'rows' is neither 'rank_first' nor 'rank_last'",
        lambda _: add_nonzero(None, None, layout="rows"),  # type: ignore[arg-type]
    ),
    (
        "tensorrt_rtx 1.7.1 has no INetworkDefinition.add_plugin_v3 in its Python bindings, so a "
        "plugin cannot be added by hand there; put the NonZero into an ONNX model, rewrite it "
        "with nonzero-rewrite and parse that",
        lambda case: add_nonzero(network_of(case), None),
    ),
    (
        "TensorRT refused the NonZeroPlugin layer; its log says why",
        lambda case: add_nonzero(network_of(case, add_plugin_v3=lambda *_: None), None),
    ),
    ("object is not a TensorRT network", lambda _: add_nonzero(object(), None)),
    ("the plugin was serialized before TensorRT told its input type", unserialized),
    (
        "TensorRT ran the plugin before it told the input's shape",
        lambda _: adapter._unprepared(),
    ),
    ("node 'nz': no cupy here", missing_backend),
]

# -- the build --------------------------------------------------------------------------------


def full(version: str = "10.9.0", name: str = "tensorrt") -> Any:
    trt = make_fake_tensorrt(name, version)
    trt.BuilderFlag = SimpleNamespace()
    trt.ComputeCapability = SimpleNamespace(__members__={"SM89": 1, "SM120": 2, "CURRENT": 3})
    return trt


def refuses(trt: Any, **options: Any) -> Any:
    return lambda _: build_config.check(trt, BuildOptions(**options))


def unfit_cache(case: Case) -> None:
    trt = full()
    trt.ProfilingVerbosity = SimpleNamespace(DETAILED=1)
    (case.path / "cache").write_bytes(b"old")
    config = SimpleNamespace(
        create_timing_cache=lambda data: data, set_timing_cache=lambda data, mismatch: data == b""
    )
    options = BuildOptions(timing_cache=case.path / "cache")
    build_config.apply(trt, config, options, case.said.append)


def unreadable_cache(case: Case) -> None:
    def refuse(*_: object) -> None:
        raise OSError(13, "Permission denied")

    (case.path / "cache").write_bytes(b"old")
    case.patch.setattr(Path, "read_bytes", refuse)
    config = SimpleNamespace(
        create_timing_cache=lambda data: data,
        set_timing_cache=lambda *_: True,
        get_timing_cache=lambda: SimpleNamespace(serialize=lambda: b"new"),
    )
    trt = full()
    trt.ProfilingVerbosity = SimpleNamespace(DETAILED=1)
    options = BuildOptions(timing_cache=case.path / "cache")
    build_config.apply(trt, config, options, case.said.append)


def unwritable_cache(case: Case) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    case.patch.setattr(Path, "write_bytes", refuse)
    config = SimpleNamespace(get_timing_cache=lambda: SimpleNamespace(serialize=lambda: b"new"))
    options = BuildOptions(timing_cache=case.path / "cache")
    build_config.save_timing_cache(config, options, case.said.append)


def work(options: BuildOptions | None = None, rtx: bool = False) -> Any:
    """A build on a fake TensorRT, as far as its constructor."""
    trt = make_fake_runtime()
    if rtx:
        trt.__name__, trt.__version__ = "tensorrt_rtx", "1.7.1"
    return builder._Build(trt, Path("m.onnx"), options or BuildOptions(), lambda *_, **__: None)


def no_builder(rtx: bool) -> None:
    def refuse(*_: object) -> None:
        raise TypeError("factory function returned nullptr")

    work(rtx=rtx)._create(refuse)


def unknown_triple(_: Case) -> None:
    model = patched.single()
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "plugin_namespace":
            attribute.s = b"theirs"
    made = work()
    register(made.trt)
    made._check_plugins(model)


def parse_fails(_: Case) -> None:
    made = work()
    made.trt.OnnxParser = lambda *_: SimpleNamespace(
        parse_from_file=lambda path: False, num_errors=0
    )
    made.model = patched.single()
    made.messages.append("something new happened")
    made._parse(None, made.model, edited=False)


def build_fails(case: Case) -> None:
    trt = make_fake_runtime()
    trt.OnnxParser = lambda *_: SimpleNamespace(parse_from_file=lambda path: True)
    trt.NetworkDefinitionCreationFlag = SimpleNamespace()
    trt.ProfilingVerbosity = SimpleNamespace(DETAILED=1)
    config = SimpleNamespace(add_optimization_profile=lambda profile: 0)
    network = SimpleNamespace(num_inputs=0)
    trt.Builder = lambda logger: SimpleNamespace(
        create_network=lambda flags: network,
        create_builder_config=lambda: config,
        create_optimization_profile=lambda: None,
        build_serialized_network=lambda network, config: None,
    )
    path = patched.save(patched.single(), case.path / "m.onnx")
    register(trt)
    made = builder._Build(trt, path, BuildOptions(), lambda *_, **__: None)
    made.run(case.path / "e", case.path / ".e.tmp")


def profile_refused(_: Case) -> None:
    made = work(BuildOptions(profiles=("x=1x4",)))
    made.model = patched.single()
    tensor = SimpleNamespace(name="x", shape=(-1, 4), is_shape_tensor=False)
    network = SimpleNamespace(num_inputs=1, get_input=lambda index: tensor)
    profile = SimpleNamespace(set_shape=lambda *_: None)
    builders = SimpleNamespace(create_optimization_profile=lambda: profile)
    refusing = SimpleNamespace(add_optimization_profile=lambda profile: -1)
    made._add_profiles(builders, network, refusing)


def died(stage: str, code: int, *printed: str) -> Any:
    def provoke(case: Case) -> None:
        path = patched.save(patched.single(), case.path / "m.onnx")
        child = _Child(path, Path("e"), Path(".e"), BuildOptions(), None)
        child.stage = stage
        child.printed.extend(printed)
        raise child._died(code)

    return provoke


def build_of(model: str, engine: str = "e", **options: Any) -> Any:
    def provoke(case: Case) -> None:
        case.patch.chdir(case.path)
        patched.save(patched.single(), case.path / "m.onnx")
        (case.path / "folder").mkdir()
        build_engine(model, engine, BuildOptions(**options))

    return provoke


def empty(case: Case) -> Path:
    (case.path / "empty.onnx").write_bytes(b"")
    return case.path / "empty.onnx"


def disk_is_full(case: Case) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    case.patch.setattr(_Child, "run", lambda self: SimpleNamespace(facts={}))
    case.patch.setattr("nonzero_plugin.build.sidecar_text", refuse)
    build_of("m.onnx")(case)


BUILD: list[Row] = [
    ("none.onnx: there is no such file; check the path", build_of("none.onnx")),
    ("folder: is no file; name a model", build_of("folder")),
    (
        "o.onnx: the original is no file; check the path",
        build_of("m.onnx", original=Path("o.onnx")),
    ),
    (
        "m.onnx: is an input of this command; choose another output",
        build_of("m.onnx", timing_cache=Path("m.onnx")),
    ),
    (
        "e: cannot be written: No space left on device; choose another place or make room",
        disk_is_full,
    ),
    (
        "none.onnx: there is no such file; check the path",
        lambda _: onnx_file.load_structure(Path("none.onnx")),
    ),
    (
        "FOLDER/empty.onnx: the file holds no ONNX graph; export or download it again",
        lambda case: onnx_file.load_structure(empty(case)),
    ),
    (
        "tensorrt_rtx 1.5.0: its ONNX parser takes neither custom operators nor a plugin for "
        "NonZero; install TensorRT for RTX 1.7 or newer",
        refuses(full("1.5.0", "tensorrt_rtx")),
    ),
    *(
        (
            f"tensorrt_rtx 1.7.1: --{flag} does not exist: networks are strongly typed, so the "
            "precision is the model's own; convert the model first (for example with "
            "onnxconverter_common.float16 or NVIDIA ModelOpt) and build that",
            refuses(full("1.7.1", "tensorrt_rtx"), **{flag: True}),
        )
        for flag in ("fp16", "bf16")
    ),
    (
        "tensorrt_rtx 1.7.1: --version-compatible needs the lean runtime, which TensorRT for RTX "
        "has not",
        refuses(full("1.7.1", "tensorrt_rtx"), version_compatible=True),
    ),
    (
        "tensorrt_rtx 1.7.1: --hardware-compatible is not accepted; name the GPUs with "
        "--compute-capability",
        refuses(full("1.7.1", "tensorrt_rtx"), hardware_compatible=True),
    ),
    (
        "tensorrt 10.9.0: --compute-capability belongs to TensorRT for RTX; TensorRT builds for "
        "the GPU it finds (--hardware-compatible widens that to Ampere and newer)",
        refuses(full(), compute_capabilities=("8.9",)),
    ),
    (
        "tensorrt 10.9.0: --unpatched works on TensorRT for RTX only; TensorRT's own NonZero takes "
        "unpatched models, and a patched model takes the plugin",
        refuses(full(), unpatched=True),
    ),
    (
        "tensorrt_rtx 1.7.1 does not build for compute capability '5.2'; it knows 8.9, 12.0 and "
        "current",
        refuses(full("1.7.1", "tensorrt_rtx"), compute_capabilities=("5.2",)),
    ),
    ("timing cache FOLDER/cache does not fit tensorrt 10.9.0; starting anew", unfit_cache),
    (
        "timing cache FOLDER/cache cannot be read: Permission denied; starting anew",
        unreadable_cache,
    ),
    (
        "the timing cache was not kept: FOLDER/cache: cannot be written: No space left on device; "
        "choose another place or make room",
        unwritable_cache,
    ),
    (
        "tensorrt_rtx 1.7.1 cannot start here: factory function returned nullptr; see "
        "`nonzero-rewrite doctor`",
        lambda _: no_builder(rtx=True),
    ),
    (
        "tensorrt 10.9.0 cannot start here: factory function returned nullptr; TensorRT builds on "
        "a machine with an NVIDIA GPU (TensorRT for RTX on any)",
        lambda _: no_builder(rtx=False),
    ),
    (
        "m.onnx: node 'nz' asks for plugin NonZeroPlugin, version 1, namespace 'theirs', but "
        f"registered is {OURS} (namespace differs); write the node with this version of "
        "nonzero-rewrite",
        unknown_triple,
    ),
    (
        "m.onnx: tensorrt 10.9.0 could not read the model, TensorRT says: something new happened",
        parse_fails,
    ),
    ("m.onnx: tensorrt 10.9.0 could not build the engine", build_fails),
    ("m.onnx: tensorrt 10.9.0 refused the profile 'x=1x4'", profile_refused),
    (
        "m.onnx: TensorRT ended its process (SIGSEGV) while starting on the model",
        died("import", -11),
    ),
    (
        "m.onnx: TensorRT ended its process (exit code 3) while building the model, TensorRT says: "
        "it was tired",
        died("build", 3, "it was tired"),
    ),
    (
        "m.onnx: TensorRT ended its process (SIGABRT) while reading the model, TensorRT says: no",
        died("parse", -6, "no"),
    ),
    (
        "the model has no NonZeroPlugin node 'other'; it has 'nz'",
        lambda _: onnx_file.set_max_nonzero(patched.single(), {"other": 3}),
    ),
    (
        "the model has no NonZeroPlugin node 'other'; it has none",
        lambda _: onnx_file.set_max_nonzero(onnx.ModelProto(), {"other": 3}),
    ),
]

# -- what TensorRT says, explained ------------------------------------------------------------


def explained(*messages: str, model: onnx.ModelProto | None = None) -> Any:
    return lambda case: case.said.append(diagnose.explain(messages, model)[0])


def of_constant() -> onnx.ModelProto:
    constant = helper.make_tensor("x", TensorProto.BOOL, [2], [True, False])
    node = patched.plugin_node("x", "y")
    return patched.make_model([node], [], [("y", 7, None)], initializers=[constant])


def many_ancestors() -> onnx.ModelProto:
    masks = [f"mask{number}" for number in range(5)]
    nodes = [patched.plugin_node(name, f"i_{name}", name=f"nz_{name}") for name in masks]
    joined = helper.make_node("Concat", [f"i_{n}" for n in masks], ["all"], name="joined", axis=1)
    inputs = [(name, TensorProto.BOOL, ["n"]) for name in masks]
    return patched.make_model([*nodes, joined], inputs, [("all", 7, None)])


IN_BRANCH = (
    "a NonZero inside an If or Loop body cannot be built; move the mask out of the branch, or fold "
    "the condition to a constant before export"
)
OF_CONSTANT = (
    "a plugin on constants cannot be built; fold it (polygraphy surgeon sanitize "
    "--fold-constants), or remove the initializer if the name is meant to be an input"
)
ADVICE = {
    "Data-dependent shapes are only allowed in the top-level scope": IN_BRANCH,
    "convertExplicitDDSPluginToImplicit": "most likely an extent is computed from data beside the "
    "count (ReduceSum over the mask, as torch.export writes x[mask] = v, or NonMaxSuppression); "
    "take it from the Shape of the indices, or write x[mask] = v as Where (nonzero-rewrite does)",
    "NonMaxSuppression has no runners": "this TensorRT has no NonMaxSuppression; export without it "
    "and select boxes outside the engine, or use a head that needs none",
    "NonZero plugin creator version 1": "the model still holds ONNX NonZero; rewrite it with "
    "nonzero-rewrite first (`nonzero-rewrite scan` says why it leaves one alone), or build with "
    "--unpatched",
    "formulas need to be set sooner": "an If whose condition comes from a count cannot be built; "
    "compute both branches and select with Where",
    "value should have been set by symbolic execution": "index values are used as a shape, which "
    "TensorRT cannot plan; use the number of indices (Shape of NonZero) or a fixed size",
    "shapeContext.isProxy": "only the count is used and the indices lead nowhere; make the indices "
    "a graph output too, or count with ReduceSum over the mask",
    "UInt8 datatype formats are not supported": "this data type does not exist in TensorRT; cast "
    "to a supported one before export",
    "kMIN of the optimization profile": "the shapes of the optimization profile do not fit the "
    "model; say them with --profile",
    "Out of memory": "memory ran out; give a smaller maximum in --profile, --set-max-nonzero, or "
    "--workspace",
    "ScatterND with reduction": "TensorRT's scatters only overwrite; export index_put without "
    "accumulate, or add up with a matrix product over one-hot indices",
    "ROIAlign plugin was not found": "TensorRT for RTX makes its own RoiAlign plugin only where it "
    "finds a GPU (without one it logs 'Cuda Error in ROIAlignV3' and says this); build this model "
    "on a machine with a GPU",
    "Only FLOAT32, FLOAT16 for NonZero": "TensorRT's NonZero takes no such type; rewrite the model "
    "with nonzero-rewrite, or cast the mask to BOOL",
    "Plugin not found": "TensorRT has no such operator and no plugin of that name is registered; "
    "register its plugin, or run that part outside the engine (see `nonzero-rewrite doctor MODEL`)",
    "Error Code 2: Internal Error": "this is a fault inside TensorRT; a newer version may build "
    "it, and the messages above are what its maintainers need",
}
EXPLAINED: list[Row] = [
    *(
        (f"TensorRT says: {said}; what can be done: {way}", explained(said))
        for said, way in ADVICE.items()
    ),
    (
        "TensorRT says: no; what can be done: NonZero 'nz_in' stands in choose.else_branch: "
        + IN_BRANCH,
        explained("no", model=patched.in_branch()),
    ),
    (
        f"what can be done: NonZero 'nz' reads the constant 'x': {OF_CONSTANT}",
        explained(model=of_constant()),
    ),
    (
        "at node 'joined' (Concat), which descends from NonZero 'nz_mask0', 'nz_mask1', 'nz_mask2' "
        "and 2 more; TensorRT says: joined failed",
        explained("joined failed", model=many_ancestors()),
    ),
]

# -- profiles ---------------------------------------------------------------------------------

X = NetworkInput("x", (-1, 4))


def fit(text: str, *inputs: NetworkInput) -> Any:
    return lambda _: profiles.resolve_profiles(inputs, [profiles.parse_profile(text)])


def assumed(case: Case) -> None:
    case.said += profiles.resolve_profiles([X], [])[1]


PROFILES: list[Row] = [
    ("profile ';' names no input", lambda _: profiles.parse_profile(";")),
    (
        "profile part 'nope' is not NAME=MIN:OPT:MAX or NAME=SHAPE",
        lambda _: profiles.parse_profile("nope"),
    ),
    ("profile names input 'x' twice", lambda _: profiles.parse_profile("x=1;x=2")),
    ("profile part 'x=1:2' has 2 shapes; give 1 or 3", lambda _: profiles.parse_profile("x=1:2")),
    (
        "profile part 'x=a': 'a' is not a shape like 1x3x640x640",
        lambda _: profiles.parse_profile("x=a"),
    ),
    (
        "profile part 'x=1:2x2:3': 1:2x2:3 mixes ranks",
        lambda _: profiles.parse_profile("x=1:2x2:3"),
    ),
    (
        "profile part 'x=8:4:2': 8:4:2 is not in the order minimum, optimum, maximum",
        lambda _: profiles.parse_profile("x=8:4:2"),
    ),
    ("3:2:1 is not in the order minimum, optimum, maximum", lambda _: ShapeRange((3,), (2,), (1,))),
    ("'x=1' is not NAME:[D0,D1,...]", lambda _: profiles.parse_polygraphy_shapes(["x=1"], [], [])),
    ("the network has no input 'y'; its inputs are 'x'", fit("y=1", X)),
    ("the network has no input 'y'; its inputs are none", fit("y=1")),
    ("profile gives input 'x' rank 1; the network has rank 2", fit("x=1", X)),
    ("profile gives input 'x' size 5 to 5 on axis 1; the network fixes it at 4", fit("x=1x5", X)),
    (
        "input 's' decides shapes; give its smallest, usual and largest values: --profile "
        "'s=MIN:OPT:MAX'",
        fit("x=1x4", X, NetworkInput("s", (2,), is_shape_tensor=True)),
    ),
    (
        "input 'x': no shapes were given, assumed 1x4:128x4:1024x4; say yours with --profile",
        assumed,
    ),
]

# -- the run ----------------------------------------------------------------------------------


def engine(case: Case, content: bytes = b"engine") -> tuple[Path, Any]:
    """The fake engine of ``helpers.fake_runtime`` in a file, and its TensorRT."""
    case.patch.setattr(execute, "Cuda", FakeCuda)
    path = case.path / "m.engine"
    path.write_bytes(content)
    return path, make_fake_runtime()


ONES = np.ones((8, 8), np.float32)


def run(inputs: dict[str, Any], **settings: Any) -> Any:
    def provoke(case: Case) -> None:
        path, trt = engine(case)
        run_engine(path, inputs, trt=trt, **settings)

    return provoke


def run_changed(change: Any, **settings: Any) -> Any:
    """A run after ``change(case, loaded engine, TensorRT)``."""

    def provoke(case: Case) -> None:
        path, trt = engine(case)
        loaded_engine = Engine(path, trt)
        change(case, loaded_engine, trt)
        run_engine(loaded_engine, {"x": ONES}, **settings)

    return provoke


def disagree(case: Case, *_: Any) -> None:
    real, turn = execute.Context.run, iter(range(9))
    case.patch.setattr(
        execute.Context,
        "run",
        lambda self, arrays: {name: a + next(turn) for name, a in real(self, arrays).items()},
    )


def no_gpu(case: Case) -> None:
    path, trt = engine(case)

    class NoGpu(FakeCuda):
        def require_device(self) -> int:
            raise CudaError("cudaGetDeviceCount", 100, "cudaErrorNoDevice", "no CUDA device")

    case.patch.setattr(execute, "Cuda", NoGpu)
    Engine(path, trt)


def odd_type(case: Case) -> None:
    path, trt = engine(case)
    case.patch.setattr(execute, "DType", ())
    Engine(path, trt)


def second_profile_refused(_: Case, loaded_engine: Engine, __: Any) -> None:
    real = loaded_engine._engine
    real.num_optimization_profiles = 2
    create = real.create_execution_context

    def context() -> Any:
        made = create()
        made.set_optimization_profile_async = lambda profile, stream: False
        return made

    real.create_execution_context = context


def shape_refused(_: Case, loaded_engine: Engine, __: Any) -> None:
    create = loaded_engine._engine.create_execution_context

    def context() -> Any:
        made = create()
        made.set_input_shape = lambda name, shape: False
        return made

    loaded_engine._engine.create_execution_context = context


def no_context(_: Case, loaded_engine: Engine, __: Any) -> None:
    loaded_engine._engine.create_execution_context = lambda: None


def fails(_: Case, __: Engine, trt: Any) -> None:
    trt.fail = lambda: None


def shapeless(_: Case, __: Engine, trt: Any) -> None:
    trt.tells_shapes = False


def other_engine(said: list[str], registered: bool) -> Any:
    def provoke(case: Case) -> None:
        path, trt = engine(case, b"another")
        trt.log_on_load = said
        if not registered:
            text = plan_file.explain_load_failure("m.engine", "tensorrt 10.9.0", said, b"", trt)
            case.said.append(text)
            return
        Engine(path, trt)

    return provoke


def capture(nodes: list[str] | None) -> Any:
    def provoke(case: Case) -> None:
        path, _ = engine(case)
        if nodes:
            write_sidecar(path, plugins=nodes)
        refuse_capture(path)

    return provoke


RUN: list[Row] = [
    (
        "FOLDER/none: cannot be read: No such file or directory; check the path",
        lambda case: Engine(case.path / "none"),
    ),
    (
        "FOLDER/none: cannot be read: No such file or directory; check the path",
        lambda case: refuse_capture(case.path / "none"),
    ),
    (
        f"FOLDER/m.engine: needs an NVIDIA GPU to run: {NO_DEVICE}; run it on a machine that has "
        "one",
        no_gpu,
    ),
    ("tensor 'x' has type FLOAT, which NumPy cannot hold", odd_type),
    ("m.engine has profiles 0 to 0, not 1", run({"x": ONES}, profile=1)),
    (
        "m.engine: tensorrt 10.9.0 gave no execution context: TensorRT gave no reason",
        run_changed(no_context),
    ),
    (
        "m.engine: profile 1 was refused: TensorRT gave no reason",
        run_changed(second_profile_refused, profile=1),
    ),
    ("m.engine: tensorrt 10.9.0 failed to run: enqueue reported -1", run_changed(fails)),
    (
        "input 'x': shape (8, 8) was refused: TensorRT gave no reason",
        run_changed(shape_refused),
    ),
    ("TensorRT told no shape for output 'indices'", run_changed(shapeless)),
    ("contexts 1 and 2 disagree about output 'indices'", run_changed(disagree, contexts=2)),
    ("the engine needs input 'x'; its inputs are 'x'", run({})),
    ("the engine has no input 'z'; its inputs are 'x'", run({"x": ONES, "z": ONES})),
    (
        "input 'x' has shape (8,); the engine takes rank 2, (-1, 8)",
        run({"x": np.ones(8, np.float32)}),
    ),
    (
        "input 'x' has shape (65, 8), outside (0, 8) to (64, 8) of the engine's profile 0; build "
        "with --profile for larger ones",
        run({"x": np.ones((65, 8), np.float32)}),
    ),
    (
        "input 'x' has type float64; the engine takes float32, which cannot hold these values",
        run({"x": np.full((8, 8), 0.1)}),
    ),
    (
        "m.engine: tensorrt 10.9.0 could not load the engine: magic tag",
        other_engine(["magic tag"], registered=True),
    ),
    (
        "m.engine: tensorrt 10.9.0 could not load the engine: it gave no reason",
        other_engine([], registered=True),
    ),
    (
        "m.engine: tensorrt 10.9.0 could not load the engine: Cannot find plugin; the engine needs "
        f"plugin {OURS}, but no plugin of the name NonZeroPlugin is registered: call "
        "nonzero_plugin.register() in this process before loading it",
        other_engine(["Cannot find plugin"], registered=False),
    ),
    (
        "m.engine cannot be captured in a CUDA graph: TensorRT copies the count of NonZero 'a', "
        "'b' to the host before it goes on, and a capture cannot wait for the host; capture the "
        "parts before and after it as engines of their own",
        capture(["a", "b"]),
    ),
    ("m.engine holds no NonZeroPlugin; capture is left to the application here", capture(None)),
]

# -- the benchmark ----------------------------------------------------------------------------


def full_disk(*words: str) -> Any:
    def provoke(case: Case) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        case.patch.setattr(json, "dumps", fail)
        benchmark(*words, measured=True)(case)

    return provoke


def benchmark(*words: str, measured: bool = False) -> Any:
    def provoke(case: Case) -> None:
        case.patch.chdir(case.path)
        case.patch.setattr(sys, "argv", ["bench", *words])

        def measure(arguments: argparse.Namespace) -> dict[str, Any]:
            if not measured:
                raise CudaError("cuInit", 100, "CUDA_ERROR_NO_DEVICE", "no device")
            return {"environment": {}, "not_measured": {}, "rows": []}

        case.patch.setattr(bench, "run", measure)
        case.without("matplotlib")
        bench.main()

    return provoke


BENCH: list[Row] = [
    ("Error: cuInit failed with CUDA_ERROR_NO_DEVICE (100): no device", benchmark()),
    (
        "Error: no/x: cannot be written: its folder no does not exist; make it, or choose another "
        "one",
        benchmark("--json", "no/x"),
    ),
    (
        "Error: x.json: cannot be written: No space left on device; choose another place or make "
        "room",
        full_disk("--json", "x.json"),
    ),
    (
        f"no plot: {HALTED.format('matplotlib')}; install matplotlib",
        benchmark("--plot", "x.png", measured=True),
    ),
]

ROWS = [*CONTRACT, *KERNEL, *TENSORRT, *BUILD, *EXPLAINED, *PROFILES, *RUN, *BENCH]


def all_sentences() -> list[str]:
    return [sentence for sentence, _ in ROWS]


test_each_says_exactly_this = exact_test(ROWS)
