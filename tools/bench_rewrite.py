"""Measures the rewriter against loading and saving the same file, in the same run.

    python tools/bench_rewrite.py              table of all three questions
    python tools/bench_rewrite.py --json       the same for machines

1. Does time grow linearly with the number of nodes? Models of 1k, 10k and 100k nodes, of which one
   in a thousand, or one in a hundred, is a NonZero; load + rewrite + write against ``onnx.load`` +
   ``onnx.save``.
2. What do embedded weights cost? 50 MB of them; the same ratio.
3. Are external weights read? 4 GB of them in a sparse file: files opened, and memory at its peak.

Each time is CPU time, the best of several runs taken in turn, so that a busy machine hits both
alike.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from nonzero_rewrite.load import load_model
from nonzero_rewrite.rewrite import rewrite
from nonzero_rewrite.write import write_model

GOAL_NODES, GOAL_WEIGHTS = 2.0, 1.5


def make_model(num_nodes: int, *, typed: bool, every: int = 1000) -> ModelProto:
    """Blocks of ``every`` nodes: layers, then a mask that picks from their result.

    ``typed`` models declare every type, as the dynamo exporter does; the others none, as the
    TorchScript exporter does, so that types have to be inferred.
    """
    nodes, infos = [], []
    value = "x"
    half = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    for block in range(max(num_nodes // every, 1)):
        for layer in range(every - 5):
            name = f"/model/block.{block}/layer.{layer}/output_0"
            op = ("Add", "Mul", "Relu", "Sigmoid")[layer % 4]
            inputs = [value, "half"] if layer % 4 < 2 else [value]
            nodes.append(helper.make_node(op, inputs, [name], name=name[:-9]))
            infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]))
            value = name
        p = f"/model/block.{block}"
        nodes += [
            helper.make_node("Greater", [value, "half"], [f"{p}/m"], name=f"{p}/Greater"),
            helper.make_node("NonZero", [f"{p}/m"], [f"{p}/i"], name=f"{p}/NonZero"),
            helper.make_node("Transpose", [f"{p}/i"], [f"{p}/t"], name=f"{p}/T", perm=[1, 0]),
            helper.make_node("GatherND", [value, f"{p}/t"], [f"{p}/g"], name=f"{p}/GatherND"),
            helper.make_node("ReduceMax", [f"{p}/g"], [f"{p}/y"], name=f"{p}/Max", keepdims=0),
        ]
        infos.append(helper.make_tensor_value_info(f"{p}/m", TensorProto.BOOL, ["n", 64]))
    graph = helper.make_graph(
        nodes,
        "bench",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info(f"{p}/y", TensorProto.FLOAT, [])],
        initializer=[half],
        value_info=infos if typed else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rewrite_file(path: Path, output: Path) -> int:
    """What ``nonzero-rewrite PATH -o OUTPUT`` does; returns how many plugins there are."""
    source = load_model(path)
    result = rewrite(source.model)
    write_model(result.model, source, output, changed=result.changed)
    return result.plan.count("plugin")


def load_and_save(path: Path, output: Path) -> None:
    onnx.save(onnx.load(path), output)


def best(functions: list[Callable[[], Any]], repeats: int) -> list[float]:
    """The shortest CPU time of each function in seconds, the functions taken in turn."""
    times = [float("inf")] * len(functions)
    for _ in range(repeats):
        for number, function in enumerate(functions):
            gc.collect()
            start = time.process_time()
            function()
            times[number] = min(times[number], time.process_time() - start)
    return times


def compare(folder: Path, model: ModelProto, repeats: int) -> dict[str, Any]:
    path, ours, theirs = folder / "model.onnx", folder / "ours.onnx", folder / "theirs.onnx"
    onnx.save(model, path)
    assert rewrite_file(path, ours) > 0
    mine, floor = best(
        [lambda: rewrite_file(path, ours), lambda: load_and_save(path, theirs)], repeats
    )
    return {
        "nodes": len(model.graph.node),
        "nonzero": sum(node.op_type == "NonZero" for node in model.graph.node),
        "bytes": path.stat().st_size,
        "rewrite_s": round(mine, 4),
        "load_save_s": round(floor, 4),
        "ratio": round(mine / floor, 2),
    }


def with_weights(megabytes: int) -> ModelProto:
    model = make_model(1000, typed=False, every=100)
    for number in range(megabytes):
        weights = np.zeros((512, 512), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, f"w{number}"))
    return model


OPENED: list[str] = []


def external(folder: Path, gigabytes: int) -> dict[str, Any]:
    """Rewrite a model whose weights lie in a sparse file; memory is this process's own peak."""
    model = make_model(1000, typed=False, every=100)
    size = gigabytes << 30
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[size // 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(size))):
        tensor.external_data.add(key=key, value=value)
    model.graph.initializer.append(tensor)
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(size)
    path = folder / "external.onnx"
    path.write_bytes(model.SerializeToString())
    sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)
    OPENED.clear()
    before = peak_memory()
    start = time.process_time()
    rewrite_file(path, folder / "external_patched.onnx")
    seconds = time.process_time() - start
    return {
        "weights_bytes": size,
        "rewrite_s": round(seconds, 4),
        "weights_opened": sum("weights.bin" in name for name in OPENED),
        "peak_memory_grew_bytes": None if before is None else (peak_memory() or 0) - before,
    }


def peak_memory() -> int | None:
    """Bytes this process has held at most, None where the platform does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def measure(sizes: list[int], repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result: dict[str, Any] = {
            "python": platform.python_version(),
            "onnx": onnx.__version__,
            "machine": f"{platform.system()} {platform.machine()}",
            # First, while the process is small.
            "external_weights": external(folder, 4),
            "nodes": [],
        }
        for every in (1000, 100):
            for typed in (True, False):
                for size in sizes:
                    model = make_model(size, typed=typed, every=every)
                    row = compare(folder, model, repeats)
                    result["nodes"].append({"types": "declared" if typed else "inferred", **row})
        result["embedded_weights"] = compare(folder, with_weights(50), repeats)
        return result


def table(result: dict[str, Any]) -> str:
    lines = [
        f"Python {result['python']}, onnx {result['onnx']}, {result['machine']}",
        "",
        "| model | nodes | NonZero | file | rewrite | load + save | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = [(f"types {row['types']}", row) for row in result["nodes"]]
    rows.append(("50 MB of weights", result["embedded_weights"]))
    for text, row in rows:
        lines.append(
            f"| {text} | {row['nodes']} | {row['nonzero']} | {row['bytes'] / 1e6:.1f} MB "
            f"| {row['rewrite_s']:.3f} s "
            f"| {row['load_save_s']:.3f} s | {row['ratio']:.2f} |"
        )
    data = result["external_weights"]
    grew = data["peak_memory_grew_bytes"]
    memory = "unknown here" if grew is None else f"{grew / 1e6:.0f} MB"
    lines += [
        "",
        f"{data['weights_bytes'] / 2**30:.0f} GiB of external weights: {data['rewrite_s']:.3f} s, "
        f"the data file opened {data['weights_opened']} times, peak memory grew by {memory}.",
        f"Goals: ratio at most {GOAL_NODES} with 100k nodes, types declared, one in a thousand "
        f"a NonZero; {GOAL_WEIGHTS} with 50 MB of weights.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    result = measure(options.nodes, options.repeats)
    print(json.dumps(result, indent=2) if options.json else table(result))


if __name__ == "__main__":
    main()
