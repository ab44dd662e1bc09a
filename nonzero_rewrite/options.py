"""What a rewrite shall do: backend, rules, promises, and exceptions for single NonZero nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, TypedDict

from nonzero_plugin.contract import DEFAULT_BACKEND, NonZeroConfig
from nonzero_plugin.errors import ContractError

from nonzero_rewrite.errors import PlanError
from nonzero_rewrite.find import Site
from nonzero_rewrite.rules import DEFAULT_RULES, RULE_NAMES

OUTCOMES = ("plugin", "removed", "left")


@dataclass(frozen=True)
class SiteOptions:
    """Settings of one NonZero; None means "as the rest".

    Attributes:
        outcome: ``"left"`` keeps the NonZero, ``"plugin"`` forbids to do without it, ``"removed"``
            demands to do without it.
        backend: its backend.
        max_nonzero: its cap.
    """

    outcome: str | None = None
    backend: str | None = None
    max_nonzero: int | None = None


@dataclass(frozen=True)
class Options:
    """What a rewrite shall do.

    Attributes:
        backend: what computes NonZero on the GPU; the node carries it.
        rules: names of the rules that may run.
        max_nonzero: the user's promise of how many items are non-zero at most; caps the memory
            TensorRT plans. None: no cap.
        function: whether the model carries the operator's function, so that it runs in onnxruntime.
        only: globs; a NonZero that none of them matches is left alone. Empty: all.
        skip: globs; a NonZero that one of them matches is left alone.
        max_nonzero_of: caps by glob, the last match counts.
        sites: settings by site id; an id that the model lacks is an error.

    Raises:
        PlanError: for an unknown backend, rule, outcome or cap.
    """

    backend: str = DEFAULT_BACKEND
    rules: frozenset[str] = DEFAULT_RULES
    max_nonzero: int | None = None
    function: bool = True
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    max_nonzero_of: tuple[tuple[str, int], ...] = ()
    sites: Mapping[str, SiteOptions] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("rules", "only", "skip"):
            if isinstance(text := getattr(self, name), str):
                raise PlanError(f"{name} is the text {text!r}; give a tuple of names: ({text!r},)")
        object.__setattr__(self, "rules", frozenset(self.rules))
        unknown = sorted(self.rules - set(RULE_NAMES))
        if unknown:
            raise PlanError(f"unknown rule {unknown[0]!r}; the rules are: {', '.join(RULE_NAMES)}")
        try:
            for cap in (self.max_nonzero, *(cap for _, cap in self.max_nonzero_of)):
                NonZeroConfig(backend=self.backend, max_nonzero=cap)
            for site in self.sites.values():
                NonZeroConfig(backend=site.backend or self.backend, max_nonzero=site.max_nonzero)
        except ContractError as err:
            raise PlanError(str(err)) from err
        for name, site in self.sites.items():
            if site.outcome not in (None, *OUTCOMES):
                raise PlanError(
                    f"site {name!r}: outcome {site.outcome!r} is unknown; "
                    f"choose one of {', '.join(OUTCOMES)}"
                )

    def resolve(self, sites: Iterable[Site]) -> dict[str, SiteOptions]:
        """The settings of every site, with the general ones filled in.

        Raises:
            PlanError: when a pattern or an id fits no site of the model.
        """
        sites = list(sites)
        known = {site.id for site in sites}
        for name in self.sites:
            if name not in known:
                raise PlanError(
                    f"the plan names the NonZero {name!r}, which the model does not have; "
                    "make the plan again from this model"
                )
        for pattern in (*self.only, *self.skip, *(p for p, _ in self.max_nonzero_of)):
            if not any(_fits(site, pattern) for site in sites):
                raise PlanError(
                    f"no NonZero is called {pattern!r}; `nonzero-rewrite scan` lists their names"
                )
        return {site.id: self._of(site) for site in sites}

    def _of(self, site: Site) -> SiteOptions:
        own = self.sites.get(site.id, SiteOptions())
        left = any(_fits(site, pattern) for pattern in self.skip) or (
            bool(self.only) and not any(_fits(site, pattern) for pattern in self.only)
        )
        caps = [cap for pattern, cap in self.max_nonzero_of if _fits(site, pattern)]
        cap = own.max_nonzero or (caps[-1] if caps else self.max_nonzero)
        return SiteOptions("left" if left else own.outcome, own.backend or self.backend, cap)

    def without(self, *rules: str) -> Options:
        """These options with some rules switched off."""
        return replace(self, rules=self.rules - set(rules))

    def to_dict(self) -> dict[str, Any]:
        """The general part as plain data; patterns and sites are resolved in a plan."""
        return {
            "backend": self.backend,
            "rules": [name for name in RULE_NAMES if name in self.rules],
            "max_nonzero": self.max_nonzero,
            "function": self.function,
        }


class OptionSettings(TypedDict, total=False):
    """The fields of ``Options`` as keyword arguments, so that editors and type checkers know them.

    A function takes them as ``**settings: Unpack[OptionSettings]``.
    """

    backend: str
    rules: frozenset[str]
    max_nonzero: int | None
    function: bool
    only: tuple[str, ...]
    skip: tuple[str, ...]
    max_nonzero_of: tuple[tuple[str, int], ...]
    sites: Mapping[str, SiteOptions]


def chosen_options(options: Options | None, settings: OptionSettings) -> Options | None:
    """``options``, or those that ``settings`` make.

    Raises:
        TypeError: when both are given, or a setting is none of the fields of ``Options``.
    """
    if not settings:
        return options
    if options is not None:
        raise TypeError("give options or single settings, not both")
    known = [field.name for field in fields(Options)]
    for name in settings:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; the options are: {', '.join(known)}")
    return Options(**settings)


def _fits(site: Site, pattern: str) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for name in (site.id, site.node))
