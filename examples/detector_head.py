"""A detection head: three masks of one score become one plugin node, and detections stay equal.

python examples/detector_head.py [MODEL]
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime

from nonzero_rewrite import rewrite_model, verify_models

model = sys.argv[1] if len(sys.argv) > 1 else "models/yolo_score_head.onnx"

result = rewrite_model(model)
for decision in result.plan.decisions:
    print(f"{decision.site.node}: {decision.summary}")

verification = verify_models(model, result.model)
print(f"parity: {verification.outcome}")

# The patched model is still an ONNX model: plain onnxruntime runs it.
session = onnxruntime.InferenceSession(
    result.model.SerializeToString(), providers=["CPUExecutionProvider"]
)
image = np.random.default_rng(0).normal(size=(1, 3, 64, 96)).astype(np.float32)
for output, value in zip(session.get_outputs(), session.run(None, {"image": image}), strict=True):
    print(f"{output.name}: {value.dtype}{list(value.shape)}")

sys.exit(0 if verification.ok else 3)
