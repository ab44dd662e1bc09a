"""Random models around NonZero that onnxruntime runs, drawn by hypothesis.

A ``Draft`` grows by one random node at a time over values whose type and shape it keeps track of:
masks of all kinds, their casts, equal masks computed again, indices in both layouts, everything
exporters hang behind them, and If bodies that capture or compute any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

B, F, H = TensorProto.BOOL, TensorProto.FLOAT, TensorProto.FLOAT16
I32, I64, U8 = TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8
TYPES = (B, F, H, I32, I64, U8)
OPSETS = (9, 10, 11, 12, 13, 16, 17, 18, 21)
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Value:
    """``layout`` is None for a tensor of the inputs' shape; else what kind of indices it is."""

    name: str
    elem_type: int
    layout: str | None = None  # "rows", "columns", "number", "other"


@dataclass
class Draft:
    draw: Draw
    opset: int
    dims: list[str | int]
    nodes: list[NodeProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    count: int = 0
    prefix: str = "v"

    # -- drawing ----------------------------------------------------------------------------------

    def one_of(self, items: Any) -> Any:
        return self.draw(st.sampled_from(list(items)))

    def chance(self, percent: int) -> bool:
        return bool(self.draw(st.integers(0, 99)) < percent)

    def some(self, test: Callable[[Value], bool]) -> Value | None:
        found = [value for value in self.values if test(value)]
        return self.one_of(found) if found else None

    # -- writing ----------------------------------------------------------------------------------

    def new(self, wish: str = "") -> str:
        self.count += 1
        return f"{self.prefix}{self.count}{wish}"

    def op(self, op_type: str, inputs: list[str], **attrs: Any) -> str:
        name = self.new()
        label = f"n_{name}" if self.chance(50) else ""
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=label, **attrs))
        return name

    def add(
        self, op_type: str, inputs: list[str], elem_type: int, layout: str | None, **a: Any
    ) -> None:
        self.values.append(Value(self.op(op_type, inputs, **a), elem_type, layout))

    def constant(self, value: Any, dtype: Any) -> str:
        array = np.array(value, dtype)
        if self.chance(50):
            name = self.new("_init")
            self.initializers.append(numpy_helper.from_array(array, name))
            return name
        return self.op("Constant", [], value=numpy_helper.from_array(array))

    # -- steps ------------------------------------------------------------------------------------

    def step(self) -> None:
        getattr(self, "add_" + self.one_of(STEPS))()

    def add_mask(self) -> None:
        source = self.some(lambda v: v.layout is None)
        assert source is not None
        kind = self.one_of(["Cast", "Greater", "Not", "Identity", "And", "Again", "Where"])
        if kind == "Cast":
            to = self.one_of(TYPES)
            # What a float that does not fit becomes is nobody's promise, and onnxruntime makes one
            # cast of FLOAT -> FLOAT16 -> FLOAT, which it needs for its NonZero.
            if not (source.elem_type in (F, H) and to in (I32, I64, U8, H)):
                self.add("Cast", [source.name], to, None, to=to)
        elif kind == "Greater" and source.elem_type in (F, I32, I64):
            dtype = helper.tensor_dtype_to_np_dtype(source.elem_type)
            self.add("Greater", [source.name, self.constant(0, dtype)], B, None)
        elif kind == "Not" and source.elem_type == B:
            self.add("Not", [source.name], B, None)
        elif kind == "Identity":
            self.add("Identity", [source.name], source.elem_type, None)
        elif kind == "And" and source.elem_type == B:
            other = self.some(lambda v: v.layout is None and v.elem_type == B)
            assert other is not None
            self.add("And", [source.name, other.name], B, None)
        elif kind == "Again":
            self.repeat()

    def repeat(self) -> None:
        """A node that exists already, once more."""
        simple = [
            n for n in self.nodes if len(n.output) == 1 and n.op_type not in ("If", "Constant")
        ]
        if simple:
            node = self.one_of(simple)
            known = next((v for v in self.values if v.name == node.output[0]), None)
            if known is not None:
                copy = NodeProto()
                copy.CopyFrom(node)
                copy.name = ""
                copy.output[0] = self.new()
                self.nodes.append(copy)
                self.values.append(Value(copy.output[0], known.elem_type, known.layout))

    def add_nonzero(self) -> None:
        mask = self.some(lambda v: v.layout is None)
        assert mask is not None
        self.add("NonZero", [mask.name], I64, "rows")

    def add_turn(self) -> None:
        value = self.some(lambda v: v.layout in ("rows", "columns"))
        if value is None:
            return
        turned = {"rows": "columns", "columns": "rows"}[str(value.layout)]
        how = self.one_of(["perm", "default", "same", "Identity"])
        if how == "perm":
            self.add("Transpose", [value.name], I64, turned, perm=[1, 0])
        elif how == "default":
            self.add("Transpose", [value.name], I64, turned)
        elif how == "same":
            self.add("Transpose", [value.name], I64, value.layout, perm=[0, 1])
        else:
            self.add("Identity", [value.name], I64, value.layout)

    def add_use(self) -> None:
        value = self.some(lambda v: v.layout in ("rows", "columns"))
        if value is None:
            return
        kind = self.one_of(["Shape", "Size", "Cast", "Concat", "Reshape", "Gather", "Add", "Slice"])
        name = value.name
        if kind == "Shape":
            self.add("Shape", [name], I64, "shape")
        elif kind == "Size":
            self.add("Size", [name], I64, "number")
        elif kind == "Cast":
            self.add("Cast", [name], F, "other", to=F)
        elif kind == "Concat":
            self.add("Concat", [name, name], I64, "other", axis=self.one_of([0, 1]))
        elif kind == "Reshape":
            self.add("Reshape", [name, self.constant([-1], np.int64)], I64, "other")
        elif kind == "Gather":
            axis = 0 if value.layout == "rows" else 1
            self.add("Gather", [name, self.constant(0, np.int64)], I64, "other", axis=axis)
        elif kind == "Add":
            self.add("Add", [name, self.constant(1, np.int64)], I64, "other")
        elif self.opset >= 10:
            ends = [self.constant([v], np.int64) for v in (0, 1)]
            self.add("Slice", [name, *ends], I64, "other")

    def add_count(self) -> None:
        """A number taken from a shape, perhaps used as a size."""
        value = self.some(lambda v: v.layout == "shape")
        if value is not None:
            place = self.constant([self.one_of([0, 1])], np.int64)
            number = self.op("Gather", [value.name, place], axis=0)
            self.values.append(Value(number, I64, "number"))
            if self.chance(30):
                self.add("ConstantOfShape", [number], F, "other")

    def add_gather(self) -> None:
        indices = self.some(lambda v: v.layout == "columns")
        data = self.some(lambda v: v.layout is None)
        if self.opset >= 11 and indices is not None and data is not None:
            self.add("GatherND", [data.name, indices.name], data.elem_type, "other")

    def add_write(self) -> None:
        """``x[mask] = v`` and ``x[mask] = f(x[mask])`` in the forms exporters use."""
        indices = self.some(lambda v: v.layout == "columns")
        data = self.some(lambda v: v.layout is None and v.elem_type in (F, I32, I64))
        if self.opset < 11 or indices is None or data is None:
            return
        dtype = helper.tensor_dtype_to_np_dtype(data.elem_type)
        if self.chance(50):
            shape = self.op("Shape", [indices.name])
            number = self.op("Gather", [shape, self.constant([0], np.int64)], axis=0)
            update = self.op("Expand", [self.constant(7, dtype), number])
        else:
            source = self.some(lambda v: v.layout is None and v.elem_type == data.elem_type)
            assert source is not None
            update = self.op("GatherND", [source.name, indices.name])
            for _ in range(self.draw(st.integers(0, 3))):
                other = self.one_of([update, self.constant(3, dtype)])
                update = self.op(self.one_of(["Add", "Sub", "Mul"]), [update, other])
        self.add("ScatterND", [data.name, indices.name, update], data.elem_type, None)

    def add_ramp(self) -> None:
        """ConstantOfShape in place of data."""
        data = self.some(lambda v: v.layout is None)
        assert data is not None
        fill = numpy_helper.from_array(np.array([self.one_of([0, 1, 2])], np.int64))
        shape = self.op("Shape", [data.name])
        self.add("ConstantOfShape", [shape], I64, None, value=fill)

    def add_if(self) -> None:
        """Both branches are small drafts that see everything outside."""
        if self.prefix.count("_") >= 2:
            return
        branches = []
        for key in ("t", "e"):
            inner = Draft(self.draw, self.opset, self.dims, prefix=f"{self.new()}_{key}")
            inner.values = list(self.values)
            for _ in range(self.draw(st.integers(1, 4))):
                inner.step()
            outside = {value.name for value in self.values}
            made = [v for v in inner.values if v.name not in outside] or [self.one_of(self.values)]
            flat = inner.op("Reshape", [self.one_of(made).name, inner.constant([-1], np.int64)])
            last = inner.op("Cast", [flat], to=F)
            outputs = [helper.make_tensor_value_info(last, F, [None])]
            branches.append(
                helper.make_graph(inner.nodes, key, [], outputs, initializer=inner.initializers)
            )
        condition = "c"
        if self.chance(30):
            condition = self.constant(self.one_of([True, False]), np.bool_)
        self.add("If", [condition], F, "other", then_branch=branches[0], else_branch=branches[1])


