"""Ways to break a model while it still looks like one; used by tools/fuzz.py.

Three kinds: changes of the protobuf (``MODEL``), of its bytes (``BYTES``), and of the files around
it (``FILES``). All draw from the generator they are given and from nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

ABSURD = (-1, 0, 1, 2, 3, 8, 9, 24, 64, 1 << 16, 1 << 31, (1 << 63) - 1, -(1 << 63))
NAMES = ("", "x", "nowhere", " ", "\u00e4\u4e2d", "a" * 3000, "../x", "?0.s", "x_count", "0")
OPS = (
    *("NonZero", "Transpose", "Cast", "Identity", "Shape", "Size", "GatherND", "ScatterND", "If"),
    *("Loop", "Scan", "Constant", "ConstantOfShape", "Expand", "Reshape", "Range", "Where", "Add"),
    *("Squeeze", "Unsqueeze", "Tile", "Slice", "Split", "Concat", "ReduceSum", "OneHot", "Gather"),
    *("NonZeroPlugin", "EyeLike", "Trilu", "CumSum", "Flatten", "Mod", "TopK", "Nonsense", ""),
)
DOMAINS = ("", "ai.onnx", "nonzero_rewrite", "local", "com.microsoft", "\u00e9")
Graph = Any  # GraphProto or FunctionProto


def graphs(model: ModelProto) -> Iterator[Graph]:
    """The main graph, the functions, and every graph below them."""
    stack: list[Graph] = [*model.functions, model.graph]
    while stack:
        graph = stack.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


class Pick:
    """Random parts of one model; ``None`` where it has no such part."""

    def __init__(self, rng: random.Random, model: ModelProto) -> None:
        self.rng, self.model = rng, model
        self.graphs = list(graphs(model))

    def one(self, values: Any) -> Any:
        values = list(values)
        return self.rng.choice(values) if values else None

    def graph(self) -> Graph:
        return self.rng.choice(self.graphs)

    def node(self, *op_types: str) -> NodeProto | None:
        """A node, near a NonZero more often than not."""
        nodes = [node for graph in self.graphs for node in graph.node]
        wanted = op_types or self.rng.choice(
            [(), ("NonZero", "NonZeroPlugin"), ("Transpose", "ScatterND", "GatherND", "Cast")]
        )
        found: NodeProto | None = self.one([n for n in nodes if n.op_type in wanted] or nodes)
        return found

    def name(self) -> str:
        """The name of a value that exists, or one that does not."""
        node = self.node()
        known = [*node.input, *node.output] if node is not None else []
        known += [value.name for value in self.model.graph.input]
        return str(self.rng.choice([*known, *known, *NAMES]))

    def attribute(self) -> AttributeProto | None:
        nodes = [n for graph in self.graphs for n in graph.node if n.attribute]
        node = self.one(nodes)
        return None if node is None else self.one(node.attribute)

    def tensor(self) -> TensorProto | None:
        found = [t for g in self.graphs if isinstance(g, GraphProto) for t in g.initializer]
        found += [a.t for g in self.graphs for n in g.node for a in n.attribute if a.HasField("t")]
        tensor: TensorProto | None = self.one(found)
        return tensor

    def info(self) -> Any:
        found: list[Any] = []
        for graph in self.graphs:
            found += graph.value_info
            if isinstance(graph, GraphProto):
                found += [*graph.input, *graph.output]
        return self.one(found)


# -- protobuf ---------------------------------------------------------------------------------


def rename_input(pick: Pick) -> None:
    node = pick.node()
    if node is not None and node.input:
        node.input[pick.rng.randrange(len(node.input))] = pick.name()


def rename_output(pick: Pick) -> None:
    node = pick.node()
    if node is not None and node.output:
        node.output[pick.rng.randrange(len(node.output))] = pick.name()


def wrong_arity(pick: Pick) -> None:
    node = pick.node()
    if node is None:
        return
    names = pick.rng.choice([node.input, node.output])
    for _ in range(pick.rng.choice([1, 1, 2, 5])):
        if names and pick.rng.random() < 0.6:
            del names[pick.rng.randrange(len(names))]
        else:
            names.append(pick.name())


def cycle(pick: Pick) -> None:
    graph = pick.graph()
    if len(graph.node) > 1:
        one, other = pick.rng.sample(list(graph.node), 2)
        for a, b in ((one, other), (other, one)):
            if a.output and b.input:
                b.input[0] = a.output[0]


def shuffle_nodes(pick: Pick) -> None:
    graph = pick.graph()
    nodes = list(graph.node)
    for _ in range(pick.rng.choice([1, 1, 3])):
        if len(nodes) > 1:
            i, j = pick.rng.sample(range(len(nodes)), 2)
            nodes[i], nodes[j] = nodes[j], nodes[i]
    copies = []
    for node in nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    del graph.node[:]
    graph.node.extend(copies)


def repeat_node(pick: Pick) -> None:
    graph, node = pick.graph(), pick.node()
    if node is not None:
        copy = NodeProto()
        copy.CopyFrom(node)
        if pick.rng.random() < 0.5:
            for slot, name in enumerate(copy.output):
                copy.output[slot] = f"{name}_again"
        graph.node.append(copy)


def drop_node(pick: Pick) -> None:
    graph = pick.graph()
    if graph.node:
        del graph.node[pick.rng.randrange(len(graph.node))]


def change_op(pick: Pick) -> None:
    node = pick.node()
    if node is not None:
        node.op_type = pick.rng.choice(OPS)
        if pick.rng.random() < 0.2:
            node.domain = pick.rng.choice(DOMAINS)


def change_domain(pick: Pick) -> None:
    node = pick.node()
    if node is not None:
        node.domain = pick.rng.choice(DOMAINS)


def lying_attribute(pick: Pick) -> None:
    attribute = pick.attribute()
    if attribute is None:
        return
    how = pick.rng.randrange(5)
    if how == 0:
        attribute.type = pick.rng.choice(list(AttributeProto.AttributeType.values()))
    elif how == 1:
        name = attribute.name
        value = pick.rng.choice([b"perm", "a", 7, 0.5, [], [1], ["x"], [0.5], list(ABSURD)])
        attribute.Clear()
        made = helper.make_attribute(name, value if value != [] else [1])
        attribute.CopyFrom(made)
        if value == []:
            del attribute.ints[:]
    elif how == 2:
        attribute.i = pick.rng.choice(ABSURD)
        del attribute.ints[:]
        attribute.ints.extend(pick.rng.choices(ABSURD, k=pick.rng.randrange(9)))
    elif how == 3:
        attribute.ref_attr_name = pick.rng.choice(NAMES)
    else:
        for field in ("t", "g", "s"):
            attribute.ClearField(field)


def drop_attribute(pick: Pick) -> None:
    node = pick.node()
    if node is not None and node.attribute:
        del node.attribute[pick.rng.randrange(len(node.attribute))]


def repeat_attribute(pick: Pick) -> None:
    node = pick.node()
    if node is not None and node.attribute:
        copy = AttributeProto()
        copy.CopyFrom(pick.rng.choice(list(node.attribute)))
        copy.name = pick.rng.choice([copy.name, "perm", "axis", "to", "body", "then_branch"])
        (pick.node() or node).attribute.append(copy)


def absurd_type(pick: Pick) -> None:
    info = pick.info()
    if info is None:
        return
    rng, kind = pick.rng, pick.rng.randrange(6)
    tensor = info.type.tensor_type
    if kind == 0:
        tensor.elem_type = rng.choice([*range(-1, 30), 1000])
    elif kind == 1:
        info.type.Clear()
    elif kind == 2:
        info.type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, ["n"])))
    elif kind == 3:
        tensor.ClearField("shape")
    else:
        rank = rng.choice([0, 1, 2, 3, 8, 9, 70, 3000])
        del tensor.shape.dim[:]
        for _ in range(rank):
            dim = tensor.shape.dim.add()
            if rng.random() < 0.5:
                dim.dim_value = rng.choice(ABSURD)
            elif rng.random() < 0.8:
                dim.dim_param = rng.choice(["n", "m", "?0.s", "", *NAMES[:4]])


def absurd_tensor(pick: Pick) -> None:
    tensor = pick.tensor()
    if tensor is None:
        return
    rng, kind = pick.rng, pick.rng.randrange(6)
    if kind == 0:
        del tensor.dims[:]
        tensor.dims.extend(rng.choices(ABSURD, k=rng.choice([0, 1, 2, 9, 100])))
    elif kind == 1:
        tensor.data_type = rng.choice([*range(-1, 30), 1000])
    elif kind == 2:
        tensor.raw_data = rng.randbytes(rng.choice([0, 1, 7, 8, 64]))
    elif kind == 3:
        tensor.float_data.append(1.5)
        tensor.int64_data.append(-1)
    elif kind == 4:
        tensor.name = pick.name()
    else:
        tensor.ClearField("raw_data")


def repeat_tensor(pick: Pick) -> None:
    tensor = pick.tensor()
    if tensor is not None:
        copy = pick.model.graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = pick.name()


def sparse_tensor(pick: Pick) -> None:
    tensor = pick.tensor()
    if tensor is not None:
        sparse = pick.model.graph.sparse_initializer.add()
        sparse.values.CopyFrom(tensor)
        sparse.values.name = pick.name()
        sparse.dims.extend(pick.rng.choices(ABSURD, k=2))


def change_interface(pick: Pick) -> None:
    graph = pick.model.graph
    values = pick.rng.choice([graph.input, graph.output])
    how = pick.rng.randrange(3)
    if how == 0 and values:
        del values[pick.rng.randrange(len(values))]
    elif how == 1 and values:
        values.add().CopyFrom(pick.rng.choice(list(values)))
    else:
        values.add().name = pick.name()


def rename_value(pick: Pick) -> None:
    info = pick.info()
    if info is not None:
        info.name = pick.name()


def change_opset(pick: Pick) -> None:
    imports, rng = pick.model.opset_import, pick.rng
    how = rng.randrange(5)
    if how == 0:
        del imports[:]
    elif how == 1 and imports:
        rng.choice(list(imports)).version = rng.choice([*ABSURD, *range(1, 26)])
    elif how == 2:
        imports.append(helper.make_opsetid(rng.choice(DOMAINS), rng.choice([0, 1, 9, 13, 17, 99])))
    elif how == 3 and pick.model.functions:
        function = rng.choice(list(pick.model.functions))
        del function.opset_import[:]
        if rng.random() < 0.7:
            function.opset_import.append(helper.make_opsetid("", rng.choice([1, 11, 17, 21])))
    else:
        pick.model.ir_version = rng.choice([0, 1, 2, 3, 4, 7, 8, 10, 13, 99, -1, (1 << 63) - 1])


def wrap_in_if(pick: Pick) -> None:
    """Bury a node under some Ifs, as deep as protobuf lets it be built."""
    graph, rng = pick.model.graph, pick.rng
    if not graph.node:
        return
    place = rng.randrange(len(graph.node))
    inner = NodeProto()
    inner.CopyFrom(graph.node[place])
    outputs = [name for name in inner.output if name]
    if rng.random() < 0.5:
        graph.initializer.append(helper.make_tensor("wrapped_go", TensorProto.BOOL, [], [True]))
    else:
        graph.input.append(helper.make_tensor_value_info("wrapped_go", TensorProto.BOOL, []))
    try:
        for level in range(rng.choice([1, 1, 1, 2, 3, 12, 26])):
            body = GraphProto(name=f"level{level}", node=[inner])
            names = [f"{name}_l{level}" for name in outputs]
            for slot, name in enumerate(inner.output):
                if name:
                    body.node[0].output[slot] = f"{outputs[0]}_l{level}" if slot == 0 else name
            for name in names[:1]:
                body.output.add().name = name
            other = body if level == 0 else GraphProto(name="none")
            inner = helper.make_node(
                "If", ["wrapped_go"], outputs[:1], then_branch=body, else_branch=other
            )
        graph.node[place].CopyFrom(inner)
    except Exception:  # deeper than protobuf builds: the case stays as it is
        return


def wrap_in_function(pick: Pick) -> None:
    """Bury a node under functions that call each other, in a ring or in a chain."""
    model, rng = pick.model, pick.rng
    node = pick.node("NonZero")
    if node is None or not node.output:
        return
    depth, ring = rng.choice([1, 1, 2, 3, 30, 300]), rng.random() < 0.3
    version = next((e.version for e in model.opset_import if e.domain == ""), 17)
    imports = [helper.make_opsetid("", version), helper.make_opsetid("wrapped", 1)]
    for level in range(depth):
        last = level == depth - 1
        target = 0 if last else level + 1
        inner = helper.make_node(f"f{target}", ["a"], ["b"], domain="wrapped")
        if last and not ring:
            inner = helper.make_node(node.op_type, ["a"], ["b"], domain=node.domain)
        model.functions.append(
            helper.make_function("wrapped", f"f{level}", ["a"], ["b"], [inner], imports)
        )
    node.op_type, node.domain = "f0", "wrapped"
    model.opset_import.append(helper.make_opsetid("wrapped", 1))


def long_chain(pick: Pick) -> None:
    """A ladder of nodes that take the rung before them twice: as a tree it is astronomical."""
    graph, rng = pick.model.graph, pick.rng
    node = pick.node("NonZero")
    if node is None or not node.input or node not in list(graph.node):
        return
    kind = rng.choice(["Add", "And", "Max", "Mul", "Where", "Concat", "Identity", "Cast"])
    name, rungs = node.input[0], []
    if rng.random() < 0.5:
        name = "ladder"
        rungs.append(
            helper.make_node("Constant", [], [name], value=helper.make_tensor("l", 1, [2], [0, 1]))
        )
    extra = {"Concat": {"axis": 0}, "Cast": {"to": rng.choice([1, 6, 9])}}.get(kind, {})
    width = {"Max": rng.choice([2, 9]), "Where": 3, "Identity": 1, "Cast": 1}.get(kind, 2)
    for number in range(rng.choice([3, 20, 40])):
        rungs.append(helper.make_node(kind, [name] * width, [f"rung{number}"], **extra))
        name = f"rung{number}"
    node.input[0] = name
    nodes = [*rungs, *graph.node]
    copies = [NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def change_function(pick: Pick) -> None:
    functions, rng = pick.model.functions, pick.rng
    if not functions:
        return
    function = rng.choice(list(functions))
    how = rng.randrange(5)
    if how == 0:
        function.name = rng.choice([*OPS, *NAMES])
    elif how == 1:
        function.domain = rng.choice(DOMAINS)
    elif how == 2:
        functions.add().CopyFrom(function)
    elif how == 3:
        names = rng.choice([function.input, function.output])
        names.append(pick.name())
    else:
        names = rng.choice([function.input, function.output])
        if names:
            del names[rng.randrange(len(names))]


def plugin_node(pick: Pick) -> None:
    """A NonZeroPlugin that somebody else wrote, with or without the function it needs."""
    rng, node = pick.rng, pick.node("NonZero")
    if node is None:
        return
    node.op_type, node.domain = "NonZeroPlugin", "nonzero_rewrite"
    values: dict[str, Any] = {
        "perm": rng.choice([[0, 1], [1, 0], [1], [], "01", 1, [2, 3]]) or "x",
        "backend": rng.choice(["cuda_python", "", 3]),
        "index_type": rng.choice([6, 7, 1, "a"]),
        "max_nonzero": rng.choice([0, 1, -1, 1 << 40]),
    }
    for key, value in values.items():
        if rng.random() < 0.6:
            node.attribute.append(helper.make_attribute(key, value))
    if rng.random() < 0.6:
        node.output.append(pick.rng.choice(["", f"{rng.random()}", pick.name()]))
    if rng.random() < 0.6:
        pick.model.opset_import.append(helper.make_opsetid("nonzero_rewrite", 1))


def metadata(pick: Pick) -> None:
    node = pick.node()
    if node is not None:
        for key in ("nonzero_rewrite.site", "nonzero_rewrite.rule", "nonzero_rewrite.replaces"):
            entry = node.metadata_props.add()
            entry.key, entry.value = key, pick.name()


MODEL: tuple[Callable[[Pick], None], ...] = (
    *(rename_input, rename_output, wrong_arity, cycle, shuffle_nodes, repeat_node, drop_node),
    *(change_op, change_domain, lying_attribute, drop_attribute, repeat_attribute, absurd_type),
    *(absurd_tensor, repeat_tensor, sparse_tensor, change_interface, rename_value, change_opset),
    *(wrap_in_if, wrap_in_function, long_chain, change_function, plugin_node, metadata),
)


# -- bytes ------------------------------------------------------------------------------------


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def splice(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    start, end = sorted(rng.randrange(len(data)) for _ in range(2))
    place = rng.randrange(len(data))
    return data[:place] + data[start : min(end, start + 512)] + data[place:]


def invalid_utf8(rng: random.Random, data: bytes) -> bytes:
    word = rng.choice([b"NonZero", b"Transpose", b"mask", b"input", b"x", b"1", b"Cast"])
    return data.replace(word, b"\xff" * len(word), rng.choice([1, 1, -1]))


def deep_ifs(rng: random.Random, data: bytes) -> bytes:
    """The model with Ifs within Ifs, hundreds deep, written straight into the bytes."""
    inner = onnx.GraphProto(name="b").SerializeToString()
    for _ in range(rng.choice([30, 33, 34, 60, 100, 400])):
        attribute = _field(1, b"then_branch") + _field(6, inner) + b"\xa0\x01\x05"
        inner = _field(1, _field(4, b"If") + _field(5, attribute)) + _field(2, b"b")
    return data + _field(7, inner)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


BYTES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(truncate, flip_bits, flip_bits, splice, invalid_utf8, deep_ifs),
)


# -- files ------------------------------------------------------------------------------------


def external_data(rng: random.Random, model: ModelProto, folder: Path) -> None:
    """Let a tensor's data lie in a file that is there, is not, or must not be read."""
    pick = Pick(rng, model)
    tensor = pick.tensor()
    if tensor is None:
        return
    (folder / "weights.bin").write_bytes(tensor.raw_data + bytes(64))
    place = rng.choice(
        [
            *("weights.bin", "weights.bin", "weights.bin", "./weights.bin", "missing.bin", ""),
            *("../outside.bin", "sub/../../outside.bin", "/etc/hostname", "C:\\x.bin", "link.bin"),
            *("dir", "a\0b", "w" * 300, "\\\\host\\share", "sub/w.bin", "loop.bin", "."),
        ]
    )
    (folder / "dir").mkdir(exist_ok=True)
    for name, target in (("link.bin", "../outside.bin"), ("loop.bin", "loop.bin")):
        if place == name:
            (folder / name).symlink_to(target)
    if place == "sub/w.bin":
        (folder / "sub").mkdir(exist_ok=True)
        (folder / place).write_bytes(b"0" * 64)
    (folder.parent / "outside.bin").write_bytes(b"secret")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    for key, value in (
        ("location", place),
        ("offset", rng.choice(["0", "-1", str(1 << 62), "x", "\u0663", "", None])),
        ("length", rng.choice(["0", "4", "-4", str(1 << 63), "1e3", None])),
    ):
        if value is not None:
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
