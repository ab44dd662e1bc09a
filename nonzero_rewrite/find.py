"""Lists every NonZero of a model with what is known about it; changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from nonzero_plugin.contract import DOMAIN
from onnx import ModelProto, NodeProto

from nonzero_rewrite.graph import Scope, scopes_of
from nonzero_rewrite.infer import Types
from nonzero_rewrite.node import is_onnx, readable_names, text
from nonzero_rewrite.rules.group import RANK_LAST, Group
from nonzero_rewrite.tensor_type import declared_dims

_TRACE_KEYS = (
    "pkg.torch.onnx.stack_trace",
    "pkg.torch.onnx.name_scopes",
    "pkg.torch.export.graph_module.stack_trace",
    "namespace",
)


@dataclass(frozen=True)
class Site:
    """One NonZero node.

    Attributes:
        id: unique in the model: the name of the node's output, with the graph's path in front
            where the node is not in the main graph.
        graph: path of the graph that holds it, ``""`` for the main graph.
        node: the node's name, or a stand-in such as ``NonZero#7``.
        input: the name of the mask.
        dtype: ONNX element type of the mask, ``"?"`` when unknown.
        dims: dimensions of the mask (sizes, symbols, None), or None when the rank is unknown.
        mask_from: operators the mask comes from, nearest first.
        consumers: operators that use the indices, behind Transpose.
        transposed: True when all of them use the ``[num_nonzero, rank]`` layout.
        trace: where the exporter says the node comes from.
    """

    id: str
    graph: str
    node: str
    input: str
    dtype: str
    dims: tuple[int | str | None, ...] | None
    mask_from: tuple[str, ...]
    consumers: tuple[str, ...]
    transposed: bool
    trace: str | None

    @property
    def rank(self) -> int | None:
        """Number of dimensions of the mask."""
        return None if self.dims is None else len(self.dims)

    @property
    def mask(self) -> str:
        """The type of the mask, for people."""
        if self.dims is None:
            return f"{self.dtype} of unknown rank"
        return f"{self.dtype}[{', '.join('?' if d is None else str(d) for d in self.dims)}]"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def nonzero_nodes(scopes: list[Scope]) -> Iterator[tuple[Scope, int, NodeProto]]:
    """Every NonZero of the ONNX domain, main graph first; our own function's body not counted."""
    for root in scopes:
        if root.is_function and root.proto.domain == DOMAIN:
            continue
        for scope in root.walk():
            for handle in scope.of_type("NonZero"):
                if is_onnx(scope.nodes[handle], "NonZero"):
                    yield scope, handle, scope.nodes[handle]


def identified(scopes: list[Scope]) -> Iterator[tuple[str, Scope, int, NodeProto]]:
    """As ``nonzero_nodes``, each with the id of its site; see ``Site``."""
    seen: dict[str, int] = {}
    for scope, handle, node in nonzero_nodes(scopes):
        name = node.output[0] if node.output and node.output[0] else scope.label(handle)
        name = f"{scope.path}: {name}" if scope.path else name
        seen[name] = seen.get(name, 0) + 1
        # Bodies of equally named nodes may use a name each, and a broken node has none.
        yield (name if seen[name] == 1 else f"{name} ({seen[name]})"), scope, handle, node


@readable_names()
def find_sites(model: ModelProto) -> list[Site]:
    """All NonZero nodes of ``model`` with their facts, in graph order."""
    scopes = scopes_of(model)
    return describe_sites(scopes, Types(model))


def describe_sites(scopes: list[Scope], types: Types) -> list[Site]:
    """As ``find_sites``, on an index that exists already."""
    found = list(identified(scopes))
    types.need((scope, node.input[0]) for _, scope, _, node in found if node.input)
    return [_describe(*each, types) for each in found]


def _describe(name: str, scope: Scope, handle: int, node: NodeProto, types: Types) -> Site:
    mask = node.input[0] if node.input else ""
    of = types.of(scope, mask)
    group = Group(scope, mask, [handle] if node.output else [])
    group.refresh()
    consumers = [scope.nodes[use.handle].op_type for use in group.uses]
    consumers += ["output" if scope.is_output(name) else "nested graph" for name in group.fixed]
    layouts = {use.layout for use in group.uses} | {group.aliases[name] for name in group.fixed}
    return Site(
        id=name,
        graph=scope.path,
        node=scope.label(handle),
        input=mask,
        dtype=of.dtype_name,
        dims=declared_dims(of.dims),
        mask_from=tuple(_origin(scope, mask)),
        consumers=tuple(dict.fromkeys(consumers)),
        transposed=layouts == {RANK_LAST},
        trace=_trace(node),
    )


def _origin(scope: Scope, name: str) -> Iterator[str]:
    for _ in range(4):
        owner = scope.owner(name)
        if owner is None:
            return
        scope = owner
        producer = scope.made_by(name)
        if producer is None:
            yield "initializer" if name in scope.initializers else "input"
            return
        yield producer.op_type
        name = next((each for each in producer.input if each), "")


def _trace(node: NodeProto) -> str | None:
    props = {entry.key: text(entry.value) for entry in node.metadata_props}
    for key in _TRACE_KEYS:
        if props.get(key):
            lines = [line.strip() for line in props[key].splitlines() if line.strip()]
            return lines[-1] if key.endswith("stack_trace") else props[key]
    lines = [line.strip() for line in text(node.doc_string).splitlines() if line.strip()]
    return lines[0] if lines else None
