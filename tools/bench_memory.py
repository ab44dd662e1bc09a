"""Peak memory and time of a rewrite of a large model, next to the size of its file.

    python tools/bench_memory.py --megabytes 1024

Makes a model with so many bytes of weights in a temporary folder, embedded and in an external
file, and rewrites each in a process of its own, as ``nonzero-rewrite MODEL -o OUT`` does. Prints
the peak of resident memory above that of the same run on a model without weights. Exits with 1
when that is more than twice the file for embedded weights, or more than 64 MB for external ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

FLAT_MB = 64
LAYERS = 16

CHILD = """
import json, resource, sys, time
from click.testing import CliRunner
from nonzero_rewrite.cli import main
import nonzero_rewrite.cli.rewrite, nonzero_rewrite.rewrite, nonzero_rewrite.write, rich.console
started = time.monotonic()
done = CliRunner().invoke(main, sys.argv[1:])
assert done.exit_code == 0, done.output
seconds = time.monotonic() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "peak": peak * (1 if sys.platform == "darwin" else 1024)}))
"""


def make_model(path: Path, weight_bytes: int, external: bool) -> int:
    """A chain of weights that are added, and a mask at its end; returns the bytes of all files."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    items = max(weight_bytes // LAYERS // 4, 1)
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for layer in range(LAYERS):
        data = rng.standard_normal(items, dtype=np.float32)
        weights.append(numpy_helper.from_array(data, f"w{layer}"))
        nodes.append(helper.make_node("Add", [last, f"w{layer}"], [f"h{layer}"]))
        last = f"h{layer}"
    nodes += [
        helper.make_node("NonZero", [last], ["indices"]),
        helper.make_node("Transpose", ["indices"], ["pairs"], perm=[1, 0]),
        helper.make_node("GatherND", [last, "pairs"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [items])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k"])],
        initializer=weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(
        model,
        path,
        save_as_external_data=external,
        location=f"{path.name}.data",
        size_threshold=0,
    )
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def measure(model: Path, out: Path) -> dict[str, Any]:
    """Seconds and peak resident bytes of one rewrite."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(model), "-o", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise click.ClickException(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def make_in_child(path: Path, size: int, external: bool) -> int:
    """``make_model`` in a process of its own, so that its memory is not in the way."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
        "from bench_memory import make_model;"
        "print(make_model(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == 'True'))"
    )
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, folder, str(path), str(size), str(external)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@click.command()
@click.option("--megabytes", default=1024, show_default=True, help="Weights of the model.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where the models are made.")
def main(*, megabytes: int, folder: Path | None) -> None:
    """Measure, print a table, and compare with the limits."""
    bad = False
    print("| weights | files | peak above an empty model's | times the files | seconds |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        base = Path(name)
        make_in_child(base / "none.onnx", 0, False)
        idle = measure(base / "none.onnx", base / "out.onnx")["peak"]
        for kind in ("embedded", "external"):
            work = base / kind
            work.mkdir()
            size = make_in_child(work / "model.onnx", megabytes << 20, kind == "external")
            (work / "out").mkdir()
            started = time.monotonic()
            found = measure(work / "model.onnx", work / "out" / "patched.onnx")
            above = found["peak"] - idle
            print(
                f"| {kind} | {size >> 20} MB | {above >> 20} MB | {above / size:.2f} "
                f"| {found['seconds']:.1f} (process {time.monotonic() - started:.1f}) |",
                flush=True,
            )
            bad |= above > (2 * size if kind == "embedded" else FLAT_MB << 20)
            for path in sorted(work.rglob("*"), reverse=True):
                if path.is_file():
                    path.unlink()
    sys.exit(bad)


if __name__ == "__main__":
    main()
