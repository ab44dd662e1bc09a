"""A cache update: rows with a positive key are changed in place, the others stay.

`x[key > 0] = f(x[key > 0])` as the dynamo exporter writes it: ScatterND on squeezed indices.
torch 2.13.0, torch.onnx.export(dynamo=True), opset 20.
"""

import torch
from _export import export


class IndexPutUpdate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.change = torch.nn.Linear(6, 6)

    def forward(self, cache: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        chosen = torch.nonzero(key > 0).squeeze(1)
        return cache.index_put((chosen,), self.change(cache[chosen]))


if __name__ == "__main__":
    export(
        __file__,
        IndexPutUpdate,
        lambda: (torch.randn(9, 6), torch.randint(-2, 3, (9,))),
        opset=20,
        inputs=["cache", "key"],
        outputs=["updated"],
        dynamic={"cache": {0: "rows"}, "key": {0: "rows"}},
        dynamo=True,
    )
