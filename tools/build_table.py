"""Rewrites and builds every ONNX model of a folder, and prints one Markdown table of what happened.

    python tools/build_table.py FOLDER [--trt tensorrt_rtx] [--unpatched] [-o results/NAME.md]

``--unpatched`` builds the models as they are (TensorRT for RTX). Builds run one after another, each
in a process of its own; nothing is left on disk but the table.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx
from nonzero_plugin.engine import BuildOptions, build_engine
from nonzero_plugin.errors import EngineBuildError, NonZeroPluginError
from nonzero_plugin.onnx_file import walk_nodes


@dataclass(frozen=True)
class Row:
    """One model: what it holds, how the build ended, and TensorRT's reason where it failed."""

    model: str
    nonzero: int
    plugins: int
    left: int
    outcome: str
    node: str
    seconds: float
    reason: str
    version: str = ""


def main() -> int:
    """Command line; 0 when every model ended in an engine or an explained refusal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trt", default="tensorrt_rtx")
    parser.add_argument("--unpatched", action="store_true")
    parser.add_argument("--match", default="", help="only models whose path holds this text")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    paths = [
        path for path in sorted(arguments.folder.rglob("*.onnx")) if arguments.match in str(path)
    ]
    rows = []
    for number, path in enumerate(paths, 1):
        row = build_one(path, path.relative_to(arguments.folder), arguments)
        print(f"{number}/{len(paths)} {row.model}: {row.outcome} {row.reason[:150]}", flush=True)
        rows.append(row)
    text = report(rows, arguments)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    print(text)
    return 0 if all(row.outcome != "crash" for row in rows) else 1


def build_one(path: Path, name: Path, arguments: argparse.Namespace) -> Row:
    """Rewrites (unless told not to) and builds one model in a temporary folder."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "patched.onnx"
        engine = Path(folder) / "model.engine"
        counts = (0, 0, 0)
        try:
            original = onnx.load(path, load_external_data=False)
            before = count(original, "NonZero")
            if arguments.unpatched:
                model, counts = path, (before, 0, before)
            else:
                patched = rewrite(path, model)
                counts = (before, count(patched, "NonZeroPlugin"), count(patched, "NonZero"))
            options = BuildOptions(trt=arguments.trt, unpatched=arguments.unpatched)
            result = build_engine(model, engine, options)
            outcome, node, reason, version = "built", "", "", result.version
        except EngineBuildError as error:
            outcome, node, version = error.phase, error.node or "", ""
            reason = str(error).removeprefix(f"{model.name}: ")
        except NonZeroPluginError as error:
            outcome, node, reason, version = "plugin", "", str(error), ""
        except Exception as error:
            outcome, node, version = "crash", "", ""
            reason = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - started
    return Row(name.as_posix(), *counts, outcome, node, seconds, reason, version)


def rewrite(path: Path, output: Path) -> onnx.ModelProto:
    """The patched model, saved with its data files beside it."""
    from nonzero_rewrite.load import load_model
    from nonzero_rewrite.rewrite import rewrite as rewrite_loaded
    from nonzero_rewrite.write import write_model

    loaded = load_model(path)
    result = rewrite_loaded(loaded.model)
    write_model(result.model, loaded, output)
    return result.model


def count(model: onnx.ModelProto, op_type: str) -> int:
    """Nodes of that type anywhere in the main graph and its subgraphs."""
    return sum(node.op_type == op_type for _, node in walk_nodes(model.graph))


def kind_of(reason: str) -> str:
    """The reason without what differs from model to model: versions, names in quotes, numbers."""
    text = re.sub(r"^\S+ [\d.]+ ", "", reason)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "…", text)
    text = re.sub(
        r"at node … \((\w+)\), (which descends from NonZero [^;]*; )?", r"at a \1; ", text
    )
    told = re.search(r"what can be done: (.*)", text)
    return told.group(1) if told else re.sub(r"\d+", "#", text)[:160]


def report(rows: list[Row], arguments: argparse.Namespace) -> str:
    """Markdown: date and versions, totals, kinds of reasons, one line a model."""
    version = next((row.version for row in rows if row.version), "unknown")
    outcomes = Counter(row.outcome for row in rows)
    kinds = Counter(kind_of(row.reason) for row in rows if row.outcome != "built")
    command = "python tools/build_table.py FOLDER" + (" --unpatched" if arguments.unpatched else "")
    lines = [
        f"# {arguments.trt} {version} over {len(rows)} models",
        "",
        f"{datetime.date.today().isoformat()}, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, onnx {onnx.__version__}, CPU only. `{command}`",
        "",
        "; ".join(f"{name} {number}" for name, number in outcomes.most_common()),
        "",
        "| models | why not |",
        "| --- | --- |",
        *(f"| {number} | {cell(kind)} |" for kind, number in kinds.most_common()),
        "",
        "| model | NonZero | plugin nodes | left | outcome | node | s | reason |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {cell(row.model)} | {row.nonzero} | {row.plugins} | {row.left} | {row.outcome} | "
            f"{cell(row.node)} | {row.seconds:.1f} | {cell(row.reason)[:400]} |"
            for row in rows
        ),
        "",
    ]
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text that cannot break a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    raise SystemExit(main())
