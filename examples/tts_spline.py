"""A text-to-speech spline: what goes, what stays, and a plan that a person decides about.

python examples/tts_spline.py
"""

from __future__ import annotations

import json

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.plan import options_from_json

MODEL = "models/tts_spline.onnx"

result = rewrite_model(MODEL)
nodes = sum(node.op_type == "NonZeroPlugin" for node in result.model.graph.node)
print(f"{len(result.plan.decisions)} NonZero, {nodes} plugin node left")
for decision in result.plan.decisions:
    print(f"  {decision.site.node}: {decision.outcome} by {', '.join(decision.rules)}")

# The same as `--dry-run --plan plan.json`, an editor, and `--plan plan.json`.
plan = json.loads(result.plan.to_json())
for entry in plan["decisions"]:
    if entry["outcome"] == "removed":
        entry["outcome"] = "plugin"
edited = rewrite_model(MODEL, options_from_json(json.dumps(plan)))
nodes = sum(node.op_type == "NonZeroPlugin" for node in edited.model.graph.node)
print(f"with nothing eliminated: {nodes} plugin nodes")
