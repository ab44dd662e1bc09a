"""Turns a path into a model, checking once and loudly what the rest relies on.

Weights in external files are never read; only that their files are there is checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from nonzero_rewrite.errors import ModelLoadError

MAX_PROTOBUF_BYTES = 2**31 - 1
"""Protobuf's limit for one message."""


@dataclass(frozen=True)
class LoadedModel:
    """A model and where it came from.

    Attributes:
        model: the protobuf, external data unread.
        path: the file.
        size: bytes of the file.
        data_files: external data files, relative to the model's folder, each once.
    """

    model: ModelProto
    path: Path
    size: int
    data_files: tuple[str, ...]


def load_model(path: str | os.PathLike[str]) -> LoadedModel:
    """Read an ONNX model without its external data.

    Raises:
        ModelLoadError: when the file is missing, no ONNX protobuf, or names data files that are
            missing or lie outside its folder.
    """
    path = Path(path)
    data = _read(path)
    if len(data) > MAX_PROTOBUF_BYTES:
        raise ModelLoadError(
            f"{path}: {len(data)} bytes in one file are more than protobuf's limit of 2 GiB; "
            "save the model with external data"
        )
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
        try:
            data_files = tuple(dict.fromkeys(_locations(path, model)))
        except UnicodeDecodeError as err:
            raise ModelLoadError(
                f"{path}: what it says of its external data is not UTF-8 text, so the file is "
                "damaged; export or download it again"
            ) from err
        _check_data_files(path, data_files)
    return LoadedModel(model, path, len(data), data_files)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as err:
        raise ModelLoadError(f"{path}: there is no such file; check the path") from err
    except IsADirectoryError as err:
        raise ModelLoadError(
            f"{path}: is a folder, not a model; name a file in it, or use --output-dir for all"
        ) from err
    except MemoryError as err:
        raise ModelLoadError(f"{path}: too large for this machine's memory") from err
    except OSError as err:
        if path.is_dir():  # Windows reports a folder as a permission error
            raise ModelLoadError(f"{path}: is a folder, not a model; name a file in it") from err
        raise ModelLoadError(f"{path}: cannot be read: {err.strerror or err}") from err


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
