"""A sparse mixture-of-experts block: each expert finds its tokens with `torch.where`.

Four experts, two for each token; every expert has a NonZero of rank 2 on its INT64 one-hot row.
torch 2.13.0, torch.onnx.export(dynamo=False), opset 17.
"""

import torch
from _export import export

EXPERTS, TOP, WIDTH = 4, 2, 16


class MoeBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(WIDTH, 2 * WIDTH),
                torch.nn.SiLU(),
                torch.nn.Linear(2 * WIDTH, WIDTH),
            )
            for _ in range(EXPERTS)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = hidden.reshape(-1, WIDTH)
        weights, chosen = torch.topk(self.gate(tokens).softmax(dim=-1), TOP, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        mask = torch.nn.functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rank, token = torch.where(mask[number])
            routed = expert(tokens[token]) * weights[token, rank].unsqueeze(-1)
            result = result.index_add(0, token, routed)
        return result.view_as(hidden)


if __name__ == "__main__":
    export(
        __file__,
        MoeBlock,
        lambda: (torch.randn(2, 7, WIDTH),),
        opset=17,
        inputs=["hidden"],
        outputs=["mixed"],
        dynamic={"hidden": {0: "batch", 1: "tokens"}, "mixed": {0: "batch", 1: "tokens"}},
    )
