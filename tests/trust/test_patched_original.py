"""A model that is patched already is an original like any other: for rewrite, verify, restore."""

from __future__ import annotations

import onnx
import pytest
from helpers import wrong_rewrites as wrong
from helpers.graphs import parse

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.restore import restore_model
from nonzero_rewrite.verify import verify_models


def copy(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_it_equals_itself_and_what_restore_makes_of_it(rank: int) -> None:
    patched = rewrite_model(wrong.original(rank=rank)).model
    restored = copy(patched)
    assert restore_model(restored)
    for other in (patched, restored, rewrite_model(restored).model):
        result = verify_models(patched, other)
        assert result.ok, result.reason
        assert all(c.none and c.some and c.all for c in result.coverage), result.coverage


def test_wrong_indices_are_noticed_against_it() -> None:
    original = wrong.original(rank=2)
    patched = wrong.patched(original)
    for name in ("swapped_layout", "unsorted_order", "last_one_missing", "count_off_by_one"):
        assert not verify_models(patched, wrong.patched(original, wrong.BODIES[name]())).ok, name


def test_32_bit_indices_are_read_as_what_they_are() -> None:
    patched = rewrite_model(
        parse(
            """g (float[n, m] x) => (int32[k, 2] pairs) {
                indices = NonZero(x)
                turned = Transpose<perm = [1, 0]>(indices)
                pairs = Cast<to = 6>(turned)
            }"""
        )
    ).model
    plugin = next(node for node in patched.graph.node if node.op_type == "NonZeroPlugin")
    cast = next(node for node in patched.graph.node if node.op_type == "Cast")
    next(a for a in plugin.attribute if a.name == "index_type").i = 6
    plugin.output[0] = cast.output[0]
    patched.graph.node.remove(cast)
    del patched.graph.value_info[:]
    onnx.checker.check_model(patched)
    result = verify_models(patched, patched)
    assert result.ok, result.reason
