"""Small models written as ONNX text, and the proof that their rewrite equals them.

``rewritten`` is the check every rule test ends in: checker, shape inference, and each output of
both models bit for bit in onnxruntime on masks that select none, some and all items, with -0.0,
NaN, infinities and subnormals among the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from nonzero_plugin.contract import DOMAIN, OP_TYPE
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from nonzero_rewrite import Options, RewriteResult, rewrite_model
from nonzero_rewrite.find import find_sites

Feeds = Mapping[str, np.ndarray]

SPECIAL = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-40, 6e-8, 1.0, -2.5]
SIZES = (3, 1, 0)
"""What every symbolic dimension is in turn; ``sizes`` overrides single ones."""


def parse(body: str, opset: int = 17, ir: int = 8, header: str = "", tail: str = "") -> ModelProto:
    """A model from the text of its graph; ``tail`` holds functions."""
    imports = f'"": {opset}' + (', "local": 1' if "local." in body + tail else "")
    text = f"<ir_version: {ir}, opset_import: [{imports}]{header}> {body} {tail}"
    return onnx.parser.parse_model(text)


def session(model: ModelProto) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(model: ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """All outputs in onnxruntime, nothing optimized."""
    return list(session(model).run(None, dict(feeds)))


def array(elem_type: int, dims: Sequence[int], how: str, seed: int = 0) -> np.ndarray:
    """Data of one kind: ``none`` (all zero), ``all`` (no zero) or ``some``."""
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    rng = np.random.default_rng(seed)
    items = int(np.prod(dims, dtype=np.int64))
    if how == "none":
        flat = np.zeros(items)
        if np.issubdtype(dtype, np.floating):
            flat[::2] = -0.0
    elif how == "all":
        flat = np.arange(items) % 100 + 1
    elif elem_type == TensorProto.BOOL:
        flat = rng.random(items) < 0.5
    elif np.issubdtype(dtype, np.floating):
        flat = rng.choice([*SPECIAL, *rng.normal(size=5)], size=items)
    else:
        low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -3
        flat = rng.integers(low, 4, size=items)
    return np.asarray(flat).astype(dtype).reshape(tuple(dims))


def feeds_of(
    model: ModelProto, sizes: Mapping[str, int] | None = None, given: Feeds | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of every kind, for every size of the symbolic dimensions."""
    defaults = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in defaults]
    for default in SIZES:
        for number, how in enumerate(("some", "none", "all", "some")):
            feeds = {}
            for place, value in enumerate(values):
                tensor = value.type.tensor_type
                dims = [
                    dim.dim_value
                    if dim.HasField("dim_value")
                    else (sizes or {}).get(dim.dim_param, default)
                    for dim in tensor.shape.dim
                ]
                feeds[value.name] = array(tensor.elem_type, dims, how, 10 * number + place)
            yield {**feeds, **(given or {})}


def assert_equal(
    original: ModelProto,
    patched: ModelProto,
    feeds: Sequence[Feeds],
    *,
    zero_signs: bool = True,
    reference: bool = True,
) -> int:
    """Bit-equal outputs on all ``feeds``; where the original fails nothing is compared.

    Without ``zero_signs`` -0.0 may be 0.0 in onnxruntime, whose Where returns 0.0 for a -0.0 it
    selects; then ONNX's ``reference`` evaluator judges in its place.

    Returns on how many the original ran.
    """
    left, right = session(original), session(patched)
    names = [output.name for output in original.graph.output]
    assert names == [output.name for output in patched.graph.output]
    ran = 0
    for each in feeds:
        try:
            expected = left.run(names, dict(each))
        except Exception:  # the original does not run on this input: nothing to hold on to
            continue
        ran += 1
        compare(names, expected, right.run(names, dict(each)), each, zero_signs)
    if not zero_signs and reference:
        assert_equal_by_reference(original, patched, feeds)
    return ran


