"""Rewrites a model: runs the rules stage by stage; the only module that decides and edits.

A rule sees the graph that the rules before it left, so what becomes of a NonZero is known only when
its turn has come. Planning therefore is rewriting a model in memory and keeping the record: a dry
run is a run whose result nobody writes, and cannot disagree with the real one.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nonzero_plugin.contract import DOMAIN, OP_TYPE
from onnx import ModelProto, NodeProto

from nonzero_rewrite.blockers import Blocker, find_blockers
from nonzero_rewrite.errors import PlanError, UnsupportedModelError
from nonzero_rewrite.find import Site, describe_sites, identified, nonzero_nodes
from nonzero_rewrite.function import CAP_OPSET, add_function, import_domain, is_ours
from nonzero_rewrite.graph import Scope, scopes_of
from nonzero_rewrite.infer import Types
from nonzero_rewrite.node import readable_names
from nonzero_rewrite.options import Options, SiteOptions
from nonzero_rewrite.plan import Decision, RewritePlan
from nonzero_rewrite.rules import SkipReason, fold, hoist, lift
from nonzero_rewrite.rules.context import Context, Verdict
from nonzero_rewrite.rules.count import count, where_sum
from nonzero_rewrite.rules.group import Group, Grouper
from nonzero_rewrite.rules.masked_scatter import masked_scatter
from nonzero_rewrite.rules.plugin import place, refusal
from nonzero_rewrite.rules.scatter import elementwise, where_scatter
from nonzero_rewrite.rules.tape import RULE_KEY, SITE_KEY, Names, set_metadata
from nonzero_rewrite.tensor_type import value_info
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


@dataclass
class _Record:
    """What is noted about one NonZero node until its decision is made."""

    site: Site
    rules: list[str] = field(default_factory=list)
    misses: dict[str, str] = field(default_factory=dict)


class _Rewriter:
    def __init__(self, model: ModelProto, options: Options) -> None:
        self.model = model
        self.options = options
        self.opset = onnx_opset(model)
        self.scopes = scopes_of(model)
        types = Types(model)
        sites = describe_sites(self.scopes, types)
        self.sites = {site.id: site for site in sites}
        self.blockers = tuple(find_blockers(model, self.scopes))
        self.settings = options.resolve(sites)
        self.records: dict[str, _Record] = {}
        self.decisions: list[Decision] = []
        self.capped = False
        self.placed = False
        self.lifted = False
        self.context = self._context(types)

    def run(self) -> RewriteResult:
        if self.sites:
            self._check_model()
            self._mark()
            self._lift()
            for scope in self._all_scopes():
                self._fold(scope)
                self._eliminate(scope)
            self._place()
            self._leave_rest()
            self._account_for_gone()
            changed = self._finish()
            self._check_wishes()
        else:
            changed = False
        order = {name: number for number, name in enumerate(self.sites)}
        self.decisions.sort(key=lambda decision: order[decision.site.id])
        plan = RewritePlan(self.options, tuple(self.decisions))
        return RewriteResult(self.model, plan, changed, self.blockers)

    # -- stages --------------------------------------------------------------------------------

    def _lift(self) -> None:
        """Bring NonZero to the main graph: inline functions and constant Ifs, hoist from bodies."""
        if "inline-function" in self.options.rules:
            functions = lift.functions_to_inline(self.model, self._may_go)
            if functions and lift.inline_functions(self.model, functions):
                self.lifted = True
                self._reindex()
        if "inline-if" in self.options.rules:
            while lift.inline_constant_ifs(self.scopes[0], self.context, self._may_go):
                self.lifted = True
                self._reindex()
        if "hoist" in self.options.rules:
            hoist.hoist(self.scopes[0], self.context, self._may_go)

    def _fold(self, scope: Scope) -> None:
        for handle, node in list(self._nonzeros(scope)):
            if self._setting(node).outcome in ("left", "plugin"):
                continue
            for name, rule in _FOLDS:
                if name in self.options.rules and not scope.is_removed(handle):
                    verdict = rule(scope, handle, self.context)
                    self._note(node, name, verdict)
                    if verdict.applied:
                        self._decide(node, "removed")
                        break

    def _eliminate(self, scope: Scope) -> None:
        """Rewrite the users of indices that can do without them."""
        handles = [
            handle
            for handle, node in self._nonzeros(scope)
            if self._setting(node).outcome not in ("left", "plugin")
        ]
        for group in Grouper(scope, self.context.facts, through_casts=True, share=True).groups(
            handles
        ):
            members = list(zip(group.members, group.nodes, strict=True))
            self._eliminate_uses(group)
            if group.members and "count" in self.options.rules:
                verdict = count(group, self.context)
                for _, node in members:
                    self._note(node, "count", verdict)
            for handle, node in members:
                if scope.is_removed(handle):
                    self._decide(node, "removed")

    def _eliminate_uses(self, group: Group) -> None:
        applied = True
        while applied and group.members:
            applied = False
            for use in group.uses:
                for name, rule in _USE_RULES:
                    if name not in self.options.rules or group.scope.is_removed(use.handle):
                        continue
                    verdict = rule(group, use, self.context)
                    for node in group.nodes:
                        self._note(node, name, verdict)
                    applied |= verdict.applied
            group.refresh()

    def _place(self) -> None:
        if "plugin" not in self.options.rules:
            return
        main = self.scopes[0]
        facts = self.context.facts
        by_config: dict[tuple[str, int | None], list[int]] = defaultdict(list)
        for handle, node in self._nonzeros(main):
            setting = self._setting(node)
            if setting.outcome == "left":
                self._decide(node, "left", SkipReason.EXCLUDED)
                continue
            assert setting.backend is not None
            by_config[setting.backend, setting.max_nonzero].append(handle)
        for (backend, cap), handles in by_config.items():
            grouper = Grouper(
                main,
                facts,
                through_casts="mask-cast" in self.options.rules,
                share="share" in self.options.rules,
            )
            for group in grouper.groups(main.in_order(handles)):
                self._place_group(group, backend, cap)

    def _place_group(self, group: Group, backend: str, cap: int | None) -> None:
        nodes = group.nodes
        of = self.context.facts.types.of(group.scope, group.mask)
        reason = refusal(of, any_rank="any-rank" in self.options.rules)
        if reason is not None:
            for node in nodes:
                self._decide(node, "left", reason)
            return
        placed = place(group, self.context, backend, cap, "transpose" in self.options.rules)
        self.placed = True
        self.capped |= cap is not None
        for node in nodes:
            record = self._record(node)
            record.rules += placed.rules
            self._decide(
                node,
                "plugin",
                node_name=placed.node,
                rank_last=placed.rank_last,
                backend=backend,
                cap=cap,
            )

    def _leave_rest(self) -> None:
        for scope in self._all_scopes():
            for _, node in self._nonzeros(scope):
                if self._setting(node).outcome == "left" or "plugin" not in self.options.rules:
                    reason = SkipReason.EXCLUDED
                elif scope.root.is_function:
                    reason = SkipReason.IN_FUNCTION
                elif scope.parent is not None:
                    reason = SkipReason.IN_SUBGRAPH
                else:
                    continue  # decided when the plugins were placed
                if self._tag(node) in self.records or self._tag(node) in self.sites:
                    self._decide(node, "left", reason)

    def _account_for_gone(self) -> None:
        """Those that went with something else: a function nobody calls, a branch not taken."""
        decided = {decision.site.id for decision in self.decisions}
        for name, site in self.sites.items():
            if name not in decided:
                rule = "unused"
                if site.graph:
                    rule = "inline-function" if site.graph.startswith("function") else "inline-if"
                self.decisions.append(Decision(site, "removed", (rule,)))

    def _finish(self) -> bool:
        """Write the edits into the protobuf and add what the new nodes need."""
        for scope in self._all_scopes():
            for _, node in self._nonzeros(scope):
                self._unmark(node)
        changed = self.lifted or any(scope.changed for scope in self._all_scopes())
        if not changed:
            return False
        for scope in self._all_scopes():
            self._update_value_info(scope)
            self._drop_initializers(scope)
        for root in self.scopes:
            root.flush()
        if self.placed:
            if self.options.function:
                add_function(self.model, self.opset, self.capped)
            else:
                import_domain(self.model)
        return True

    # -- record --------------------------------------------------------------------------------

    def _decide(
        self,
        node: NodeProto,
        outcome: str,
        reason: SkipReason | None = None,
        *,
        node_name: str | None = None,
        rank_last: bool | None = None,
        backend: str | None = None,
        cap: int | None = None,
    ) -> None:
        record = self._record(node)
        rules = tuple(dict.fromkeys(record.rules))
        self.decisions.append(
            Decision(
                record.site,
                outcome,
                rules,
                reason,
                node_name,
                rank_last,
                backend,
                cap,
                tuple(record.misses.items()),
            )
        )
        self._unmark(node)

    def _note(self, node: NodeProto, rule: str, verdict: Verdict) -> None:
        record = self._record(node)
        if verdict.applied:
            record.rules.append(rule)
            record.misses.pop(rule, None)
        elif verdict.condition and rule not in record.rules:
            record.misses.setdefault(rule, verdict.condition)

    def _record(self, node: NodeProto) -> _Record:
        key = f"{self._tag(node)}\n{node.output[0]}"
        if key not in self.records:
            self.records[key] = _Record(self.sites[self._tag(node)], self._lifted_by(node))
        return self.records[key]

    def _lifted_by(self, node: NodeProto) -> list[str]:
        """The rules that brought a NonZero to where it is now."""
        rules = [entry.value for entry in node.metadata_props if entry.key == RULE_KEY]
        if self.sites[self._tag(node)].graph.startswith("function ") and any(
            node.output[0] in scope.producer for scope in self.scopes[0].walk()
        ):
            rules.insert(0, "inline-function")
        return rules

    def _check_wishes(self) -> None:
        for decision in self.decisions:
            wish = self.options.sites.get(decision.site.id, SiteOptions()).outcome
            if wish not in (None, decision.outcome):
                why = decision.summary
                if decision.near_misses:
                    why += "; " + "; ".join(f"{rule}: {c}" for rule, c in decision.near_misses)
                raise PlanError(
                    f"the plan wants NonZero {decision.site.node!r} to be {wish}, "
                    f"but it is {decision.outcome}: {why}"
                )

    # -- marks ---------------------------------------------------------------------------------

    def _mark(self) -> None:
        for scope in self._all_scopes():
            for handle in scope.of_type("NonZero"):
                self._unmark(scope.nodes[handle])  # a mark that somebody else left
        for name, _, _, node in identified(self.scopes):
            if len(node.input) == len(node.output) == 1 and node.input[0] and node.output[0]:
                set_metadata(node, SITE_KEY, name)
            else:
                self.decisions.append(Decision(self.sites[name], "left", (), SkipReason.MALFORMED))

    def _tag(self, node: NodeProto) -> str:
        for entry in node.metadata_props:
            if entry.key == SITE_KEY:
                return str(entry.value)
        return ""

    def _unmark(self, node: NodeProto) -> None:
        for number in reversed(range(len(node.metadata_props))):
            if node.metadata_props[number].key == SITE_KEY:
                del node.metadata_props[number]

    def _setting(self, node: NodeProto) -> SiteOptions:
        return self.settings[self._tag(node)]

    def _may_go(self, node: NodeProto) -> bool:
        """False for a NonZero that shall stay what and where it is."""
        tag = self._tag(node)
        return bool(tag) and self.settings[tag].outcome != "left"

    def _nonzeros(self, scope: Scope) -> Iterator[tuple[int, NodeProto]]:
        """The NonZero nodes of one graph that are not decided yet."""
        for handle in scope.of_type("NonZero"):
            if self._tag(scope.nodes[handle]):
                yield handle, scope.nodes[handle]

    # -- model ---------------------------------------------------------------------------------

    def _all_scopes(self) -> Iterator[Scope]:
        for root in self.scopes:
            yield from root.walk()

    def _reindex(self) -> None:
        self.scopes = scopes_of(self.model)
        types = Types(self.model)
        types.need(
            (scope, node.input[0]) for scope, _, node in nonzero_nodes(self.scopes) if node.input
        )
        self.context = self._context(types)

    def _context(self, types: Types) -> Context:
        return Context(
            Facts(types, self.opset, self.model.ir_version), Names(self.scopes), self.options
        )

    def _check_model(self) -> None:
        if not self.opset:
            raise UnsupportedModelError(
                "the model imports no version of the ONNX operators, so its nodes have no meaning; "
                "export it again"
            )
        versions = {e.version for e in self.model.opset_import if e.domain in ("", "ai.onnx")}
        if len(versions) > 1:
            raise UnsupportedModelError(
                f"the model imports {len(versions)} versions of the ONNX operators "
                f"({', '.join(map(str, sorted(versions)))}), so its nodes have no one meaning; "
                "export it again"
            )
        for function in self.model.functions:
            if function.name == OP_TYPE and function.domain != DOMAIN:
                raise UnsupportedModelError(
                    f"the model has a function '{function.domain}::{function.name}'; TensorRT's "
                    f"parser matches functions by name alone and would mistake it for ours: "
                    "rename that function"
                )
        capped = any(setting.max_nonzero for setting in self.settings.values())
        if capped and self.options.function and self.opset < CAP_OPSET:
            raise UnsupportedModelError(
                f"a cap on num_nonzero needs opset {CAP_OPSET} or newer, the model imports "
                f"{self.opset}: convert the model or rewrite it with --no-function"
            )

    def _drop_initializers(self, scope: Scope) -> None:
        """Remove weights that only removed nodes used."""
        freed = {
            name
            for node in scope.removed()
            for name in node.input
            if name in scope.initializers and not scope.is_input(name) and not scope.is_used(name)
        }
        if freed:
            _drop(scope.proto.initializer, freed)

    def _update_value_info(self, scope: Scope) -> None:
        """Drop types of values that are gone; add those of the plugin's outputs."""
        proto = scope.proto
        gone = {name for node in scope.removed() for name in node.output}
        gone -= scope.producer.keys()
        known = _drop(proto.value_info, gone)
        for node in (scope.nodes[handle] for handle in scope.of_type(OP_TYPE)):
            if is_ours(node):
                for name in node.output:
                    if name not in known and not scope.is_output(name):
                        of = self.context.facts.types.of(scope, name)
                        proto.value_info.append(value_info(name, of))


def _drop(entries: Any, names: set[str]) -> set[str]:
    """Remove the protobuf entries that are called so, at once; returns the names of the others."""
    all_names = [entry.name for entry in entries]
    gone = [name in names for name in all_names]
    if any(gone):
        in_order = iter(gone)
        entries.sort(key=lambda _: next(in_order))
        del entries[len(gone) - sum(gone) :]
    return set(all_names) - names


def onnx_opset(model: ModelProto) -> int:
    """The version of the ONNX domain that ``model`` imports, 0 when it imports none."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return int(entry.version)
    return 0
