"""What ``doctor`` asks the libraries, each in a child process; all return JSON values."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Any


def onnxruntime_facts() -> dict[str, Any]:
    """Execution providers, and whether onnxruntime loads at all."""
    try:
        import onnxruntime
    except Exception as error:
        return {"error": f"onnxruntime cannot be imported ({error})"}
    return {"version": onnxruntime.__version__, "providers": onnxruntime.get_available_providers()}


def cuda_facts() -> dict[str, Any]:
    """Driver, runtime, NVRTC and devices, in CUDA's words where something is missing."""
    from nonzero_plugin.cudart import Cuda
    from nonzero_plugin.errors import NonZeroPluginError

    facts: dict[str, Any] = {"nvrtc": _nvrtc()}
    try:
        cuda = Cuda()
        facts["runtime"] = _cuda_version(cuda.call("cudaRuntimeGetVersion"))
        facts["driver"] = _cuda_version(cuda.call("cudaDriverGetVersion"))
        devices = []
        for device in range(cuda.require_device()):
            cuda.call("cudaSetDevice", device)
            devices.append(cuda.device_name())
        facts["devices"] = devices
    except NonZeroPluginError as error:
        facts["error"] = str(error)
    return facts


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}" if number else "none"


def _nvrtc() -> str:
    try:
        from cuda.bindings import nvrtc

        code, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:
        return f"not available ({error})"
    return f"{major}.{minor}" if int(code) == 0 else f"nvrtcVersion failed with {int(code)}"


def backend_facts() -> dict[str, Any]:
    """Backend name to None, or to why it cannot be imported."""
    from nonzero_plugin.backends import get_backend
    from nonzero_plugin.contract import BACKENDS
    from nonzero_plugin.errors import NonZeroPluginError

    facts: dict[str, Any] = {}
    for name in BACKENDS:
        try:
            get_backend(name)
        except NonZeroPluginError as error:
            facts[name] = str(error)
        else:
            facts[name] = None
    return facts


def tensorrt_facts(choice: str = "auto") -> dict[str, Any]:
    """Flavour, version, libraries, parser and registry; and what it says about this GPU."""
    from nonzero_plugin._tensorrt import flavour_of
    from nonzero_plugin.errors import NonZeroPluginError
    from nonzero_plugin.registry import register, registered

    try:
        trt = register(choice)
    except NonZeroPluginError as error:
        return {"error": str(error)}
    facts = {
        "flavour": flavour_of(trt),
        "version": trt.__version__,
        "module": str(trt.__file__),
        "parser": _parser_version(trt),
        "libraries": loaded_libraries(),
        "registry": [[t.name, t.version, t.namespace] for t in registered(trt)],
    }
    return {**facts, **_gpu_facts(trt)}


def _parser_version(trt: Any) -> str:
    if not hasattr(trt, "get_nv_onnx_parser_version"):
        return "(version not told)"
    number = int(trt.get_nv_onnx_parser_version())
    return str(number)


def loaded_libraries() -> list[str]:
    """Paths of the TensorRT libraries this process has loaded, resolved."""
    pattern = re.compile(r"nvinfer|tensorrt|nvonnxparser", re.IGNORECASE)
    if sys.platform == "win32":
        paths = _windows_modules()
    else:
        maps = Path("/proc/self/maps")
        text = maps.read_text() if maps.exists() else ""
        paths = [line.split(maxsplit=5)[5] for line in text.splitlines() if line.count("/")]
    named = {str(Path(path).resolve()) for path in paths if pattern.search(Path(path).name)}
    return sorted(named)


def _windows_modules() -> list[str]:
    kernel32 = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined, unused-ignore]
    psapi = ctypes.WinDLL("psapi")  # type: ignore[attr-defined, unused-ignore]
    kernel32.GetCurrentProcess.restype = ctypes.c_void_p
    handles = (ctypes.c_void_p * 2048)()
    needed = ctypes.c_ulong()
    process = ctypes.c_void_p(kernel32.GetCurrentProcess())
    psapi.EnumProcessModules(process, handles, ctypes.sizeof(handles), ctypes.byref(needed))
    paths = []
    for handle in handles[: needed.value // ctypes.sizeof(ctypes.c_void_p)]:
        buffer = ctypes.create_unicode_buffer(1024)
        if kernel32.GetModuleFileNameW(ctypes.c_void_p(handle), buffer, 1024):
            paths.append(buffer.value)
    return paths


def _gpu_facts(trt: Any) -> dict[str, Any]:
    """Builds and loads the smallest engine: only the library knows what GPUs it takes."""
    from nonzero_plugin.cudart import Cuda
    from nonzero_plugin.errors import NonZeroPluginError

    try:
        cuda = Cuda()
        cuda.require_device()
        name = cuda.device_name()
    except NonZeroPluginError as error:
        return {"gpu_supported": None, "gpu_verdict": f"cannot be asked: {error}"}
    messages: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                messages.append(msg)

    logger = Logger()
    try:
        builder = trt.Builder(logger)
        network = builder.create_network(0)
        tensor = network.add_input("x", trt.DataType.FLOAT, (1,))
        network.mark_output(network.add_identity(tensor).get_output(0))
        plan = builder.build_serialized_network(network, builder.create_builder_config())
        engine = plan and trt.Runtime(logger).deserialize_cuda_engine(plan)
    except Exception as error:
        messages.append(str(error))
        engine = None
    if engine:
        return {"gpu_supported": True, "gpu_verdict": f"{name}: supported"}
    said = "; ".join(dict.fromkeys(messages[-3:])) or "TensorRT gave no reason"
    return {"gpu_supported": False, "gpu_verdict": f"{name}: {said}"}
