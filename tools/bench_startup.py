"""Measures how long the commands take to start, beside Python itself and in the same run.

    python tools/bench_startup.py              a table
    python tools/bench_startup.py --json       the same for machines

Every command runs in a process of its own; the commands take turns, so that a busy machine hits all
alike, and the best and the median of the rounds are told. ``polygraphy -h`` is measured with this
package's entry point and with Polygraphy told to ask for an entry point that nobody has.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "yolo_score_head.onnx"
WITHOUT_US = """
import sys
from polygraphy.tools.run import run
assert run.PLUGIN_ENTRY_POINT == "polygraphy.run.plugins"
run.PLUGIN_ENTRY_POINT = "nobody"
"""
POLYGRAPHY = "from polygraphy.tools import main; sys.argv[1:] = ['-h']; main()"
OURS = [sys.executable, "-m", "nonzero_rewrite"]

COMMANDS: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "python -c 'import onnx'": ([sys.executable, "-c", "import onnx"], None),
    "nonzero-rewrite --help": ([*OURS, "--help"], 0.3),
    "nonzero-rewrite scan MODEL": ([*OURS, "scan", str(MODEL)], 1.0),
    "nonzero-rewrite MODEL -o OUT": ([*OURS, str(MODEL), "-o", "{folder}/out.onnx"], None),
    "polygraphy -h, without us": ([sys.executable, "-c", WITHOUT_US + POLYGRAPHY], None),
    "polygraphy -h, with us": ([sys.executable, "-c", "import sys; " + POLYGRAPHY], None),
}
"""Name -> command, and the goal in seconds on two idle cores where there is one."""


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of each command in each round."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for name, (command, _) in COMMANDS.items():
                words = [word.replace("{folder}", folder) for word in command]
                started = time.perf_counter()
                done = subprocess.run(words, capture_output=True, text=True, check=False)
                seconds = time.perf_counter() - started
                if done.returncode:
                    raise SystemExit(f"{name} ended with {done.returncode}: {done.stderr[-500:]}")
                if number:  # the first round fills the file cache and writes byte code
                    times[name].append(seconds)
    return times


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", dest="as_json")
    args = parser.parse_args()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    times = measure(args.rounds)
    machine = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_at_start": load,
        **{name: metadata.version(name) for name in ("click", "onnx", "polygraphy", "rich")},
    }
    if args.as_json:
        print(json.dumps({**machine, "seconds": times}, indent=2))
        return
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(f"\n| command | best of {args.rounds} | median | goal |\n| --- | --- | --- | --- |")
    for name, (_, goal) in COMMANDS.items():
        best, median = min(times[name]), statistics.median(times[name])
        print(f"| `{name}` | {best:.2f} s | {median:.2f} s | {f'{goal} s' if goal else ''} |")


if __name__ == "__main__":
    main()
