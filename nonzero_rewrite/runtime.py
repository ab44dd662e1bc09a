"""Running a model on the CPU, with inner tensors as extra outputs and without copying weights.

A model is compared as it is written: onnxruntime's graph optimisations are off, so that asking for
an inner tensor, or replacing one node, cannot change how any other node is computed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import onnx

from nonzero_rewrite.errors import ModelLoadError, VerificationError
from nonzero_rewrite.rounding import has_float16, keep_rounding

logger = logging.getLogger(__name__)

Feeds = Mapping[str, Any]
"""Graph input name to value: an array, a list of arrays (sequence) or None (empty optional)."""

REFERENCE_MAX_BYTES = 64 * 1024 * 1024
"""Above this size a model is not handed to ``onnx.reference``, which is much slower."""

LARGE_BYTES = 128 * 1024 * 1024
"""Files from this size on are handed to onnxruntime as files."""

_KEEP_BYTES = 1024
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
# Element types that onnxruntime's Python API does not exchange with NumPy.
_NO_NUMPY_EXCHANGE = frozenset(
    value
    for name, value in onnx.TensorProto.DataType.items()
    if name.startswith(("BFLOAT", "FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2"))
)


class RunError(Exception):
    """The model does not load or does not run on these inputs; the text is the runtime's own."""


class Runner(Protocol):
    """Runs one model; ``name`` says in what, with its version."""

    name: str

    def run(self, outputs: Sequence[str], feeds: Feeds) -> list[Any]:
        """Values of the named tensors. Raises RunError with the runtime's words."""
        ...


@dataclass(frozen=True)
class ModelSource:
    """A model to run: its bytes on demand, and its graph without the large weights.

    ``skeleton`` has the names, types and dims of all initializers, but no data of those above one
    kilobyte: enough to read the graph, too little to run it.
    """

    label: str
    skeleton: onnx.ModelProto
    folder: Path | None
    path: Path | None
    proto: onnx.ModelProto | None

    @classmethod
    def of(
        cls, model: str | Path | onnx.ModelProto, *, label: str, folder: Path | None = None
    ) -> ModelSource:
        """Read a path, or take a model in memory whose external data lies in ``folder``.

        Raises:
            ModelLoadError: when the file is missing or is no ONNX model.
        """
        if isinstance(model, onnx.ModelProto):
            return cls(label, _skeleton(model, copy=True), folder, None, model)
        path = Path(model)
        try:
            proto = onnx.load_model(path, load_external_data=False)
        except OSError as err:
            raise ModelLoadError(
                f"{path}: cannot be read: {err.strerror or err}; check the path"
            ) from err
        except Exception as err:  # protobuf's DecodeError has no importable common base
            raise ModelLoadError(
                f"{path}: not an ONNX model, or a truncated one ({err}); "
                "export or download it again"
            ) from err
        return cls(str(path), _skeleton(proto, copy=False), path.resolve().parent, path, None)

    def with_outputs(self, names: Sequence[str]) -> bytes:
        """The serialized model with ``names`` as additional graph outputs.

        Messages of protobuf merge when their bytes are concatenated, so the weights are neither
        parsed nor copied for it.
        """
        data = self._bytes()
        if has_float16(self.skeleton):
            model = onnx.load_model_from_string(data)
            keep_rounding(model)
            data = model.SerializeToString()
        return data + _more_outputs(names)

    def _bytes(self) -> bytes:
        if self.proto is None:
            assert self.path is not None
            return self.path.read_bytes()
        data: bytes = self.proto.SerializeToString()
        return data

    @contextmanager
    def loadable(self, names: Sequence[str]) -> Iterator[bytes | str]:
        """What onnxruntime loads: bytes, or for a large file the path of a copy, which costs less
        memory; the copy lies in the system's temporary folder and is gone afterwards.
        """
        as_bytes = self._external or has_float16(self.skeleton)
        if self.path is None or self.path.stat().st_size < LARGE_BYTES or as_bytes:
            yield self.with_outputs(names)
        elif not names:
            yield str(self.path)
        else:
            with TemporaryDirectory(
                prefix="nonzero-rewrite-", ignore_cleanup_errors=True
            ) as folder:
                copy = Path(folder) / "model.onnx"
                shutil.copyfile(self.path, copy)
                with copy.open("ab") as file:
                    file.write(_more_outputs(names))
                yield str(copy)

    @property
    def _external(self) -> bool:
        tensors = self.skeleton.graph.initializer
        return any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors)


def _more_outputs(names: Sequence[str]) -> bytes:
    extra = onnx.ModelProto()
    if names:
        extra.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    data: bytes = extra.SerializeToString()
    return data


