"""The child process that builds: JSON in on stdin, JSON lines out on stdout.

TensorRT writes to the standard streams as it likes, and may end its process. So the protocol has
a stream of its own (a copy of stdout; descriptor 1 then points at stderr), and whatever is printed
last is the parent's explanation.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from nonzero_plugin.errors import ContractError, EngineBuildError, NonZeroPluginError
from nonzero_plugin.places import remove


def main() -> int:
    """Reads one request, builds, reports; 0 when the engine was written."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    lock = threading.Lock()

    def emit(event: str, **data: Any) -> None:
        with lock:
            channel.write(json.dumps({"event": event, **data}) + "\n")
            channel.flush()

    request = json.loads(sys.stdin.readline())
    temporary = Path(request["temporary"])
    threading.Thread(target=_end_with_parent, args=(temporary,), daemon=True).start()
    try:
        from nonzero_plugin.build_types import BuildOptions
        from nonzero_plugin.builder import build

        facts = build(
            Path(request["model"]),
            Path(request["engine"]),
            BuildOptions.from_dict(request["options"]),
            emit,
            temporary=temporary,
        )
    except NonZeroPluginError as error:
        emit(
            "error",
            text=_about(request["model"], error),
            phase=_phase_of(error),
            node=getattr(error, "node", None),
            messages=list(error.messages) if isinstance(error, EngineBuildError) else [],
        )
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception:
        emit("crash", text=traceback.format_exc())
        return 1
    emit("result", **facts)
    return 0


def _phase_of(error: NonZeroPluginError) -> str:
    if isinstance(error, EngineBuildError):
        return error.phase
    return "options" if isinstance(error, ContractError) else "import"


def _about(model: str, error: NonZeroPluginError) -> str:
    """The error's sentence; what is wrong between options and model names the model."""
    return f"{model}: {error}" if isinstance(error, ContractError) else str(error)


def _end_with_parent(temporary: Path) -> None:
    """The parent keeps stdin open: its end means there is nobody left to build for."""
    while os.read(0, 1):
        pass
    remove(temporary)
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
