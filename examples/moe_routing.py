"""Mixture of experts: promise how many tokens an expert gets, and see what breaks the promise.

TensorRT plans memory behind a NonZero for the case that every item is selected. A promise caps it:
here each expert takes at most ``CAPACITY`` of (token, choice) pairs.

    python examples/moe_routing.py
"""

from __future__ import annotations

import numpy as np

from nonzero_rewrite import rewrite_model, verify_models

MODEL = "models/moe_block.onnx"
TOKENS = 14

rng = np.random.default_rng(0)
feeds = {"hidden": rng.normal(size=(2, TOKENS // 2, 16)).astype(np.float32)}

for capacity in (2 * TOKENS, 1):
    patched = rewrite_model(MODEL, max_nonzero=capacity).model
    verification = verify_models(MODEL, patched, inputs=[feeds])
    print(f"at most {capacity} pairs an expert: {verification.outcome}")
    for difference in verification.differences[:1]:
        print(f"  {difference.tensor}: {difference.text}")
