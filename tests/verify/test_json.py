"""The JSON that a verification becomes, whole: its keys and defaults are a promise."""

from __future__ import annotations

import json
import time
from typing import Any

import onnx
import onnxruntime
import pytest
from helpers import build
from helpers.graphs import parse

from nonzero_rewrite import rewrite_model, verify_models
from nonzero_rewrite.verification import OutputParity


def data_of(original: onnx.ModelProto, patched: onnx.ModelProto) -> dict[str, Any]:
    started = time.monotonic()
    result = verify_models(original, patched)
    elapsed = time.monotonic() - started
    data: dict[str, Any] = json.loads(json.dumps(result.to_dict()))
    assert 0 <= data.pop("seconds") <= elapsed + 0.001
    return data


def test_equal_models_give_this() -> None:
    model = parse("g (bool[2] x) => (int64[1, k] i) { i = NonZero(x) }")
    data = data_of(model, rewrite_model(model).model)
    (runtime,) = data.pop("runtimes")
    assert runtime == f"onnxruntime {onnxruntime.__version__} (CPU)"
    cases, selected, coverage = (data.pop(key) for key in ("cases", "selected", "coverage"))
    assert data == {
        "format_version": 1,
        "ok": True,
        "original": "original",
        "patched": "patched",
        "outcome": "equal",
        "reason": "",
        "seed": 0,
        "rtol": 0.0,
        "atol": 0.0,
        "outputs": [
            {
                "name": "i",
                "cases": len(cases),
                "equal": len(cases),
                "difference": "",
                "unstable": False,
            }
        ],
        "unobserved": [],
        "differences": [],
        "notes": [],
    }
    for each in cases:
        assert each == {
            "name": each["name"],
            "origin": "searched",
            "shapes": {"x": "2"},
            "compared": True,
            "note": "",
        }
    for each in selected:
        assert each == {
            "node": "i",
            "input": "x",
            "case": each["case"],
            "selected": each["patched"],
            "items": 2,
            "patched": each["patched"],
            "over_promise": False,
        }
    assert {each["selected"] for each in selected} == {0, 1, 2}
    assert [(each["node"], each["none"], each["some"], each["all"]) for each in coverage] == [
        ("i", True, True, True)
    ]


def test_another_interface_gives_this() -> None:
    model = build.nonzero()
    other = rewrite_model(model).model
    other.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    data = data_of(model, other)
    (difference,) = data["differences"]
    text = "graph output 'indices' has type INT64 in the original, INT32 in the patched"
    assert (data["ok"], data["outcome"], data["reason"]) == (False, "different", text)
    assert difference == {
        "kind": "interface differs",
        "tensor": "indices",
        "case": "",
        "text": text,
        "index": None,
        "original": "",
        "patched": "",
        "differing": 0,
        "items": 0,
        "node": "",
    }
    assert [(o["cases"], o["equal"]) for o in data["outputs"]] == [(0, 0)]


@pytest.mark.parametrize(
    ("cases", "equal", "ok"), [(0, 0, False), (1, 1, True), (2, 1, False), (2, 2, True)]
)
def test_an_output_is_equal_in_every_case_and_in_at_least_one(
    cases: int, equal: int, ok: bool
) -> None:
    assert OutputParity("y", cases, equal, "", unstable=False).ok is ok
