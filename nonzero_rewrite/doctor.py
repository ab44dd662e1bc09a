"""What is really loaded here, what an engine or model needs, and whether the two fit.

Everything is asked of the libraries themselves; a part that cannot answer says why in its place.
TensorRT is loaded in a child process, so that a library that dies takes nothing along.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from nonzero_rewrite.versions import installed_versions

_TIMEOUT = 120  # seconds; a library that hangs is a finding, too


def diagnose(target: Path | None = None, trt: str = "auto") -> dict[str, Any]:
    """The whole account, as plain JSON values.

    Args:
        target: an ONNX model or an engine to look at, too.
        trt: ``auto``, ``tensorrt`` or ``tensorrt_rtx``.

    Returns:
        ``packages`` (version or None), ``python``, ``onnxruntime`` (providers), ``cuda`` (driver,
        runtime, NVRTC, devices), ``backends`` (None or why not), ``tensorrt`` (flavour, version,
        libraries, parser, registry, supported GPUs or the error), and ``target`` (what it needs and
        what is lacking). ``problems`` lists what keeps engines from building or running here.
    """
    packages = installed_versions()
    account: dict[str, Any] = {
        "python": f"{packages.pop('python')} ({sys.executable})",
        "platform": platform.platform(),
        "packages": packages,
        "onnxruntime": _in_child("onnxruntime_facts"),
        "cuda": _in_child("cuda_facts"),
        "backends": _in_child("backend_facts"),
        "tensorrt": _in_child("tensorrt_facts", trt),
    }
    account["target"] = _target_facts(target, account["tensorrt"]) if target else None
    account["problems"] = _problems(account)
    return account


def _in_child(function: str, *arguments: str) -> dict[str, Any]:
    """Runs a function of :mod:`nonzero_rewrite.doctor_probes` in a child process."""
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        "from nonzero_rewrite import doctor_probes as p; "
        "print('\\n' + json.dumps(getattr(p, sys.argv[2])(*sys.argv[3:])))"
    )
    command = [sys.executable, "-c", code, json.dumps(sys.path), function, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT, env=os.environ
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_TIMEOUT} s"}
    lines = done.stdout.strip().splitlines()
    try:
        facts = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return {"error": f"the process ended with {done.returncode}, saying: {said}"}
    return facts if isinstance(facts, dict) else {"error": f"unexpected answer {facts!r}"}


def _target_facts(target: Path, tensorrt: dict[str, Any]) -> dict[str, Any]:
    from nonzero_plugin.onnx_file import explain_mismatch
    from nonzero_plugin.places import NO_FILE
    from nonzero_plugin.registry import PluginTriple

    if not target.is_file():
        text = "is no file; name a model or an engine" if target.exists() else NO_FILE
        return {"path": str(target), "error": f"{target}: {text}"}
    facts = _model_facts(target) if target.suffix.lower() == ".onnx" else _engine_facts(target)
    present = [PluginTriple(*triple) for triple in tensorrt.get("registry", [])]
    for need in facts.get("needs", []):
        triple = PluginTriple(*need["plugin"])
        need["registered"] = triple in present
        need["why"] = "" if triple in present else explain_mismatch(triple, present)
    return {"path": str(target), **facts}


def _model_facts(path: Path) -> dict[str, Any]:
    from nonzero_plugin.errors import EngineBuildError
    from nonzero_plugin.onnx_file import load_structure, plugin_requests, walk_nodes

    try:
        model = load_structure(path)
    except EngineBuildError as error:
        return {"kind": "model", "error": str(error)}
    return {
        "kind": "model",
        "nonzero_left": sum(node.op_type == "NonZero" for _, node in walk_nodes(model.graph)),
        "needs": [
            {
                "node": f"{request.graph}/{request.node}" if request.graph else request.node,
                "plugin": [request.plugin.name, request.plugin.version, request.plugin.namespace],
            }
            for request in plugin_requests(model)
        ],
    }


def _engine_facts(path: Path) -> dict[str, Any]:
    from nonzero_plugin.places import not_read
    from nonzero_plugin.plan_file import plugin_triples
    from nonzero_plugin.sidecar import read_sidecar, sha256_of

    try:
        plan = path.read_bytes()
    except OSError as error:
        return {"kind": "engine", "error": not_read(path, error)}
    sidecar = read_sidecar(path)
    facts: dict[str, Any] = {
        "kind": "engine",
        "sidecar": sidecar,
        "needs": [
            {"node": None, "plugin": [triple.name, triple.version, triple.namespace]}
            for triple in plugin_triples(plan)
        ],
    }
    if sidecar:
        facts["sidecar_fits"] = sidecar["engine"]["sha256"] == sha256_of(path)
    return facts


def _problems(account: dict[str, Any]) -> list[str]:
    problems = []
    trt, cuda, target = account["tensorrt"], account["cuda"], account["target"] or {}
    if "error" in trt:
        problems.append(f"engines cannot be built or run: {trt['error']}")
    if "error" in cuda:
        problems.append(f"engines cannot be run: {cuda['error']}")
    if trt.get("gpu_supported") is False:
        problems.append(f"this GPU is not supported: {trt['gpu_verdict']}")
    if backend := account["backends"].get("cuda_python"):
        problems.append(f"the default backend is not available: {backend}")
    if "error" in target:
        problems.append(target["error"])
    for need in target.get("needs", []):
        if not need["registered"]:
            name, plugin_version, namespace = need["plugin"]
            problems.append(
                f"{target['path']} needs plugin {name}, version {plugin_version}, namespace "
                f"{namespace!r}: {need['why']}"
            )
    if target.get("nonzero_left") and trt.get("flavour") == "tensorrt_rtx":
        problems.append(
            f"{target['path']} still holds {target['nonzero_left']} ONNX NonZero, which TensorRT "
            "for RTX does not build: rewrite it, or build with --unpatched"
        )
    flavour = (target.get("sidecar") or {}).get("tensorrt", {})
    if flavour and "error" not in trt and flavour.get("flavour") != trt["flavour"]:
        problems.append(
            f"{target['path']} was built by {flavour['flavour']} {flavour['version']}, loaded is "
            f"{trt['flavour']} {trt['version']}: choose with --trt {flavour['flavour']}"
        )
    if target.get("sidecar_fits") is False:
        problems.append(
            f"{target['path']} is not the engine its sidecar describes: build it again, or remove "
            "the .json beside it"
        )
    return problems


def format_account(account: dict[str, Any]) -> str:
    """The account as text."""
    trt, cuda = account["tensorrt"], account["cuda"]
    lines = [f"Python        {account['python']}", f"Platform      {account['platform']}"]
    lines += [f"{name:<20} {found}" for name, found in account["packages"].items() if found]
    providers = account["onnxruntime"].get("providers") or [account["onnxruntime"].get("error")]
    lines.append(f"onnxruntime providers: {', '.join(map(str, providers))}")
    lines.append("")
    if "error" in cuda:
        lines.append(f"CUDA: {cuda['error']}")
    else:
        lines.append(f"CUDA: driver for {cuda['driver']}, runtime {cuda['runtime']}")
        lines += [f"  GPU {number}: {text}" for number, text in enumerate(cuda["devices"])]
    lines.append(f"  NVRTC: {cuda.get('nvrtc')}")
    lines += [
        f"  backend {name}: {'available' if why is None else why}"
        for name, why in account["backends"].items()
    ]
    lines.append("")
    if "error" in trt:
        lines.append(f"TensorRT: {trt['error']}")
    else:
        lines.append(f"TensorRT: {trt['flavour']} {trt['version']}, ONNX parser {trt['parser']}")
        lines += [f"  {path}" for path in trt["libraries"]]
        lines.append(f"  GPU: {trt['gpu_verdict']}")
        lines.append("  registered plugins (NonZeroPlugin by this command):")
        lines += [
            f"    {name}, version {number}, namespace {namespace!r}"
            for name, number, namespace in trt["registry"]
        ]
    if account["target"]:
        lines += ["", *_target_lines(account["target"])]
    lines.append("")
    lines += [f"Problem: {text}" for text in account["problems"]] or ["No problem found."]
    return "\n".join(lines)


def _target_lines(target: dict[str, Any]) -> list[str]:
    if "error" in target:
        return [str(target["error"])]
    lines = [f"{target['path']} ({target['kind']})"]
    if not target["needs"]:
        lines.append("  no plugin of ours is needed")
    for need in target["needs"]:
        name, number, namespace = need["plugin"]
        node = f"node {need['node']!r} " if need["node"] else ""
        state = "registered, exact match" if need["registered"] else need["why"]
        lines.append(f"  {node}needs {name}, version {number}, namespace {namespace!r}: {state}")
    sidecar = target.get("sidecar")
    if sidecar:
        made = sidecar["tensorrt"]
        lines.append(
            f"  built by {made['flavour']} {made['version']} from {sidecar['model']['file']}"
        )
        lines += [f"  profile: {text}" for text in sidecar["profiles"]]
    return lines
