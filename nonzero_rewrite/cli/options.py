"""Options that rewrite and scan share, and their way into ``Options``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from nonzero_plugin.contract import BACKENDS, DEFAULT_BACKEND

from nonzero_rewrite.rules import DEFAULT_RULES, RULE_NAMES, RULES

if TYPE_CHECKING:
    from nonzero_rewrite.options import Options

_RULE_HELP = "; ".join(
    f"{rule.name}{'' if rule.default else ' (only on request)'}" for rule in RULES
)


class _Cap(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """``N`` for every NonZero, or ``NODE=N`` for those whose name matches."""

    name = "N|NODE=N"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str | None, int]:
        if isinstance(value, tuple):
            return value
        pattern, found, number = str(value).rpartition("=")
        if not number.isdecimal():
            self.fail(f"{value!r} is neither N nor NODE=N with a whole number N", param, ctx)
        return (pattern if found else None), int(number)


def rewrite_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide what becomes of a NonZero."""
    decorators = [
        click.option(
            "--backend",
            type=click.Choice(BACKENDS),
            help="What computes NonZero on the GPU; the node carries it.  "
            f"[default: {DEFAULT_BACKEND}]",
        ),
        click.option(
            "--rules",
            "rules",
            metavar="NAME,...",
            help=f"Run only these rules, or with a leading +, these too. Rules: {_RULE_HELP}.",
        ),
        click.option(
            "--no-rule",
            "no_rules",
            multiple=True,
            metavar="NAME",
            help="Do without it. Repeatable.",
        ),
        click.option(
            "--only",
            multiple=True,
            metavar="NODE",
            help="Rewrite only NonZero with this name or glob.",
        ),
        click.option(
            "--skip", multiple=True, metavar="NODE", help="Leave NonZero with this name or glob."
        ),
        click.option(
            "--max-nonzero",
            "caps",
            type=_Cap(),
            multiple=True,
            help="Promise that at most N items are non-zero; TensorRT then plans less memory. "
            "More are cut off at N, in row-major order, and reported at run time.",
        ),
        click.option(
            "--keep-transpose", is_flag=True, help="Leave Transpose behind NonZero as it is."
        ),
        click.option(
            "--no-function",
            is_flag=True,
            help="Write bare custom nodes; the model then runs in TensorRT only.",
        ),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def make_options(
    *,
    backend: str | None,
    rules: str | None,
    no_rules: tuple[str, ...],
    only: tuple[str, ...],
    skip: tuple[str, ...],
    caps: tuple[tuple[str | None, int], ...],
    keep_transpose: bool,
    no_function: bool,
    plan: Path | None = None,
) -> Options:
    """The ``Options`` that the command line asks for, on top of a plan file where one is given."""
    from nonzero_rewrite.options import Options
    from nonzero_rewrite.plan import read_plan

    base = read_plan(plan) if plan else Options()
    chosen = _chosen_rules(base.rules, rules) - _known(no_rules)
    if keep_transpose:
        chosen -= {"transpose"}
    general = [cap for pattern, cap in caps if pattern is None]
    return replace(
        base,
        backend=backend or base.backend,
        rules=frozenset(chosen),
        max_nonzero=general[-1] if general else base.max_nonzero,
        function=base.function and not no_function,
        only=only,
        skip=skip,
        max_nonzero_of=tuple((pattern, cap) for pattern, cap in caps if pattern is not None),
    )


def _chosen_rules(base: frozenset[str], text: str | None) -> set[str]:
    if text is None:
        return set(base)
    names = [name.strip() for name in text.lstrip("+").split(",") if name.strip()]
    wanted = set(DEFAULT_RULES) if names == ["default"] else _known(tuple(names))
    return wanted | set(base) if text.startswith("+") else wanted


def _known(names: tuple[str, ...]) -> set[str]:
    for name in names:
        if name not in RULE_NAMES:
            raise click.BadParameter(
                f"there is no rule {name!r}; the rules are: {', '.join(RULE_NAMES)}"
            )
    return set(names)