def assert_equal_by_reference(
    original: ModelProto, patched: ModelProto, feeds: Sequence[Feeds]
) -> int:
    """As ``assert_equal``, in ONNX's reference evaluator, which takes every element type."""
    names = [output.name for output in original.graph.output]
    left = ReferenceEvaluator(original)
    right = ReferenceEvaluator(patched, new_ops=[NonZeroPlugin])
    ran = 0
    for each in feeds:
        try:
            expected = left.run(names, dict(each))
        except Exception:  # as above
            continue
        ran += 1
        compare(names, expected, right.run(names, dict(each)), each, True)
    return ran


def compare(
    names: Sequence[str], one: Sequence[Any], other: Sequence[Any], feeds: Feeds, zero_signs: bool
) -> None:
    pairs = zip(map(np.asarray, one), map(np.asarray, other), strict=True)
    for name, (a, b) in zip(names, pairs, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape or not same_bits(a, b, zero_signs):
            texts = [f"{key}={value.tolist()}" for key, value in feeds.items()]
            pytest.fail(
                f"{name}: {a.dtype}{a.shape} {a.tolist()} became {b.dtype}{b.shape} {b.tolist()} "
                f"on {'; '.join(texts)}"[:1500],
                pytrace=False,
            )


def same_bits(one: np.ndarray, other: np.ndarray, zero_signs: bool = True) -> bool:
    """Equal items, -0.0 apart from 0.0; any NaN equals any NaN."""
    if one.dtype.kind in "biuOUS":
        return bool(np.array_equal(one, other))
    one, other = one.astype(np.float64), other.astype(np.float64)  # exact, and takes BFLOAT16
    return bool(
        np.array_equal(one, other, equal_nan=True)
        and (
            not zero_signs
            or np.array_equal(np.signbit(one) & (one == 0), np.signbit(other) & (other == 0))
        )
    )


def rewritten(
    model: ModelProto,
    options: Options | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    given: Feeds | None = None,
    ran: int = 1,
    zero_signs: bool = True,
    **settings: Any,
) -> RewriteResult:
    """Rewrite a copy and prove it equal; at least ``ran`` inputs must run in the original."""
    before = model.SerializeToString(deterministic=True)
    result = rewrite_model(model, options, **settings)
    assert model.SerializeToString(deterministic=True) == before, "the given model was changed"
    onnx.checker.check_model(result.model, full_check=True)
    assert {d.site.id for d in result.plan.decisions} == {s.id for s in find_sites(model)}
    feeds = list(feeds_of(model, sizes, given))
    assert assert_equal(model, result.model, feeds, zero_signs=zero_signs) >= ran
    return result


def ops(model: ModelProto) -> list[str]:
    """Operator types of the main graph, in order, constants left out."""
    return [node.op_type for node in model.graph.node if node.op_type != "Constant"]


def plugins(model: ModelProto) -> list[NodeProto]:
    return [node for node in model.graph.node if (node.op_type, node.domain) == (OP_TYPE, DOMAIN)]


def perm(node: NodeProto) -> list[int]:
    return next(list(attr.ints) for attr in node.attribute if attr.name == "perm")


def outcomes(result: RewriteResult) -> dict[str, str]:
    """What became of each NonZero, by site id."""
    return {decision.site.id: decision.outcome for decision in result.plan.decisions}


def misses(result: RewriteResult) -> dict[str, str]:
    """Rules that almost applied, with the condition that failed."""
    return {rule: text for decision in result.plan.decisions for rule, text in decision.near_misses}


class NonZeroPlugin(OpRun):
    """The operator in NumPy, its readable specification."""

    op_domain = DOMAIN

    def _run(self, x, perm=None, max_nonzero=None, index_type=7, **_: Any):  # type: ignore[no-untyped-def]
        found = np.array(np.nonzero(x), dtype=np.int64).reshape(x.ndim, -1)[:, :max_nonzero]
        dtype = {6: np.int32, 7: np.int64}[index_type]
        return found.transpose(perm).astype(dtype), np.array(found.shape[1], dtype=np.int64)
