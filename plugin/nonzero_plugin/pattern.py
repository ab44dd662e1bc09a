"""Found by path: ``polygraphy plugin list|match|replace --plugin-dir plugin``.

The three functions are what that tool asks a plugin for; the work is done by the rewriter, which
lies in the same distribution, so that the two cannot disagree.
"""

from __future__ import annotations

from typing import Any

from nonzero_plugin.contract import OP_TYPE


def get_plugin_metadata() -> dict[str, Any]:
    """The folder's name, by which the tool finds this file again, and the operator."""
    return {"name": "nonzero_plugin", "op": OP_TYPE}


def get_matching_subgraphs(graph: Any) -> list[dict[str, Any]]:
    """Inputs, outputs and attributes of each plugin node that the graph would get."""
    from nonzero_rewrite.graphsurgeon import find_matches

    return find_matches(graph)


def replace_with_plugin(
    graph: Any, input_tensors: list[Any], output_tensors: list[Any], attrs: Any, op: str
) -> Any:
    """Put one plugin node into the graph."""
    from nonzero_rewrite.graphsurgeon import replace_match

    return replace_match(graph, input_tensors, output_tensors, attrs, op)
