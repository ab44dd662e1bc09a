"""A SuperPoint-style keypoint detector: scores per pixel, local maxima, `torch.nonzero`.

The pairs are flipped to (x, y) and returned with their scores and sampled descriptors.
torch 2.13.0, torch.onnx.export(dynamo=True), opset 18.
"""

import torch
from _export import export


class Keypoints(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(8, 1, 3, padding=1),
        )
        self.describe = torch.nn.Conv2d(1, 16, 5, padding=2)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        score = self.score(image).sigmoid()
        peak = torch.nn.functional.max_pool2d(score, 5, stride=1, padding=2)
        found = torch.nonzero(((score == peak) & (score > 0.5))[0, 0])
        rows, columns = found[:, 0], found[:, 1]
        descriptors = torch.nn.functional.normalize(
            self.describe(image)[0][:, rows, columns], dim=0
        )
        return found.flip(1).to(torch.float32), score[0, 0][rows, columns], descriptors.t()


if __name__ == "__main__":
    export(
        __file__,
        Keypoints,
        lambda: (torch.randn(1, 1, 24, 32),),
        opset=18,
        inputs=["image"],
        outputs=["keypoints", "scores", "descriptors"],
        dynamic={"image": {2: "height", 3: "width"}},
        dynamo=True,
    )
