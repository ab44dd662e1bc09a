"""What the bytes of an engine say about its plugins, without deserializing it.

There is no public call for that before an engine is loaded. The layout is undocumented, so what is
read here only ever explains; nothing decides by it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

from nonzero_plugin.contract import PLUGIN_NAME
from nonzero_plugin.onnx_file import explain_mismatch
from nonzero_plugin.registry import OURS, PluginTriple, registered

_MISSING = re.compile(
    r"Cannot find plugin|[Cc]reator.* not found|not found in [Pp]lugin [Rr]egistry|getPluginCreator"
)


def plugin_triples(plan: bytes) -> list[PluginTriple]:
    """Our plugin's triples as stored, once each: name, version and namespace, length-prefixed."""
    found = []
    for match in re.finditer(re.escape(PLUGIN_NAME.encode()), plan):
        position = match.start()
        texts: list[str] = []
        size = _length_before(plan, position)
        while size is not None and len(texts) < 3:
            texts.append(plan[position : position + size].decode("utf-8", "replace"))
            step = _next_string(plan, position + size)
            if step is None:
                break
            position, size = step
        if len(texts) == 3 and texts[0] == PLUGIN_NAME:
            found.append(PluginTriple(*texts))
    return list(dict.fromkeys(found))


def plugin_layers(plan: bytes) -> list[str]:
    """One entry per stored plugin of ours; their node names are not stored beside them."""
    return [str(triple) for triple in plugin_triples(plan)]


def explain_load_failure(
    name: str, version: str, messages: Sequence[str], plan: bytes, trt: Any
) -> str:
    """Why ``deserialize_cuda_engine`` gave None, in TensorRT's words and then in ours."""
    told = "; ".join(dict.fromkeys(messages[-3:])) or "it gave no reason"
    text = f"{name}: {version} could not load the engine: {told}"
    wanted = plugin_triples(plan) or [OURS]
    present = list(registered(trt))
    lacking = [triple for triple in wanted if triple not in present]
    if lacking or any(_MISSING.search(message) for message in messages):
        triple = (lacking or wanted)[0]
        text += (
            f"; the engine needs plugin {triple}"
            + (f", but {explain_mismatch(triple, present)}" if lacking else "")
            + ": call nonzero_plugin.register() in this process before loading it"
        )
    return text


def _length_before(plan: bytes, position: int) -> int | None:
    if position < 8:
        return None
    (length,) = struct.unpack_from("<Q", plan, position - 8)
    return length if 0 < length < 1 << 16 else None


def _next_string(plan: bytes, end: int) -> tuple[int, int] | None:
    """The next length-prefixed printable text within a few bytes, skipping the writer's tags."""
    for position in range(end + 8, end + 64):
        size = _length_before(plan, position)
        if size is not None and size < 256 and position + size <= len(plan):
            text = plan[position : position + size]
            if len(text) == size and all(32 <= byte < 127 for byte in text):
                return position, size
    return None
