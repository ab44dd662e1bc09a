"""Rewrites a model: runs the rules stage by stage; the only module that decides what is edited.

A rule sees the graph that the rules before it left, so what becomes of a NonZero is known only when
its turn has come. Planning therefore is rewriting a model in memory and keeping the record: a dry
run is a run whose result nobody writes, and cannot disagree with the real one.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onnx import ModelProto, NodeProto

from nonzero_rewrite.blockers import Blocker, find_blockers
from nonzero_rewrite.find import Site, describe_sites, nonzero_nodes
from nonzero_rewrite.finish import add_operator, write_edits
from nonzero_rewrite.function import check_model, onnx_opset
from nonzero_rewrite.graph import Scope, scopes_of
from nonzero_rewrite.infer import Types
from nonzero_rewrite.ledger import Ledger, tag
from nonzero_rewrite.node import readable_names
from nonzero_rewrite.options import Options, SiteOptions
from nonzero_rewrite.plan import RewritePlan
from nonzero_rewrite.rules import SkipReason, fold, hoist, lift
from nonzero_rewrite.rules.context import Context, behind_cast
from nonzero_rewrite.rules.count import count, where_sum
from nonzero_rewrite.rules.group import Group, Grouper
from nonzero_rewrite.rules.masked_scatter import masked_scatter
from nonzero_rewrite.rules.plugin import place, refusal
from nonzero_rewrite.rules.rows import rows
from nonzero_rewrite.rules.scatter import elementwise, where_scatter
from nonzero_rewrite.rules.size import sizes_from_indices
from nonzero_rewrite.rules.tape import Names
from nonzero_rewrite.values import Facts

_FOLDS = (("unused", fold.unused), ("constant", fold.constant), ("ramp", fold.ramp))
_USE_RULES = (
    ("where-scatter", where_scatter),
    ("elementwise", elementwise),
    ("masked-scatter", masked_scatter),
    ("where-sum", where_sum),
)


@dataclass(frozen=True)
class RewriteResult:
    """A rewritten model and the record of it.

    Attributes:
        model: the model; the very object that was given, edited.
        plan: what became of each NonZero.
        changed: False when nothing was rewritten; the model is then what it was.
        blockers: other operators that TensorRT or TensorRT-RTX will not build.
    """

    model: ModelProto
    plan: RewritePlan
    changed: bool
    blockers: tuple[Blocker, ...]

    @property
    def sites(self) -> tuple[Site, ...]:
        """The NonZero nodes the model had."""
        return tuple(dict.fromkeys(decision.site for decision in self.plan.decisions))


@readable_names()
def rewrite(model: ModelProto, options: Options | None = None) -> RewriteResult:
    """Rewrite ``model`` in place.

    Raises:
        PlanError: when ``options`` name what the model does not have, or ask for the impossible.
        UnsupportedModelError: when the model cannot carry the operator (see the text).
    """
    with _no_garbage_collection():
        return _Rewriter(model, options or Options()).run()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """An index makes many small objects and no cycles worth finding; looking costs a third more."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Rewriter:
    """One rewrite: the stages in the order in which they run."""

    def __init__(self, model: ModelProto, options: Options) -> None:
        self.model = model
        self.options = options
        self.opset = onnx_opset(model)
        self.scopes = scopes_of(model)
        types = Types(model)
        sites = describe_sites(self.scopes, types)
        self.settings = options.resolve(sites)
        self.blockers = tuple(find_blockers(model, self.scopes))
        self.ledger = Ledger({site.id: site for site in sites})
        self.context = self._context(types)
        self.lifted = False
        self.placed = False
        self.capped = False
        self.guarded = False

    def run(self) -> RewriteResult:
        changed = bool(self.ledger.sites) and self._run()
        plan = RewritePlan(self.options, self.ledger.close(self.options.sites))
        return RewriteResult(self.model, plan, changed, self.blockers)

    def _run(self) -> bool:
        caps = any(setting.max_nonzero is not None for setting in self.settings.values())
        check_model(self.model, self.opset, capped=caps and self.options.function)
        self.ledger.open(self.scopes)
        self._lift()
        for scope in self._all_scopes():
            self._fold(scope)
            self._eliminate(scope)
        self._place()
        self._leave_rest()
        changed = write_edits(self.scopes, self.context.facts.types) or self.lifted
        if self.placed:
            add_operator(
                self.model,
                self.opset,
                function=self.options.function,
                capped=self.capped,
                guarded=self.guarded,
            )
        return changed

    def _lift(self) -> None:
        """Bring NonZero to the main graph: inline functions and constant Ifs, hoist from bodies."""
        if "inline-function" in self.options.rules:
            functions = lift.functions_to_inline(self.model, self._may_go)
            if functions and lift.inline_functions(self.model, functions):
                self._reindex()
                self.ledger.note_inlined(self.scopes[0])
        if "inline-if" in self.options.rules:
            while lift.inline_constant_ifs(self.scopes[0], self.context, self._may_go):
                self._reindex()
        if "hoist" in self.options.rules:
            hoist.hoist(self.scopes[0], self.context, self._may_go)

    def _fold(self, scope: Scope) -> None:
        """Answer NonZero whose result follows from constants or from a shape."""
        for handle, node in self._nonzeros(scope):
            if self._setting(node).outcome in ("left", "plugin"):
                continue
            for name, rule in _FOLDS:
                if name in self.options.rules and not scope.is_removed(handle):
                    verdict = rule(scope, handle, self.context)
                    self.ledger.note([node], name, verdict)
                    if verdict.applied:
                        self.ledger.decide(node, "removed")

    def _eliminate(self, scope: Scope) -> None:
        """Rewrite the users of indices that can do without them."""
        handles = scope.in_order(
            handle
            for handle, node in self._nonzeros(scope)
            if self._setting(node).outcome not in ("left", "plugin")
        )
        groups = Grouper(scope, self.context.facts, through_casts=True, share=True).groups(handles)
        for group in groups:
            members = list(zip(group.members, group.nodes, strict=True))
            self._eliminate_uses(group)
            if group.members and "count" in self.options.rules:
                verdict = count(group, self.context)
                self.ledger.note((node for _, node in members), "count", verdict)
            for handle, node in members:
                if scope.is_removed(handle):
                    self.ledger.decide(node, "removed")
        if scope is self.scopes[0] and any([self._list_rows(group) for group in groups]):
            self._eliminate(scope)  # what is written to rows may be computed from those rows

    def _list_rows(self, group: Group) -> bool:
        """Let masks that repeat a flag along rows list rows; True where one does."""
        group.refresh()
        nodes = group.nodes
        if not nodes or not {"rows", "plugin"} <= self.options.rules:
            return False
        if any(self._setting(node).max_nonzero is not None for node in nodes):
            return False  # the promise counts items
        verdict = rows(group, self.context)
        self.ledger.note(nodes, "rows", verdict)
        return verdict.applied

    def _eliminate_uses(self, group: Group) -> None:
        applied = True
        while applied and group.members:
            applied = False
            for use in group.uses:
                for name, rule in _USE_RULES:
                    if name not in self.options.rules or group.scope.is_removed(use.handle):
                        continue
                    verdict = rule(group, use, self.context)
                    self.ledger.note(group.nodes, name, verdict)
                    applied |= verdict.applied
            group.refresh()

    def _place(self) -> None:
        """Put plugins where NonZero is still needed, in the main graph."""
        if "plugin" not in self.options.rules:
            return
        main = self.scopes[0]
        by_config: dict[tuple[str, int | None], list[int]] = defaultdict(list)
        for handle, node in self._nonzeros(main):
            setting = self._setting(node)
            if setting.outcome != "left":
                assert setting.backend is not None
                by_config[setting.backend, setting.max_nonzero].append(handle)
        grouper = Grouper(
            main,
            self.context.facts,
            through_casts="mask-cast" in self.options.rules,
            share="share" in self.options.rules,
        )
        for (backend, cap), handles in by_config.items():
            groups = grouper.groups(main.in_order(handles))
            if "size-from-indices" in self.options.rules:
                for group, verdict in sizes_from_indices(groups, self.context, main.places()):
                    self.ledger.note(group.nodes, "size-from-indices", verdict)
            for handle in filter(main.is_removed, handles):  # its indices only led to a size
                self.ledger.decide(main.nodes[handle], "removed")
            for group in (each for each in groups if each.members):
                self._place_group(group, backend, cap)

    def _place_group(self, group: Group, backend: str, cap: int | None) -> None:
        nodes = group.nodes
        of = self.context.facts.types.of(group.scope, group.mask)
        reason = refusal(of, any_rank="any-rank" in self.options.rules)
        if reason is not None:
            for node in nodes:
                self.ledger.decide(node, "left", reason)
            return
        self.guarded |= behind_cast(group.scope, group.mask)
        placed = place(group, self.context, backend, cap, "transpose" in self.options.rules)
        self.placed = True
        self.capped |= cap is not None
        for node in nodes:
            self.ledger.decide(
                node,
                "plugin",
                rules=placed.rules,
                node=placed.node,
                rank_last=placed.rank_last,
                backend=backend,
                max_nonzero=cap,
            )

    def _leave_rest(self) -> None:
        """Say of every NonZero that is still there why it is."""
        for scope in self._all_scopes():
            for _, node in self._nonzeros(scope):
                if self._setting(node).outcome == "left" or "plugin" not in self.options.rules:
                    reason = SkipReason.EXCLUDED
                elif scope.root.is_function:
                    reason = SkipReason.IN_FUNCTION
                else:
                    reason = SkipReason.IN_SUBGRAPH
                self.ledger.decide(node, "left", reason)

    def _setting(self, node: NodeProto) -> SiteOptions:
        return self.settings[tag(node)]

    def _may_go(self, node: NodeProto) -> bool:
        """False for a NonZero that shall stay what and where it is."""
        return bool(tag(node)) and self._setting(node).outcome != "left"

    def _nonzeros(self, scope: Scope) -> list[tuple[int, NodeProto]]:
        """The NonZero nodes of one graph that are not decided yet."""
        found = [(handle, scope.nodes[handle]) for handle in scope.of_type("NonZero")]
        return [(handle, node) for handle, node in found if tag(node)]

    def _all_scopes(self) -> Iterator[Scope]:
        for root in self.scopes:
            yield from root.walk()

    def _reindex(self) -> None:
        """Look at the model anew after the protobuf itself was changed."""
        self.lifted = True
        self.scopes = scopes_of(self.model)
        types = Types(self.model)
        types.need(
            (scope, node.input[0]) for scope, _, node in nonzero_nodes(self.scopes) if node.input
        )
        self.context = self._context(types)

    def _context(self, types: Types) -> Context:
        facts = Facts(types, self.opset, self.model.ir_version)
        return Context(facts, Names(self.scopes), self.options)
