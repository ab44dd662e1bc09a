"""``python -m nonzero_plugin.bench``: speed against the memory floor and against peers.

The floor of a problem is ``(items * itemsize + num_nonzero * rank * 8 bytes) / copy rate``: the
input read once and the rows written once, at the rate a device-to-device copy reaches in the same
run. ``GPU`` is the kernels' own time, ``call`` what two events around one enqueue on an idle stream
show (the peers' times are measured so), ``host`` what the enqueue costs the host, ``graph`` one of
fifty replays of a captured CUDA graph.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nonzero_plugin.contract import BACKENDS, NonZeroConfig
from nonzero_plugin.dtypes import DType
from nonzero_plugin.errors import NonZeroPluginError
from nonzero_plugin.places import not_written, problem_of, remove, temporary_for

LAYOUTS = {"KxR": (1, 0), "RxK": (0, 1)}
PEERS = ("torch", "cupy", "cub", "atomic")
Row = dict[str, Any]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nonzero_plugin.bench", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--backend", choices=BACKENDS, default="cuda_python")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[10, 14, 17, 20, 22, 24, 26, 28], metavar="LOG2"
    )
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=[dtype.name for dtype in DType],
        default=["BOOL", "FLOAT16", "FLOAT", "INT64"],
        metavar="TYPE",
    )
    parser.add_argument("--densities", type=float, nargs="+", default=[0, 0.01, 0.1, 0.5, 1])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--repeats", type=int, default=20, help="the median of so many is shown")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    parser.add_argument("--plot", type=Path, help="draw a PNG (needs matplotlib)")
    return parser


def _environment(
    bench: Any, versions: dict[str, str], arguments: argparse.Namespace
) -> dict[str, Any]:
    import cuda.bindings
    from cuda.bindings import driver

    from nonzero_plugin.compile import nvrtc_version
    from nonzero_plugin.device import call

    name = call(driver.cuDeviceGetName, 256, bench.device)
    supported = call(driver.cuDriverGetVersion)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "card": name.split(b"\0")[0].decode(),
        "driver": _driver_version(),
        "driver_cuda": f"{supported // 1000}.{supported % 1000 // 10}",
        "nvrtc": ".".join(map(str, nvrtc_version())),
        "python": platform.python_version(),
        "packages": {"cuda-bindings": cuda.bindings.__version__, **dict(sorted(versions.items()))},
        "copy_tb_per_s": round(bench.copy_bytes_per_s / 1e12, 3),
        "command": _command(arguments),
    }


def _driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.split()[0]


def _command(arguments: argparse.Namespace) -> str:
    """The command line, less the names of the files it writes."""
    skip = {str(arguments.json), str(arguments.plot), "--json", "--plot"}
    words = [word for word in sys.argv[1:] if word not in skip]
    return " ".join(["python -m nonzero_plugin.bench", *words])


def _dims(log2: int) -> tuple[int, int]:
    return 1 << (log2 - log2 // 2), 1 << (log2 // 2)


def _measure(
    bench: Any, peers: Any, backend: Any, dtype: DType, log2: int, density: float
) -> list[Row]:
    from nonzero_plugin.bench_measure import Memory, count_of
    from nonzero_plugin.bench_peers import Problem
    from nonzero_plugin.launch import workspace_bytes

    dims = _dims(log2)
    items = math.prod(dims)
    rows = []
    with Memory(items * dtype.itemsize) as x, Memory(8) as count:
        bench.fill(x.address, items, dtype, density)
        timed_peers: dict[str, float] | None = None
        for layout, perm in LAYOUTS.items():
            config = NonZeroConfig(backend=backend.name, perm=perm)
            launch = backend.prepare(dims, dtype, config)
            needed = workspace_bytes(dims, dtype, config)
            with Memory(16 * items) as out, Memory(needed) as workspace:
                addresses = (x.address, out.address, count.address, workspace.address)

                def enqueue(launch: Any = launch, addresses: Any = addresses) -> None:
                    launch(*addresses, bench.stream)

                enqueue()
                bench.synchronize()
                num_nonzero = count_of(count.address)
                bench.warm_up(enqueue, 0.05 if log2 >= 24 else 0.01)
                row: Row = {
                    "dtype": dtype.name,
                    "log2_items": log2,
                    "density": density,
                    "num_nonzero": num_nonzero,
                    "layout": layout,
                    "workspace_bytes": needed,
                    "floor_us": (items * dtype.itemsize + 16 * num_nonzero)
                    / bench.copy_bytes_per_s
                    * 1e6,
                    "gpu_us": bench.gpu_us(enqueue),
                    "call_us": bench.call_us(enqueue),
                    "host_us": bench.host_us(enqueue),
                }
                if backend.name != "torch" and log2 <= 24:
                    row["graph_us"] = bench.graph_us(enqueue)
            if timed_peers is None:
                timed_peers = peers.measure(Problem(x.address, dims, dtype, num_nonzero))
            row["peers_us"] = timed_peers
            rows.append(row)
    return rows


def _table(rows: list[Row]) -> str:
    head = ["type", "items", "K/N", "layout", "floor us", "GPU us", "of floor", "call us"]
    head += ["host us", "graph us", *(f"vs {peer}" for peer in PEERS)]
    lines = [head]
    for row in rows:
        line = [row["dtype"], f"2^{row['log2_items']}", f"{row['density']:g}", row["layout"]]
        line += [f"{row['floor_us']:.1f}", f"{row['gpu_us']:.1f}"]
        line += [f"{row['floor_us'] / row['gpu_us']:.2f}", f"{row['call_us']:.1f}"]
        line += [f"{row['host_us']:.1f}", f"{row['graph_us']:.1f}" if "graph_us" in row else "-"]
        for peer in PEERS:
            time_us = row["peers_us"].get(peer)
            line.append(f"{time_us / row['call_us']:.1f}x" if time_us else "-")
        lines.append(line)
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _plot(path: Path, rows: list[Row], environment: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    largest = max(row["log2_items"] for row in rows)
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        lines.setdefault((row["dtype"], row["layout"]), []).append(row)
    for (dtype, layout), group in lines.items():
        style = "-o" if layout == "KxR" else "--s"
        big = [row for row in group if row["log2_items"] == largest]
        left.plot(
            range(len(big)),
            [row["floor_us"] / row["gpu_us"] for row in big],
            style,
            label=f"{dtype} {layout}",
        )
        left.set_xticks(range(len(big)), [f"{row['density']:g}" for row in big])
    left.set(xlabel="non-zero share", ylabel="floor / GPU time", ylim=(0, 1.05))
    left.set_title(f"2^{largest} items: share of the memory floor")
    left.legend(fontsize=7, ncols=2)
    for peer in PEERS:
        by_size: dict[int, list[float]] = {}
        for row in rows:
            if peer in row["peers_us"]:
                ratio = row["peers_us"][peer] / row["call_us"]
                by_size.setdefault(row["log2_items"], []).append(ratio)
        if by_size:
            sizes = sorted(by_size)
            right.plot(sizes, [min(by_size[size]) for size in sizes], "-o", label=f"{peer}, least")
    right.axhline(1, color="gray", linewidth=0.8)
    right.set(xlabel="log2 of items", ylabel="peer's time / ours", yscale="log")
    right.set_title("least speed-up over all types, densities and layouts")
    right.legend(fontsize=8)
    figure.suptitle(f"{environment['card']}, {environment['date']}")
    _replace(path, lambda temporary: figure.savefig(temporary, dpi=130, format="png"))


def _write_json(path: Path, data: dict[str, Any]) -> None:
    _replace(path, lambda temporary: temporary.write_text(json.dumps(data, indent=1) + "\n"))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all."""
    temporary = temporary_for(path)
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        remove(temporary)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure what was asked for; the table's numbers as plain data."""
    from nonzero_plugin.backends import get_backend
    from nonzero_plugin.bench_measure import Bench
    from nonzero_plugin.bench_peers import Peers

    backend = get_backend(arguments.backend)
    bench = Bench(arguments.repeats)
    peers = Peers(bench, tuple(arguments.peers))
    peers.finish()
    rows: list[Row] = []
    skipped: list[str] = []
    for name in arguments.dtypes:
        dtype = DType[name]
        for log2 in arguments.sizes:
            if (1 << log2) * (dtype.itemsize + 17) * 2.2 > bench.free_bytes():
                skipped.append(f"{name} 2^{log2}: the device has too little memory")
                continue
            for density in arguments.densities:
                rows += _measure(bench, peers, backend, dtype, log2, density)
                if sys.stderr.isatty():
                    print(f"\r{name} 2^{log2} {density:g}   ", end="", file=sys.stderr)
    return {
        "environment": {**_environment(bench, peers.versions, arguments), "backend": backend.name},
        "not_measured": {**peers.missing, **({"sizes": skipped} if skipped else {})},
        "rows": rows,
    }


def main() -> int:
    """The command; 0 when done, 1 for what the user can mend."""
    arguments = _parser().parse_args()
    for path in filter(None, (arguments.json, arguments.plot)):
        if problem := problem_of(path):  # before minutes of measuring, not after them
            print(f"Error: {problem}", file=sys.stderr)
            return 1
    try:
        data = run(arguments)
    except NonZeroPluginError as err:
        print(f"Error: {err}", file=sys.stderr)
        return 1
    environment = data["environment"]
    for name, value in environment.items():
        print(f"{name}: {value}")
    for name, reason in data["not_measured"].items():
        print(f"not measured: {name} ({reason})")
    print(_table(data["rows"]))
    path = arguments.json
    try:
        if path:
            _write_json(path, data)
        if path := arguments.plot:
            _plot(path, data["rows"], environment)
    except ImportError as err:
        print(f"no plot: {err}; install matplotlib", file=sys.stderr)
    except OSError as err:
        print(f"Error: {not_written(path, err)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
