"""Position ids at opset 9, where `torch.arange` becomes NonZero of a tensor of ones.

Nothing is searched here: the NonZero is a ramp 0, 1, 2, ... and always selects everything.
torch 2.13.0, torch.onnx.export(dynamo=False), opset 9.
"""

import torch
from _export import export

VOCABULARY, LONGEST, WIDTH = 20, 64, 8


class PositionRamp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.position = torch.nn.Embedding(LONGEST, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.token(ids) + self.position(torch.arange(ids.shape[1]))


if __name__ == "__main__":
    axes = {0: "batch", 1: "tokens"}
    export(
        __file__,
        PositionRamp,
        lambda: (torch.randint(0, VOCABULARY, (2, 7)),),
        opset=9,
        inputs=["ids"],
        outputs=["embeddings"],
        dynamic={"ids": axes, "embeddings": axes},
    )
