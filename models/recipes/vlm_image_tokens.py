"""The input of a vision-language model: image features take the place of image tokens.

`masked_scatter` on the expanded mask of the placeholder's id; the count of the NonZero is also the
end of a Slice.
torch 2.13.0, torch.onnx.export(dynamo=True), opset 20.
"""

import torch
from _export import export

IMAGE_TOKEN, VOCABULARY, WIDTH = 7, 32, 16


class VlmImageTokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.project = torch.nn.Linear(24, WIDTH)

    def forward(self, ids: torch.Tensor, patches: torch.Tensor) -> torch.Tensor:
        text = self.embed(ids)
        mask = (ids == IMAGE_TOKEN).unsqueeze(-1).expand_as(text)
        return text.masked_scatter(mask, self.project(patches))


def _example() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(8, VOCABULARY, (2, 9))
    ids[0, 1:5] = IMAGE_TOKEN
    ids[1, 3:5] = IMAGE_TOKEN
    return ids, torch.randn(6, 24)


if __name__ == "__main__":
    export(
        __file__,
        VlmImageTokens,
        _example,
        opset=20,
        inputs=["ids", "patches"],
        outputs=["embeddings"],
        dynamic={"ids": {0: "batch", 1: "tokens"}, "patches": {0: "patches"}},
        dynamo=True,
    )
