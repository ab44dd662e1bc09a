"""Puts a model on disk: whole or not at all, and never without the data files it names."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import EncodeError
from onnx import ModelProto

from nonzero_rewrite.errors import ModelWriteError
from nonzero_rewrite.load import MAX_PROTOBUF_BYTES, LoadedModel, external_tensors

DATA_CHOICES = ("copy", "link", "relative")
"""What becomes of external data when the output lies in another folder."""


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``path`` when the block ends well, and vanishes if not.

    Raises:
        ModelWriteError: when it cannot be written; what stood at ``path`` is untouched.
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _use_default_mode(temporary)
        temporary.replace(path)
        temporary = None
    except OSError as err:
        raise ModelWriteError(
            f"{path}: cannot be written: {err.strerror or err}; choose another place or make room"
        ) from err
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _use_default_mode(path: Path) -> None:
    """``mkstemp`` makes private files; an output gets what any new file gets."""
    if os.name == "posix":
        mask = os.umask(0)
        os.umask(mask)
        path.chmod(0o666 & ~mask)


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, whole or not at all."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def write_model(
    model: ModelProto,
    source: LoadedModel,
    path: Path,
    *,
    changed: bool = True,
    external_data: str = "copy",
    in_place: bool = False,
) -> tuple[Path, ...]:
    """Write ``model``, made from ``source``, to ``path``.

    Args:
        model: the model to write.
        source: where it came from; its data files are taken along when ``path`` is in another
            folder.
        path: the output file.
        changed: False writes the source's own bytes.
        external_data: ``"copy"`` the data files, hard ``"link"`` them, or name them by a
            ``"relative"`` path (newer onnxruntime refuses those outside the model's folder).
        in_place: allow ``path`` to be the source itself.

    Returns:
        The data files that were put beside the output.

    Raises:
        ModelWriteError: when the output cannot be written, would overwrite the input, or would
            replace a data file of another model. Nothing is left half written.
    """
    if path.is_dir():
        raise ModelWriteError(f"{path}: is a folder; name a file in it")
    if path.exists() and path.samefile(source.path) and not in_place:
        raise ModelWriteError(
            f"{path}: is the input itself; choose another output, or say --in-place"
        )
    same_folder = _same_folder(path.parent, source.path.parent)
    put: tuple[Path, ...] = ()
    relocate = source.data_files and not same_folder
    if relocate and external_data == "relative":
        prefix = _relative(source.path.parent.resolve(), path.parent.resolve(), path)
        for tensor in external_tensors(model):
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = Path(prefix, entry.value).as_posix()
        changed = True
    data = _serialize(model, path) if changed else None
    if relocate and external_data != "relative":
        put = _place_data(source, path.parent, external_data)
    with atomic_file(path) as file:
        if data is not None:
            file.write(data)
        else:
            with source.path.open("rb") as original:
                shutil.copyfileobj(original, file)
    return put


def _relative(folder: Path, start: Path, path: Path) -> str:
    try:
        return os.path.relpath(folder, start)
    except ValueError as err:  # Windows has no way from one drive to another
        raise ModelWriteError(
            f"{path}: no relative path leads to the data files in {folder}; "
            "use --external-data copy"
        ) from err


def _serialize(model: ModelProto, path: Path) -> bytes:
    try:
        data: bytes = model.SerializeToString()
    except (EncodeError, ValueError) as err:
        raise ModelWriteError(
            f"{path}: the model cannot be serialized ({err}); a model of 2 GiB or more must keep "
            "its weights in external data"
        ) from err
    if len(data) > MAX_PROTOBUF_BYTES:
        raise ModelWriteError(f"{path}: the model is over 2 GiB; save it with external data first")
    return data


def _same_folder(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _place_data(source: LoadedModel, folder: Path, how: str) -> tuple[Path, ...]:
    """Copy or link the data files; an existing one must be equal."""
    put = []
    for location in source.data_files:
        original, target = source.path.parent / location, folder / location
        if target.exists():
            if target.samefile(original) or filecmp.cmp(original, target, shallow=False):
                continue
            raise ModelWriteError(
                f"{target}: another data file of that name is already there; "
                "choose another folder for the output"
            )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise ModelWriteError(f"{target.parent}: cannot be made: {err.strerror}") from err
        if how == "link":
            try:
                os.link(original.resolve(), target)
            except OSError as err:
                raise ModelWriteError(
                    f"{target}: cannot be linked to {original}: {err.strerror or err}; "
                    "hard links need one file system: use --external-data copy"
                ) from err
        else:
            with atomic_file(target) as file, original.open("rb") as data:
                shutil.copyfileobj(data, file, 1 << 22)
        put.append(target)
    return tuple(put)
