"""A feed-forward layer that runs on the real tokens only: unpad, compute, pad again.

NonZero of the flattened attention mask, then index_put with the same indices.
torch 2.13.0, torch.onnx.export(dynamo=False), opset 13.
"""

import torch
from _export import export

WIDTH = 16


class BertUnpad(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        batch, length = hidden.shape[0], hidden.shape[1]
        real = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
        tokens = hidden.reshape(-1, WIDTH)[real]
        tokens = tokens + self.down(torch.nn.functional.gelu(self.up(tokens)))
        padded = torch.zeros(batch * length, WIDTH).index_put((real,), tokens)
        return padded.view(batch, length, WIDTH)


def _example() -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([[5], [8], [2]])
    return torch.randn(3, 8, WIDTH), (torch.arange(8)[None] < lengths).long()


if __name__ == "__main__":
    axes = {0: "batch", 1: "tokens"}
    export(
        __file__,
        BertUnpad,
        _example,
        opset=13,
        inputs=["hidden", "attention_mask"],
        outputs=["output"],
        dynamic={"hidden": axes, "attention_mask": axes, "output": axes},
    )
