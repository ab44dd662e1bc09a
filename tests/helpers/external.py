"""A model whose weights lie in another file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers.graphs import parse
from onnx import TensorProto

TEXT = """g (float[n,4] x) => (float[k] y, float[n,8] z) {
    m = Greater(x, h) i = NonZero(m) t = Transpose <perm = [1, 0]> (i) y = GatherND(x, t)
    a = MatMul(x, w) z = Add(a, b) }"""


def external(name: str, array: np.ndarray, location: str, offset: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def save(folder: Path, location: str = "weights.bin", hole: int = 0) -> Path:
    """Three tensors in one file at offsets, and one more that takes no room on the disk."""
    model = parse(TEXT)
    data = folder / location
    data.parent.mkdir(parents=True, exist_ok=True)
    with data.open("wb") as file:
        for name, value in (
            ("h", np.array(0.5, np.float32)),
            ("w", np.arange(32, dtype=np.float32).reshape(4, 8)),
            ("b", np.ones(8, np.float32)),
        ):
            file.seek(-(-file.tell() // 4096) * 4096)
            model.graph.initializer.append(external(name, value, location, file.tell()))
            file.write(value.tobytes())
        if hole:
            tensor = external("huge", np.zeros(0, np.float32), location, file.tell())
            tensor.dims[0] = hole // 4
            tensor.external_data[2].value = str(hole)
            model.graph.initializer.append(tensor)
            file.truncate(file.tell() + hole)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path