def _skeleton(model: onnx.ModelProto, *, copy: bool) -> onnx.ModelProto:
    """``model`` without the bytes of large initializers (``copy``: leave the argument as it is)."""
    if not copy:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) > _KEEP_BYTES:
                tensor.ClearField("raw_data")
        return model
    graph = model.graph
    light = onnx.GraphProto(
        name=graph.name,
        node=graph.node,
        input=graph.input,
        output=graph.output,
        value_info=graph.value_info,
        initializer=[_light(tensor) for tensor in graph.initializer],
        sparse_initializer=graph.sparse_initializer,
    )
    return onnx.ModelProto(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        functions=model.functions,
        graph=light,
    )


def _light(tensor: onnx.TensorProto) -> onnx.TensorProto:
    if len(tensor.raw_data) <= _KEEP_BYTES:
        return tensor
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


class OrtRunner:
    """onnxruntime on the CPU, graph optimisations off."""

    def __init__(self, source: ModelSource, extra_outputs: Sequence[str] = (), seed: int = 0):
        try:
            import onnxruntime as ort
        except ImportError as err:
            raise VerificationError(
                "verification needs onnxruntime, which cannot be imported; "
                f"pip install onnxruntime ({err})"
            ) from err
        self.name = f"onnxruntime {ort.__version__} (CPU)"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        if source.folder is not None:
            options.add_session_config_entry(_EXTERNAL_FOLDER, str(source.folder))
        ort.set_seed(seed)
        try:
            with source.loadable(extra_outputs) as model:
                self._session = ort.InferenceSession(
                    model, options, providers=["CPUExecutionProvider"]
                )
        except Exception as err:  # onnxruntime's exceptions share no base but Exception
            raise RunError(_words(err)) from err

    def run(self, outputs: Sequence[str], feeds: Feeds) -> list[Any]:
        """See Runner."""
        try:
            return list(self._session.run(list(outputs), dict(feeds)))
        except Exception as err:
            raise RunError(_words(err)) from err


class ReferenceRunner:
    """onnx.reference: for operators and types onnxruntime's CPU provider has no kernel for."""

    def __init__(self, source: ModelSource, extra_outputs: Sequence[str] = ()):
        from onnx.reference import ReferenceEvaluator

        self.name = f"onnx.reference {onnx.__version__}"
        self._inputs = [value.name for value in source.skeleton.graph.input]
        data = source.with_outputs(extra_outputs)
        if len(data) > REFERENCE_MAX_BYTES:
            raise RunError(f"{len(data) >> 20} MB are too much for onnx.reference")
        try:
            model = onnx.load_model_from_string(data)
            if source.folder is not None:
                onnx.load_external_data_for_model(model, str(source.folder))
            self._evaluator = ReferenceEvaluator(model)
        except Exception as err:  # any Python error of any operator
            raise RunError(_words(err)) from err

    def run(self, outputs: Sequence[str], feeds: Feeds) -> list[Any]:
        """See Runner."""
        try:
            with np.errstate(all="ignore"):
                return list(self._evaluator.run(list(outputs), dict(feeds)))
        except Exception as err:
            raise RunError(_words(err)) from err


def open_runner(source: ModelSource, extra_outputs: Sequence[str] = (), seed: int = 0) -> Runner:
    """onnxruntime, or onnx.reference where onnxruntime refuses the model and it is small.

    Raises:
        RunError: when neither takes the model; the text has the words of both.
    """
    graph = source.skeleton.graph
    types = {
        value.type.tensor_type.elem_type
        for value in (*graph.input, *graph.output)
        if value.type.HasField("tensor_type")
    }
    try:
        if types & _NO_NUMPY_EXCHANGE:
            raise RunError(
                "a graph input or output has a type onnxruntime shares with no NumPy type"
            )
        return OrtRunner(source, extra_outputs, seed)
    except RunError as err:
        logger.info("%s: %s; trying onnx.reference", source.label, err)
        try:
            return ReferenceRunner(source, extra_outputs)
        except RunError as second:
            raise RunError(f"{err}; onnx.reference: {second}") from err


def same_kind(runner: Runner, source: ModelSource, extra: Sequence[str], seed: int = 0) -> Runner:
    """A runner of the class of ``runner``, so that both sides are computed by the same code."""
    if isinstance(runner, ReferenceRunner):
        return ReferenceRunner(source, extra)
    return OrtRunner(source, extra, seed)


def _words(err: Exception) -> str:
    """The runtime's message on one line, without its decoration."""
    text = " ".join(str(err).split()) or type(err).__name__
    return text.removeprefix("[ONNXRuntimeError] : ")[:600]
