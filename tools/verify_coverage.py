"""How many masks the default inputs of ``verify`` reach with none, some and all of their items.

    python tools/verify_coverage.py FOLDER... [--time-budget 20]

Rewrites each .onnx file, compares it with the original on the inputs that are searched by default,
and counts, for each NonZero of a main graph, what was selected in some case. Prints the masks that
were never partly selected, each with the reason that ``verify`` gives.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, TimeoutError
from pathlib import Path
from typing import Any

import click


def measure(path: Path, time_budget: float) -> dict[str, Any]:
    """Outcome and coverage of one model."""
    from nonzero_plugin.errors import NonZeroPluginError

    from nonzero_rewrite import rewrite_model, verify_models
    from nonzero_rewrite.errors import NonZeroRewriteError

    try:
        patched = rewrite_model(path).model
        found = verify_models(path, patched, time_budget=time_budget)
    except (NonZeroRewriteError, NonZeroPluginError) as err:
        return {"outcome": "refused", "reason": str(err), "masks": []}
    masks = [(c.node, c.none, c.some, c.all, c.note) for c in found.coverage]
    return {"outcome": found.outcome.value, "reason": found.reason, "masks": masks}


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--time-budget", default=20.0, show_default=True, help="Seconds of search a model.")
@click.option("--time-limit", default=120.0, show_default=True, help="Seconds for one model.")
def main(*, folders: tuple[Path, ...], time_budget: float, time_limit: float) -> None:
    """Measure all models of FOLDERS and print Markdown."""
    paths = sorted(path for folder in folders for path in folder.rglob("*.onnx"))
    outcomes: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    missed = []
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    for path in paths:
        try:
            row = pool.submit(measure, path, time_budget).result(time_limit)
        except (TimeoutError, OSError, RuntimeError) as err:
            outcomes[f"ended by {type(err).__name__}"] += 1
            for process in list(pool._processes.values()):
                process.kill()
            pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            continue
        outcomes[row["outcome"]] += 1
        if row["outcome"] == "not comparable" and row["masks"]:
            reached["in models that do not run"] += len(row["masks"])
            continue
        for node, none, some, full, note in row["masks"]:
            reached.update({"masks": 1, "none": none, "some": some, "all": full})
            if not some:
                missed.append(f"- {path.stem}, {node}: {note}")
                reasons["by no input" if "whatever" in note else "by the search"] += 1
    pool.shutdown()
    print(f"Models: {len(paths)}; " + ", ".join(f"{n} {k}" for k, n in outcomes.most_common()))
    print(f"Masks in models that run: {reached['masks']}")
    for name in ("none", "some", "all"):
        print(f"- {name} of the items selected in some case: {reached[name]}")
    print(f"- in models that do not run: {reached['in models that do not run']}")
    print(
        f"Never partly selected: {len(missed)}; "
        + ", ".join(f"{n} {k}" for k, n in reasons.items())
    )
    print("\n".join(missed))


if __name__ == "__main__":
    main()
