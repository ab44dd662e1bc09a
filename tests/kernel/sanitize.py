"""Runs a few cases of every path under each tool of NVIDIA's compute-sanitizer.

    python tests/kernel/sanitize.py [memcheck racecheck initcheck synccheck]

Exits 1 when a tool reports an error or a result is wrong.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
ROOT = Path(__file__).resolve().parents[2]


def cases() -> None:
    """What runs under the tool: exact-sized allocations, so that one byte too far is seen."""
    import numpy as np
    from helpers.gpu import Device, draw, run
    from nonzero_plugin import launch
    from nonzero_plugin.contract import NonZeroConfig
    from nonzero_plugin.dtypes import DType
    from test_gpu import few_blocks

    device, rng, count = Device(pooled=False), np.random.default_rng(13), 0
    paths = ((32, 1 << 60, 1 << 31), (0, 1 << 60, 1 << 31), (0, 0, 1 << 31), (0, 0, 0))
    for number, path in enumerate(paths):
        launch.SMALL_SPANS, launch.LARGE_FROM_BYTES, launch._WIDE_FROM_ITEMS = path
        if number == 2:
            few_blocks(setattr)
        for dtype, perm in product(
            (DType.BOOL, DType.FLOAT16, DType.FLOAT, DType.INT64), ((0, 1), (1, 0))
        ):
            for dims, density, shift, most in (
                ((9001,), 0.3, 3, None),
                ((131, 257), 1, 0, None),
                ((3, 41, 271), 0.01, 1, 100),
                ((2, 3, 5, 7, 2, 3, 5, 7), 0.6, 5, None),
            ):
                words = draw(rng, dtype, int(np.prod(dims)), density)
                config = NonZeroConfig(perm=perm, max_nonzero=most)
                run(device, "cuda_python", words, dims, dtype, config, shift=shift)
                count += 1
    print(f"{count} cases exact")


def main() -> int:
    sys.path[:0] = [
        str(ROOT / "tests" / "kernel"),
        str(ROOT / "tests"),
        str(ROOT / "plugin"),
        str(ROOT),
    ]
    if sys.argv[1:] == ["--cases"]:
        cases()
        return 0
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    failed = []
    for tool in sys.argv[1:] or TOOLS:
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9"]
        if tool == "memcheck":
            command += ["--leak-check", "no"]
        command += [sys.executable, __file__, "--cases"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY.*|\d+ cases exact", done.stdout)
        print(f"{tool}: exit {done.returncode}; {'; '.join(summary)}", flush=True)
        if done.returncode or not any("exact" in line for line in summary):
            failed.append(tool)
            print(done.stdout[-4000:], done.stderr[-4000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
