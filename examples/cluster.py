"""Rewrite a folder of models on one machine, or on a Dask cluster, with the same function.

    python examples/cluster.py MODELS OUTDIR                          # processes of this machine
    python examples/cluster.py MODELS OUTDIR --dask tcp://host:8786   # workers of a cluster
    python examples/cluster.py MODELS OUTDIR --dask local             # a Dask cluster started here

``rewrite_file`` takes and returns picklable values, so any executor can carry it. Workers of a
cluster see the files under the same paths, for example on a network share, and have
nonzero-rewrite installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nonzero_rewrite.batch import find_models, rewrite_files, worst_code
from nonzero_rewrite.file_task import FileResult, FileTask, rewrite_file


def on_this_machine(tasks: list[FileTask], jobs: int) -> list[FileResult]:
    """Processes of this machine; one that dies costs one model."""
    return rewrite_files(tasks, jobs=jobs, on_result=show)


def on_dask(tasks: list[FileTask], address: str, jobs: int) -> list[FileResult]:
    """Workers of a Dask cluster; ``"local"`` starts ``jobs`` of them here."""
    from distributed import Client, as_completed

    if address == "local":
        client = Client(n_workers=jobs, threads_per_worker=1, dashboard_address=None)
    else:
        client = Client(address)
    results = []
    with client:
        for _, result in as_completed(
            client.map(rewrite_file, tasks, pure=False), with_results=True
        ):
            show(result)
            results.append(result)
    return results


def show(result: FileResult) -> None:
    """One line for each model."""
    found = ", ".join(f"{count} {outcome}" for outcome, count in result.outcomes.items())
    print(f"{result.source.name}: {result.error or found or 'no NonZero'}", flush=True)


def main() -> int:
    """Parse, rewrite, and return the exit code of ``nonzero-rewrite``."""
    parser = argparse.ArgumentParser(description="Rewrite a folder of ONNX models.")
    parser.add_argument("models", type=Path)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--dask", metavar="ADDRESS", help="a scheduler's address, or local")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verify", action="store_true")
    args = parser.parse_args()
    tasks = [
        FileTask(source.resolve(), target.resolve(), verify=args.verify)
        for source, target in find_models([args.models], args.outdir)
    ]
    if args.dask:
        results = on_dask(tasks, args.dask, args.jobs)
    else:
        results = on_this_machine(tasks, args.jobs)
    return worst_code(results)


if __name__ == "__main__":  # processes are spawned: they import this file
    sys.exit(main())