STEPS = ("mask", "mask", "nonzero", "nonzero", "turn", "turn", "use", "count", "gather", "write",
         "ramp", "if")  # fmt: skip


@st.composite
def models(draw: Draw) -> ModelProto:
    """A model over ``x`` of any type, ``w`` FLOAT and ``m`` BOOL of one shape, and a flag ``c``."""
    opset = draw(st.sampled_from(OPSETS))
    dims = draw(st.lists(st.sampled_from(["n", "m", 1, 2, 3]), min_size=1, max_size=5))
    draft = Draft(draw, opset, dims)
    draft.values = [Value("x", draw(st.sampled_from(TYPES))), Value("w", F), Value("m", B)]
    inputs = [helper.make_tensor_value_info(v.name, v.elem_type, dims) for v in draft.values]
    inputs.append(helper.make_tensor_value_info("c", B, []))
    draft.add_nonzero()
    for _ in range(draw(st.integers(1, 14))):
        draft.step()
    graph = helper.make_graph(draft.nodes, "random", inputs, [], initializer=draft.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    # The checker wants the rank of every output.
    known = [v for v in inferred.graph.value_info if v.type.tensor_type.HasField("shape")]
    chosen = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique_by=_name))
    if draft.chance(30):  # as if another tool had written what it inferred
        model.graph.value_info.extend(v for v in inferred.graph.value_info if v not in chosen)
    for value in chosen:
        shape = [None] * len(value.type.tensor_type.shape.dim)
        model.graph.output.append(
            helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape)
        )
    return model


def _name(value: onnx.ValueInfoProto) -> str:
    return str(value.name)
