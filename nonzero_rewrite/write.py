"""Puts a model on disk: whole or not at all, and never without the data files it names."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import EncodeError
from nonzero_plugin.places import not_written, problem_of, remove, words
from onnx import ModelProto

from nonzero_rewrite.errors import ModelLoadError, ModelWriteError
from nonzero_rewrite.load import MAX_PROTOBUF_BYTES, LoadedModel, external_tensors
from nonzero_rewrite.wire import with_weights

_CHUNK = 1 << 22
_NAME_PART = 40
"""Characters of a file's name in that of its temporary: at most 160 bytes of the usual 255."""


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``path`` when the block ends well, and vanishes if not.

    Until then it lies beside ``path``, under a name that starts with a dot and ends in ``.tmp``.

    Raises:
        ModelWriteError: when it cannot be written; what stood at ``path`` is untouched.
    """
    _check_place(path)
    temporary: Path | None = None
    try:
        # A part of the name, since the whole one may already be as long as names can be.
        prefix = f".{path.name[:_NAME_PART]}."
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _use_default_mode(temporary)
        temporary.replace(path)
        temporary = None
    except OSError as err:
        raise ModelWriteError(not_written(path, err)) from err
    finally:
        if temporary is not None:
            remove(temporary)


def _check_place(path: Path) -> None:
    """Refuse what is no place for a file, before anything is made."""
    if problem := problem_of(path):
        raise ModelWriteError(problem)


def check_outputs(outputs: Iterable[Path | None], *inputs: Path | None) -> None:
    """Refuse outputs early: before the work, not after it. None stands for one not asked for.

    Raises:
        ModelWriteError: one is no place for a file, or is one of ``inputs`` or another of
            ``outputs``, be it by another name or through a link.
    """
    others: list[Path] = []
    for path in outputs:
        if path is not None:
            if problem := problem_of(path, inputs, others):
                raise ModelWriteError(problem)
            others.append(path)


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


def check_target(path: Path, source: LoadedModel, *, in_place: bool = False) -> None:
    """Refuse early what ``write_model`` refuses.

    Raises:
        ModelWriteError: ``path`` is no place for a file, the source itself, or a data file of it.
    """
    _check_place(path)
    if in_place and path.is_symlink():
        raise ModelWriteError(
            f"{path}: is a link to {path.resolve()}; name that file to replace it in place"
        )
    if not in_place and _same_file(path, source.path):
        raise ModelWriteError(
            f"{path}: is the input itself; choose another output, or say --in-place"
        )
    for location in source.data_files:
        if _same_file(path, source.path.parent / location) or path == path.parent / location:
            raise ModelWriteError(
                f"{path}: is the name of the model's data file {location!r}; choose another output"
            )


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
    check_target(path, source, in_place=in_place)
    same_folder = _same_file(path.parent, source.path.parent)
    put: tuple[Path, ...] = ()
    relocate = source.data_files and not same_folder
    if relocate and external_data == "relative":
        prefix = _relative(source.path.parent.resolve(), path.parent.resolve(), path)
        for tensor in external_tensors(model):
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = Path(prefix, entry.value).as_posix()
        changed = True
    pieces = _serialize(model, source, path) if changed else None
    if relocate and external_data != "relative":
        put = _place_data(source, path.parent, external_data)
    if pieces is None:
        copy_file(source.path, path)
    elif source.weights:
        with atomic_file(path) as file, _unchanged(source) as original:
            _write_pieces(pieces, original, file)
    else:
        with atomic_file(path) as file:
            file.writelines(piece for piece in pieces if isinstance(piece, bytes))
    return put


@contextlib.contextmanager
def _unchanged(source: LoadedModel) -> Iterator[BinaryIO]:
    """The source, to take weights from: it must still be what was read."""
    try:
        file = source.path.open("rb")
    except OSError as err:
        raise ModelLoadError(f"{source.path}: cannot be read: {words(err)}; check it") from err
    with file:
        status = os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != (source.size, source.modified):
            raise ModelLoadError(
                f"{source.path}: has changed since it was read; run the command again"
            )
        yield file


def _write_pieces(
    pieces: list[bytes | tuple[int, int]], original: BinaryIO, file: BinaryIO
) -> None:
    for piece in pieces:
        if isinstance(piece, bytes):
            file.write(piece)
            continue
        first, last = piece
        original.seek(first)
        for start in range(first, last, _CHUNK):
            data = original.read(min(_CHUNK, last - start))
            if not data:
                raise OSError("the original ended too early")
            file.write(data)


def copy_file(original: Path, path: Path) -> None:
    """Copy a file, whole or not at all.

    Raises:
        ModelLoadError: ``original`` cannot be read.
        ModelWriteError: ``path`` cannot be written.
    """
    try:
        data = original.open("rb")
    except OSError as err:
        raise ModelLoadError(f"{original}: cannot be read: {words(err)}; check it") from err
    with data, atomic_file(path) as file:
        shutil.copyfileobj(data, file, _CHUNK)


def _relative(folder: Path, start: Path, path: Path) -> str:
    try:
        return os.path.relpath(folder, start)
    except ValueError as err:  # Windows has no way from one drive to another
        raise ModelWriteError(
            f"{path}: no relative path leads to the data files in {folder}; "
            "use --external-data copy"
        ) from err


def _serialize(model: ModelProto, source: LoadedModel, path: Path) -> list[bytes | tuple[int, int]]:
    """What the file will hold: bytes, and parts of the source that are taken over."""
    try:
        pieces = list(with_weights(model.SerializeToString(), source.weights))
    except (EncodeError, ValueError) as err:
        raise ModelWriteError(
            f"{path}: the model cannot be serialized ({err}); a model of 2 GiB or more must keep "
            "its weights in external data"
        ) from err
    if sum(len(p) if isinstance(p, bytes) else p[1] - p[0] for p in pieces) > MAX_PROTOBUF_BYTES:
        raise ModelWriteError(f"{path}: the model is over 2 GiB; save it with external data first")
    return pieces


def _same_file(one: Path, other: Path) -> bool:
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
            try:
                if target.samefile(original) or filecmp.cmp(original, target, shallow=False):
                    continue
            except OSError as err:
                raise ModelWriteError(
                    f"{target}: is there already and cannot be read: {words(err)}; "
                    "choose another folder for the output"
                ) from err
            raise ModelWriteError(
                f"{target}: another data file of that name is already there; "
                "choose another folder for the output"
            )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise ModelWriteError(
                f"{target.parent}: cannot be made: {words(err)}; choose another place"
            ) from err
        if how == "link":
            try:
                os.link(original.resolve(), target)
            except OSError as err:
                raise ModelWriteError(
                    f"{target}: cannot be linked to {original}: {words(err)}; "
                    "hard links need one file system: use --external-data copy"
                ) from err
        else:
            copy_file(original, target)
        put.append(target)
    return tuple(put)
