"""The user's own inputs: ``.npz`` files, and which array belongs to which graph input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nonzero_rewrite.errors import VerificationError
from nonzero_rewrite.input_specs import ModelSpec
from nonzero_rewrite.runtime import Feeds


def bind_inputs(spec: ModelSpec, feeds: Feeds, name: str = "inputs") -> dict[str, Any]:
    """The user's arrays under graph input names; ``i0, i1, ...`` count graph inputs.

    Raises:
        VerificationError: an input is missing, or a name fits none.
    """
    names = [item.name for item in spec.inputs]
    numbered = {f"i{position}": item for position, item in enumerate(names)}
    # Files often hold expected outputs beside the inputs; those follow the same numbering.
    given = {key: value for key, value in feeds.items() if not _is_expected_output(key, names)}
    bound = {key if key in names else numbered.get(key, key): v for key, v in given.items()}
    if unknown := sorted(bound.keys() - set(names)):
        raise VerificationError(
            f"{name}: {', '.join(map(repr, unknown))} is no input of the model; "
            f"its inputs are {', '.join(map(repr, names)) or 'none'}"
        )
    if missing := [item for item in names if item not in bound]:
        raise VerificationError(
            f"{name}: no value for {', '.join(map(repr, missing))}; give arrays named after the "
            "graph inputs, or i0, i1, ... in their order"
        )
    return bound


def load_inputs(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file, never unpickled.

    Raises:
        VerificationError: the file cannot be read, or holds pickled objects.
    """
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise VerificationError(f"{path}: is a single array; save with numpy.savez")
        with file:
            return {key: file[key] for key in file.files}
    except VerificationError:
        raise
    except OSError as err:
        raise VerificationError(
            f"{path}: cannot be read: {err.strerror or err}; check the path"
        ) from err
    except (ValueError, EOFError) as err:
        raise VerificationError(
            f"{path}: is no .npz file of plain arrays ({err}); strings must be saved with a "
            "fixed width (dtype 'U')"
        ) from err
    except Exception as err:  # zipfile.BadZipFile and zlib.error share no base
        raise VerificationError(f"{path}: is damaged ({err}); save it again") from err


def _is_expected_output(key: str, names: Sequence[str]) -> bool:
    return key[:1] == "o" and key[1:].isdigit() and key not in names
