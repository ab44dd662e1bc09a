"""NonZero inside model-local functions, one of them called twice.

    pip install onnxscript==0.7.2 onnx onnxruntime
    python models/recipes/onnxscript_functions.py

Written with onnxscript 0.7.2, opset 18. TensorRT sees no functions: its parser inlines them.
"""

import sys
from pathlib import Path

import onnx
import onnxruntime
from onnxscript import FLOAT, INT64, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

masks = Opset("example.masks", 1)


@script(masks)
def select_rows(values, mask):
    indices = op.Transpose(op.NonZero(mask), perm=[1, 0])
    return op.GatherND(values, indices)


@script(masks)
def count_true(mask):
    return op.Gather(op.Shape(op.NonZero(mask)), op.Constant(value_int=1))


@script()
def onnxscript_functions(boxes: FLOAT["n", 4], scores: FLOAT["n"]):  # noqa: F821
    mask = op.Greater(scores, op.Constant(value_float=0.5))
    kept_boxes = select_rows(boxes, mask)
    kept_scores = select_rows(scores, mask)
    count = count_true(mask)
    return kept_boxes, kept_scores, count


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[1] / "onnxscript_functions.onnx"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else path
    model = onnxscript_functions.to_model_proto(output_types=[FLOAT["k", 4], FLOAT["k"], INT64])
    onnx.checker.check_model(model, full_check=True)
    onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    onnx.save(model, path)
    print(path.name, path.stat().st_size, "bytes")
