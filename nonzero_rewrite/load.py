"""Turns a path into a model, checking once and loudly what the rest relies on.

Weights in external files are never read; only that their files are there is checked. Of a large
file its weights are not read either, see ``wire``.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from nonzero_rewrite.errors import ModelLoadError, NonZeroRewriteError
from nonzero_rewrite.wire import LARGE_FILE_BYTES, Weights, without_weights

MAX_PROTOBUF_BYTES = 2**31 - 1
"""Protobuf's limit for one message."""


@dataclass(frozen=True)
class LoadedModel:
    """A model and where it came from.

    Attributes:
        model: the protobuf, external data unread, and without the data of ``weights``.
        path: the file.
        size: bytes of the file.
        data_files: external data files, relative to the model's folder, each once.
        weights: large initializers by name, with the part of the file that is their ``raw_data``.
        modified: when the file was written, in nanoseconds.
    """

    model: ModelProto
    path: Path
    size: int
    data_files: tuple[str, ...]
    weights: Weights = field(default_factory=dict)
    modified: int = 0

    def complete(self) -> ModelProto:
        """``model`` itself, with the data of ``weights`` read into it."""
        if self.weights:
            with self.path.open("rb") as file:
                for tensor in self.model.graph.initializer:
                    if tensor.name in self.weights:
                        first, last = self.weights[tensor.name]
                        file.seek(first)
                        tensor.raw_data = file.read(last - first)
        return self.model


@contextmanager
def about(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let what is wrong with a model, found after it was read, name its file."""
    try:
        yield
    except NonZeroRewriteError as err:
        if os.fspath(path) in str(err):
            raise
        raise type(err)(f"{os.fspath(path)}: {err}") from err


def load_model(path: str | os.PathLike[str]) -> LoadedModel:
    """Read an ONNX model without its external data, and a large one without its weights.

    Raises:
        ModelLoadError: when the file is missing, no ONNX protobuf, or names data files that are
            missing or lie outside its folder.
    """
    path = Path(path)
    status = _status(path)
    data, weights = _read(path, status.st_size)
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as err:
        if "MaxDepth" in str(err):
            raise ModelLoadError(
                f"{path}: its graphs lie in each other deeper than protobuf reads (100 messages, "
                "about 32 graphs); export it without so many nested If or Loop"
            ) from err
        raise ModelLoadError(
            f"{path}: not an ONNX model, or a truncated one ({_first_line(err)}); "
            "export or download it again"
        ) from err
    if not model.HasField("graph") or (not model.graph.node and not model.graph.output):
        raise ModelLoadError(
            f"{path}: the file holds no ONNX graph; if it is ONNX text or a .pb of another "
            "framework, convert it first"
        )
    data_files: tuple[str, ...] = ()
    if b"location" in data:
        data_files = tuple(dict.fromkeys(_locations(path, model)))
        _check_data_files(path, data_files)
    return LoadedModel(
        model, path, status.st_size, data_files, weights, modified=status.st_mtime_ns
    )


def _status(path: Path) -> os.stat_result:
    """Of a file that can be a model."""
    try:
        status = path.stat()
    except FileNotFoundError as err:
        raise ModelLoadError(f"{path}: there is no such file; check the path") from err
    except (OSError, ValueError) as err:  # ValueError: a name with a zero byte
        raise ModelLoadError(f"{path}: cannot be read: {_words(err)}; check the path") from err
    if stat.S_ISDIR(status.st_mode):
        raise ModelLoadError(
            f"{path}: is a folder, not a model; name a file in it, or use --output-dir for all"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ModelLoadError(f"{path}: is a device or a pipe, not a file; save the model first")
    if status.st_size > MAX_PROTOBUF_BYTES:
        raise ModelLoadError(
            f"{path}: {status.st_size} bytes in one file are more than protobuf's limit of 2 GiB; "
            "save the model with external data"
        )
    return status


def _read(path: Path, size: int) -> tuple[bytes, Weights]:
    """The bytes of a model; those of a large file without its weights, which are only noted."""
    try:
        with path.open("rb") as file:
            if size >= LARGE_FILE_BYTES:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    light, weights = without_weights(mapped)
                if light is not None:
                    return light, weights
            return file.read(), {}
    except MemoryError as err:
        raise ModelLoadError(
            f"{path}: too large for this machine's memory; save it with external data"
        ) from err
    except OSError as err:
        raise ModelLoadError(
            f"{path}: cannot be read: {_words(err)}; check its permissions"
        ) from err


def _words(err: Exception) -> str:
    return getattr(err, "strerror", None) or str(err)


def _first_line(err: Exception) -> str:
    return str(err).strip().splitlines()[0] if str(err).strip() else type(err).__name__


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model, wherever they are, whose data lies in another file."""
    nodes: list[NodeProto] = []
    graphs = [model.graph]
    for training in model.training_info:
        graphs += [training.initialization, training.algorithm]
    for function in model.functions:
        nodes += function.node
    while graphs or nodes:
        tensors: list[TensorProto] = []
        if graphs:
            graph = graphs.pop()
            nodes += graph.node
            tensors += graph.initializer
            tensors += _parts(graph.sparse_initializer)
        else:
            for attr in nodes.pop().attribute:
                if attr.type == AttributeProto.TENSOR:
                    tensors.append(attr.t)
                elif attr.type == AttributeProto.GRAPH:
                    graphs.append(attr.g)
                elif attr.type == AttributeProto.SPARSE_TENSOR:
                    tensors += _parts([attr.sparse_tensor])
                else:
                    tensors += attr.tensors
                    tensors += _parts(attr.sparse_tensors)
                    graphs += attr.graphs
        for tensor in tensors:
            if tensor.data_location == TensorProto.EXTERNAL:
                yield tensor


def _parts(sparse: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    for tensor in sparse:
        yield tensor.values
        yield tensor.indices


def _locations(path: Path, model: ModelProto) -> Iterator[str]:
    for tensor in external_tensors(model):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if bytes in map(type, (*entries, *entries.values())):  # what protobuf could not decode
            raise ModelLoadError(
                f"{path}: what it says of its external data is not UTF-8 text, so the file is "
                "damaged; export or download it again"
            )
        location = entries.get("location")
        if not location:
            raise ModelLoadError(
                f"{path}: tensor {tensor.name!r} has external data without a file name; "
                "export the model again"
            )
        for key in ("offset", "length"):
            value = entries.get(key, "0")
            if not value.isdecimal():
                raise ModelLoadError(
                    f"{path}: tensor {tensor.name!r} has external data with {key} {value!r}, "
                    "which is no size; export the model again"
                )
        yield location


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that the file system cannot have
        return False


def _check_data_files(path: Path, locations: tuple[str, ...]) -> None:
    folder = path.parent.resolve()
    for location in locations:
        pure = Path(location)
        if pure.is_absolute() or pure.drive or ".." in pure.parts or "\0" in location:
            raise ModelLoadError(
                f"{path}: external data file {location!r} lies outside the model's folder, which "
                "onnx and onnxruntime refuse as well; save the model again beside its data"
            )
        target = folder / pure
        if not _is_file(target):
            raise ModelLoadError(
                f"{path}: external data file {location!r} is missing; "
                f"put it beside the model in {path.parent}"
            )
        if not target.resolve().is_relative_to(folder):
            raise ModelLoadError(
                f"{path}: external data file {location!r} is a link that leaves the model's "
                "folder; put the file itself there"
            )
