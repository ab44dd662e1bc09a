"""``nonzero-rewrite run``: an engine on arrays, with outputs of their true shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nonzero_rewrite.cli import user_errors

if TYPE_CHECKING:
    from nonzero_plugin.engine import RunResult


@click.command("run")
@click.argument("engine", type=click.Path(path_type=Path))
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE.npz",
    help="Arrays by input name, or i0, i1, ... in the engine's order.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.npz",
    help="Write the outputs here.",
)
@click.option(
    "--trt",
    type=click.Choice(["auto", "tensorrt", "tensorrt_rtx"]),
    default="auto",
    show_default=True,
    help="Which TensorRT; auto takes the one in the engine's sidecar.",
)
@click.option("--profile", type=click.IntRange(0), default=0, show_default=True, metavar="N")
@click.option(
    "--contexts",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Run in so many contexts at once, each with its own stream; outputs must agree.",
)
@click.option(
    "--repeat",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Time N runs: median of host enqueue, device and latency.",
)
@click.option("--cuda-graph", is_flag=True, help="Refused, with the reason.")
@click.option("--json", "as_json", is_flag=True, help="The account as JSON on stdout.")
@user_errors
def command(
    *,
    engine: Path,
    inputs: Path | None,
    output: Path | None,
    trt: str,
    profile: int,
    contexts: int,
    repeat: int,
    cuda_graph: bool,
    as_json: bool,
) -> None:
    """Run ENGINE on arrays. Needs an NVIDIA GPU that the engine was built for.

    Outputs have their true shapes, never the bound that was built for. The plugin is registered by
    this command.
    """
    from nonzero_plugin.engine import Engine, refuse_capture, run_engine

    from nonzero_rewrite.write import check_outputs

    check_outputs([output], engine, inputs)
    if cuda_graph:
        refuse_capture(engine)
    loaded = Engine(engine, trt)
    arrays = _arrays(inputs, [tensor.name for tensor in loaded.inputs])
    result = run_engine(loaded, arrays, contexts=contexts, profile=profile, repeat=repeat)
    if output is not None:
        _save(output, result.outputs)
    account = summary(result, output)
    if as_json:
        click.echo(json.dumps(account, indent=2))
    else:
        click.echo(describe(account))
    if result.truncated:
        click.echo(
            "Note: max_nonzero cut a result short: more elements were non-zero; build with a "
            "larger --set-max-nonzero",
            err=True,
        )


def summary(result: RunResult, output: Path | None) -> dict[str, Any]:
    """The account as plain JSON values."""
    timing = result.timing
    return {
        "device": result.device,
        "tensorrt": result.tensorrt,
        "outputs": {
            name: {"shape": list(array.shape), "dtype": str(array.dtype)}
            for name, array in result.outputs.items()
        },
        "truncated": result.truncated,
        "timing_ms": None
        if timing is None
        else {
            "runs": timing.runs,
            "enqueue": timing.enqueue,
            "device": timing.device,
            "latency": timing.latency,
        },
        "written": str(output) if output else None,
    }


def describe(account: dict[str, Any]) -> str:
    """The account as a few lines."""
    lines = [f"{account['tensorrt']} on {account['device']}"]
    for name, facts in account["outputs"].items():
        lines.append(f"  {name}: {facts['dtype']} {facts['shape']}")
    timing = account["timing_ms"]
    if timing:
        lines.append(
            f"  median of {timing['runs']} runs: latency {timing['latency']:.3f} ms, device "
            f"{timing['device']:.3f} ms, host enqueue {timing['enqueue']:.3f} ms"
        )
    if account["written"]:
        lines.append(f"  outputs: {account['written']}")
    return "\n".join(lines)


def _arrays(path: Path | None, names: list[str]) -> dict[str, Any]:
    if path is None:
        if names:
            raise click.UsageError(
                f"the engine has inputs {', '.join(map(repr, names))}; give --inputs FILE.npz"
            )
        return {}
    from nonzero_rewrite.inputs import load_inputs

    arrays = dict(load_inputs(path))
    return {
        (names[int(key[1:])] if _is_position(key, names) else key): value
        for key, value in arrays.items()
    }


def _is_position(key: str, names: list[str]) -> bool:
    return key not in names and key[:1] == "i" and key[1:].isdigit() and int(key[1:]) < len(names)


def _save(path: Path, arrays: dict[str, Any]) -> None:
    import numpy as np

    from nonzero_rewrite.write import atomic_file

    with atomic_file(path) as file:
        np.savez(file, **arrays)
