"""Rewrite, verify and build every model of a folder, and print one table.

    python tools/corpus.py FOLDER [--rtx] [--jobs 2] [--json OUT] [--markdown OUT]

Each model runs in a process of its own with a time limit, so a crash costs one line of the table.
A ``NAME.npz`` beside ``NAME.onnx`` is used as inputs, next to the searched ones. Exits with 1 on a
traceback, a crash, a time-out or an unequal output.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import click

BROKEN = ("traceback", "crash", "time-out", "different", "invalid")


def examine(path: Path, rtx: bool, seed: int) -> dict[str, Any]:
    """One model: what was rewritten, parity, and the build."""
    import onnx
    from nonzero_plugin.errors import NonZeroPluginError

    from nonzero_rewrite import rewrite_model
    from nonzero_rewrite.errors import NonZeroRewriteError

    row: dict[str, Any] = {"model": path.name}
    try:
        result = rewrite_model(path)
    except (NonZeroRewriteError, NonZeroPluginError) as err:
        return {**row, "refused": str(err)}
    decisions = result.plan.decisions
    row["sites"] = len(result.sites)
    row["outcomes"] = dict(Counter(decision.outcome for decision in decisions))
    row["left"] = dict(
        Counter(d.reason.name for d in decisions if d.outcome == "left" and d.reason)
    )
    row["rules"] = dict(Counter(rule for d in decisions for rule in d.rules))
    again = rewrite_model(result.model)
    row["idempotent"] = again.model.SerializeToString() == result.model.SerializeToString()
    row["valid"] = _valid(onnx.load(path, load_external_data=False), result.model)
    row |= _parity(path, result.model, seed)
    if rtx:
        row["rtx"] = _build(path, result.model, result.plan.leftovers)
    return row


def _valid(original: Any, patched: Any) -> str:
    """ "" when the patched model passes the checker or the original did not either."""
    import onnx

    def words(model: Any) -> str:
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as err:
            return str(err).strip().splitlines()[0]
        return ""

    return words(patched) if not words(original) else ""


def _parity(path: Path, patched: Any, seed: int) -> dict[str, Any]:
    from nonzero_rewrite.errors import VerificationError
    from nonzero_rewrite.inputs import load_inputs
    from nonzero_rewrite.verify import verify_models

    beside = path.with_suffix(".npz")
    inputs = [load_inputs(beside)] if beside.is_file() else []
    note = ""
    try:
        found = verify_models(path, patched, inputs=inputs, seed=seed)
    except VerificationError as err:
        note = str(err)
        found = verify_models(path, patched, seed=seed)
    some = [cover.some for cover in found.coverage]
    return {
        "parity": found.outcome.value,
        "parity_reason": found.reason or note,
        "runtime": ", ".join(found.runtimes),
        "cases": sum(case.compared for case in found.cases),
        "masks": len(some),
        "masks_partly_selected": sum(some),
        "verify_seconds": found.seconds,
    }


def _build(path: Path, patched: Any, leftovers: int) -> str:
    """ "built", or TensorRT's words."""
    import onnx
    from nonzero_plugin.build import BuildOptions, build_engine
    from nonzero_plugin.errors import NonZeroPluginError

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if any(tensor.external_data for tensor in patched.graph.initializer):
            onnx.load_external_data_for_model(patched, str(path.parent))
        onnx.save(patched, folder / "patched.onnx")
        try:
            options = BuildOptions(leftovers=leftovers)
            build_engine(folder / "patched.onnx", folder / "model.engine", options)
        except NonZeroPluginError as err:
            return " ".join(str(err).split()).replace(f"{folder}/", "")
    return "built"


def run_one(path: Path, rtx: bool, seed: int, limit: float) -> dict[str, Any]:
    """``examine`` in a child process."""
    command = [sys.executable, __file__, str(path), "--one", "--seed", str(seed)]
    started = time.monotonic()
    row: dict[str, Any] = {"model": path.name}
    try:
        done = subprocess.run(
            command + ["--rtx"] * rtx,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**row, "broken": f"time-out after {limit:g} s"}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        row = json.loads(lines[-1])
    elif done.returncode == 1 and "Traceback" in done.stderr:
        row["broken"] = "traceback"
        row["traceback"] = done.stderr[-3000:]
    else:
        row["broken"] = f"crash (exit code {done.returncode})"
        row["traceback"] = done.stderr[-3000:]
    row["seconds"] = round(time.monotonic() - started, 2)
    return row


