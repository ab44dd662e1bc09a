"""The options that say how to build an engine, for every command that builds one."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from nonzero_plugin.contract import DEFAULT_BACKEND

if TYPE_CHECKING:
    from nonzero_plugin.engine import BuildOptions

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Bytes, with K, M, G or T behind the number."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """``"4G"`` -> 4294967296."""
        match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
        if not match:
            self.fail(f"{value!r} is not a size such as 512M or 4G", param, ctx)
        return int(match[1]) * _UNITS[match[2].upper()]


ENGINE_VALUES = (
    "trt",
    "profiles",
    "min_shapes",
    "opt_shapes",
    "max_shapes",
    "workspace",
    "timing_cache",
    "optimization_level",
    "version_compatible",
    "hardware_compatible",
    "compute_capabilities",
    "fp16",
    "bf16",
    "maxima",
)
"""What :func:`engine_options` adds to a command's keyword arguments."""


def take_engine_values(values: dict[str, Any], *, wanted: bool) -> dict[str, Any]:
    """Takes the values of :func:`engine_options` out of a command's keyword arguments.

    Raises:
        click.UsageError: one was given, and no engine is ``wanted``.
    """
    context = click.get_current_context()
    for option in () if wanted else context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in ENGINE_VALUES and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[-1]} is for --build, which is not given")
    return {name: values.pop(name) for name in ENGINE_VALUES}


def engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how to build; ``build_options`` turns them into ``BuildOptions``."""
    options = [
        click.option(
            "--trt",
            type=click.Choice(["auto", "tensorrt", "tensorrt_rtx"]),
            default="auto",
            show_default=True,
            help="Which TensorRT; auto honours POLYGRAPHY_USE_TENSORRT_RTX.",
        ),
        click.option(
            "--profile",
            "profiles",
            multiple=True,
            metavar="NAME=MIN:OPT:MAX;...",
            help="Shapes of dynamic inputs, e.g. 'images=1x3x320x320:4x3x640x640:8x3x1280x1280'; "
            "one shape stands for all three. Repeat for more profiles.",
        ),
        *(
            click.option(
                f"--trt-{short}-shapes",
                f"{short}_shapes",
                multiple=True,
                metavar="NAME:[D0,...]",
                help=f"{long} shapes in Polygraphy's spelling; the three make one profile.",
            )
            for short, long in (("min", "Smallest"), ("opt", "Tuned-for"), ("max", "Largest"))
        ),
        click.option("--workspace", type=Size(), help="Workspace limit, e.g. 4G."),
        click.option(
            "--timing-cache",
            type=click.Path(path_type=Path, dir_okay=False),
            help="File read before and written after the build.",
        ),
        click.option("--optimization-level", type=click.IntRange(0, 5), help="TensorRT's 0 to 5."),
        click.option("--version-compatible", is_flag=True, help="TensorRT only."),
        click.option("--hardware-compatible", is_flag=True, help="TensorRT only: from Ampere on."),
        click.option(
            "--compute-capability",
            "compute_capabilities",
            multiple=True,
            metavar="X.Y",
            help="TensorRT for RTX only: build for it, no GPU needed. Repeatable; default: all.",
        ),
        click.option("--fp16", is_flag=True, help="TensorRT 10 only: weakly typed FP16."),
        click.option("--bf16", is_flag=True, help="TensorRT 10 only: weakly typed BF16."),
        click.option(
            "--set-max-nonzero",
            "maxima",
            multiple=True,
            metavar="[NODE=]N",
            help="Promise that at most N elements are non-zero, for one node or all; saves memory "
            "behind it. More are cut off.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def build_options(
    *,
    trt: str = "auto",
    profiles: tuple[str, ...] = (),
    min_shapes: tuple[str, ...] = (),
    opt_shapes: tuple[str, ...] = (),
    max_shapes: tuple[str, ...] = (),
    workspace: int | None = None,
    timing_cache: Path | None = None,
    optimization_level: int | None = None,
    version_compatible: bool = False,
    hardware_compatible: bool = False,
    compute_capabilities: tuple[str, ...] = (),
    fp16: bool = False,
    bf16: bool = False,
    maxima: tuple[str, ...] = (),
    unpatched: bool = False,
    leftovers: int = 0,
    backend: str = DEFAULT_BACKEND,
    original: Path | None = None,
    verbose: bool = False,
) -> BuildOptions:
    """``BuildOptions`` from the values of :func:`engine_options`, and its other fields as they are.

    Raises:
        NonZeroPluginError: a profile or a maximum cannot be read.
    """
    from nonzero_plugin.engine import BuildOptions
    from nonzero_plugin.profiles import format_profile, parse_polygraphy_shapes, parse_profile

    texts = [format_profile(parse_profile(text)) for text in profiles]
    if min_shapes or opt_shapes or max_shapes:
        texts.append(format_profile(parse_polygraphy_shapes(min_shapes, opt_shapes, max_shapes)))
    return BuildOptions(
        trt=trt,
        profiles=tuple(texts),
        workspace=workspace,
        timing_cache=timing_cache,
        optimization_level=optimization_level,
        version_compatible=version_compatible,
        hardware_compatible=hardware_compatible,
        compute_capabilities=tuple(
            part for text in compute_capabilities for part in text.split(",") if part
        ),
        fp16=fp16,
        bf16=bf16,
        max_nonzero=_read_maxima(maxima),
        command=shlex.join(["nonzero-rewrite", *sys.argv[1:]]),
        unpatched=unpatched,
        leftovers=leftovers,
        backend=backend,
        original=original,
        verbose=verbose,
    )


def _read_maxima(texts: tuple[str, ...]) -> dict[str, int]:
    maxima = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not number.strip().isdigit():
            raise click.UsageError(f"--set-max-nonzero {text!r} is not N or NODE=N")
        maxima[name or "*"] = int(number)
    return maxima
