"""Answers what the types of values are: what the model says and, where it is silent, inference."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import GraphProto, ModelProto, ValueInfoProto

from nonzero_rewrite.graph import Scope
from nonzero_rewrite.infer_local import resolve
from nonzero_rewrite.infer_onnx import infer_ancestors
from nonzero_rewrite.tensor_type import UNKNOWN, TensorType, merge, tensor_type


class Types:
    """Answers ``of(scope, name)``; knows what the model declares and infers the rest on demand."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._tables: dict[int, _Table] = {}
        self._asked: set[tuple[int, str]] = set()

    def of(self, scope: Scope, name: str) -> TensorType:
        """The type of ``name`` as seen from ``scope``; ``UNKNOWN`` where nothing is known."""
        owner = scope.owner(name)
        return UNKNOWN if owner is None else self._table(owner).get(name)

    def set(self, scope: Scope, name: str, to: TensorType) -> None:
        """Record the type of a value that a rule made."""
        self._table(scope).known[name] = to

    def need(self, wanted: Iterable[tuple[Scope, str]]) -> None:
        """Make sure that everything that can be known of these values is.

        Cheap rules first; ONNX shape inference runs once for all that they cannot answer.
        """
        missing = []
        for scope, name in wanted:
            owner = scope.owner(name)
            if owner is None or scope.root.is_function or (id(owner), name) in self._asked:
                continue
            if self.of(owner, name).is_complete:
                continue
            self._asked.add((id(owner), name))
            table = self._table(owner)
            table.known.update(resolve(owner, name, table.get))
            if not self.of(owner, name).is_complete:
                missing.append((owner, name))
        if missing:
            main = missing[0][0].root
            table = self._table(main)
            for scope, infos in infer_ancestors(self._model, main, missing, table.get):
                self._table(scope).learn(infos)

    def _table(self, scope: Scope) -> _Table:
        table = self._tables.get(id(scope))
        if table is None:
            table = self._tables[id(scope)] = _Table(scope)
        return table


class _Table:
    """Types of one graph's values; protobufs are read when they are asked for."""

    def __init__(self, scope: Scope) -> None:
        self.known: dict[str, TensorType] = {}
        proto = scope.proto
        self._declared: dict[str, ValueInfoProto] = {info.name: info for info in proto.value_info}
        if isinstance(proto, GraphProto):
            self._declared.update((info.name, info) for info in (*proto.output, *proto.input))
        self._initializers = scope.initializers
        self._inferred: dict[str, ValueInfoProto] = {}

    def get(self, name: str) -> TensorType:
        found = self.known.get(name)
        if found is None:
            found = self.known[name] = self._read(name)
        return found

    def learn(self, infos: dict[str, ValueInfoProto]) -> None:
        self._inferred.update(infos)
        for name in [name for name in infos if name in self.known]:
            self.known[name] = merge(self.known[name], tensor_type(infos[name].type))

    def _read(self, name: str) -> TensorType:
        tensor = self._initializers.get(name)
        if tensor is not None:
            return TensorType(tensor.data_type, tuple(tensor.dims))
        found = UNKNOWN
        for source in (self._declared, self._inferred):
            if name in source:
                found = merge(found, tensor_type(source[name].type))
        return found