def verdict(row: dict[str, Any]) -> str:
    """ "" for a model that is as it should be, else one of BROKEN."""
    if "broken" in row:
        return next(word for word in BROKEN if row["broken"].startswith(word))
    if "refused" in row:
        return ""
    if row["parity"] == "different":
        return "different"
    return "" if row["idempotent"] and not row["valid"] else "invalid"


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    if "broken" in row or "refused" in row:
        return [row["model"], "-", "-", row.get("broken") or f"refused: {row['refused']}", "-"]
    outcomes = row["outcomes"]
    rewritten = " + ".join(f"{n} {name}" for name, n in outcomes.items() if name != "left") or "-"
    left = ", ".join(f"{n} {reason}" for reason, n in row["left"].items()) or "-"
    parity = row["parity"]
    if parity == "equal":
        parity += f" ({row['cases']} cases, {row['masks_partly_selected']}/{row['masks']} partly)"
    else:
        parity += f": {row['parity_reason']}"
    return [row["model"], rewritten, left, parity, row.get("rtx", "-")]


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Counts under the table."""
    good = [row for row in rows if "broken" not in row and "refused" not in row]
    total: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for row in good:
        total.update(row["outcomes"])
        left.update(row["left"])
    parity = Counter(row["parity"] for row in good)
    lines = [
        f"models: {len(rows)}; refused: {sum('refused' in row for row in rows)}; "
        f"broken: {sum(bool(verdict(row)) for row in rows)}",
        "NonZero: " + _counts(total),
        "left alone: " + _counts(left),
        "parity: " + _counts(parity),
        f"masks: {sum(r['masks'] for r in good)}, partly selected in some case: "
        f"{sum(r['masks_partly_selected'] for r in good)}",
    ]
    built = [row["rtx"] == "built" for row in good if "rtx" in row]
    if built:
        lines.append(f"TensorRT-RTX: {sum(built)} of {len(built)} build")
    return lines


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common()) or "none"


HEADER = ["model", "rewritten", "left alone", "parity", "TensorRT-RTX"]


def markdown(rows: Iterable[dict[str, Any]], lines: list[str], command: str) -> str:
    """Date, versions, command, counts, reasons for builds that fail, and the table."""
    rows = list(rows)
    names = ("onnx", "onnxruntime", "numpy", "tensorrt_rtx")
    versions = [f"python {platform.python_version()}"]
    versions += [f"{name} {found}" for name in names if (found := _version(name))]
    text = [f"# A run of `{command}`", ""]
    text += [f"{datetime.now(timezone.utc):%Y-%m-%d}, CPU only, {', '.join(versions)}", ""]
    text += [f"- {line}" for line in lines]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.get("rtx", "built") != "built":
            reasons.setdefault(_build_reason(row["rtx"]), []).append(row["model"])
    if reasons:
        text += ["", "## Why the others do not build", "", "| models | reason |", "| --- | --- |"]
        ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
        text += [f"| {len(models)} | {_cell(reason, 200)} |" for reason, models in ordered]
    text += ["", "## Every model", "", _line(HEADER), _line(["---"] * len(HEADER))]
    text += [_line([_cell(cell, 110) for cell in cells(row)]) for row in rows]
    return "\n".join(text) + "\n"


def _build_reason(text: str) -> str:
    """TensorRT's sentence and the operator it stopped at, without names of nodes."""
    node = re.search(r"at node '[^']*' \((\w+)\)", text)
    said = re.search(r"TensorRT says: (.*?)(?:; what can be done|$)", text)
    reason = said[1] if said else text
    reason = re.sub(r"(?<=failed\. )\S+ has", "It has", reason)
    return f"{node[1]}: {reason}" if node else reason


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cell(text: str, longest: int) -> str:
    text = text.replace("|", "\\|")
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _line(items: list[str]) -> str:
    return "| " + " | ".join(items) + " |"


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all rows here.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write a table.")
@click.option("--jobs", default=2, show_default=True, help="Models at a time.")
@click.option("--rtx", is_flag=True, help="Build each patched model with TensorRT-RTX as well.")
@click.option("--seed", default=0, show_default=True, help="Seed of the searched inputs.")
@click.option("--time-limit", default=300.0, show_default=True, help="Seconds for one model.")
@click.option("--one", is_flag=True, hidden=True)
def main(
    *,
    folder: Path,
    json_file: Path | None,
    markdown_file: Path | None,
    jobs: int,
    rtx: bool,
    seed: int,
    time_limit: float,
    one: bool,
) -> None:
    """Rewrite, verify and, with --rtx, build every .onnx file in FOLDER."""
    if one:
        try:
            print(json.dumps(examine(folder, rtx, seed)))
        except Exception:  # the parent counts it and goes on
            traceback.print_exc()
            sys.exit(1)
        return
    paths = sorted(folder.rglob("*.onnx"))
    if not paths:
        raise click.UsageError(f"{folder}: no .onnx file")
    rows = []
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(lambda path: run_one(path, rtx, seed, time_limit), paths):
            rows.append(row)
            print("  ".join(cells(row))[:220], flush=True)
            if "traceback" in row:
                print(row["traceback"], file=sys.stderr)
    lines = summary(rows)
    print("\n" + "\n".join(lines))
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if markdown_file:
        command = f"python tools/corpus.py FOLDER{' --rtx' * rtx} --markdown OUT"
        markdown_file.write_text(markdown(rows, lines, command), encoding="utf-8")
    sys.exit(any(map(verdict, rows)))


if __name__ == "__main__":
    main()
