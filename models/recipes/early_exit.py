"""A scripted model that branches: NonZero inside both bodies of an If, and one outside.

TensorRT takes a plugin with a data-dependent shape at the top level only, so a rewriter can change
one of the three.
torch 2.13.0, torch.onnx.export(dynamo=False), opset 17.
"""

import torch
from _export import export


@torch.jit.script
def _branch(scores: torch.Tensor) -> torch.Tensor:
    if bool(scores.sum() > 0):  # noqa: SIM108 (a script becomes If from this)
        found = torch.nonzero(scores > 0)
    else:
        found = torch.nonzero(scores < -0.5)
    return found


class EarlyExit(torch.nn.Module):
    def forward(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _branch(scores), torch.nonzero(scores.abs() > 1)


if __name__ == "__main__":
    export(
        __file__,
        EarlyExit,
        lambda: (torch.randn(6, 5),),
        opset=17,
        inputs=["scores"],
        outputs=["found", "large"],
        dynamic={"scores": {0: "rows"}, "found": {0: "k"}, "large": {0: "m"}},
    )
