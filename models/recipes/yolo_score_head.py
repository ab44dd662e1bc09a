"""A one-scale YOLO-style detection head whose post-processing is part of the model.

Boxes, scores and classes are picked by one score mask each (`x[mask]`), as deployment code writes
it: TorchScript exports the mask's NonZero -> Transpose -> GatherND once for each use.
torch 2.13.0, torch.onnx.export(dynamo=False), opset 17.
"""

import torch
from _export import export

CLASSES = 4


class YoloScoreHead(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, stride=4, padding=1),
            torch.nn.SiLU(),
            torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
            torch.nn.SiLU(),
        )
        self.box = torch.nn.Conv2d(32, 4, 1)
        self.objectness = torch.nn.Conv2d(32, 1, 1)
        self.classes = torch.nn.Conv2d(32, CLASSES, 1)
        # Random weights score every cell alike; this spreads the scores around the threshold.
        torch.nn.init.normal_(self.objectness.weight, std=4.0)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features = self.stem(image)
        height, width = features.shape[-2], features.shape[-1]
        rows = torch.arange(height, dtype=torch.float32).view(-1, 1).expand(height, width)
        columns = torch.arange(width, dtype=torch.float32).view(1, -1).expand(height, width)
        offset = self.box(features)[0]
        x = (columns + offset[0].sigmoid()) * 8.0
        y = (rows + offset[1].sigmoid()) * 8.0
        w, h = offset[2].exp() * 8.0, offset[3].exp() * 8.0
        boxes = torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], dim=-1).view(-1, 4)
        probabilities = self.classes(features)[0].flatten(1).t().sigmoid()
        best, label = probabilities.max(dim=1)
        scores = best * self.objectness(features).flatten().sigmoid()
        keep = scores > 0.25
        return boxes[keep], scores[keep], label[keep]


if __name__ == "__main__":
    export(
        __file__,
        YoloScoreHead,
        lambda: (torch.randn(1, 3, 64, 96),),
        opset=17,
        inputs=["image"],
        outputs=["boxes", "scores", "labels"],
        dynamic={
            "image": {2: "height", 3: "width"},
            "boxes": {0: "detections"},
            "scores": {0: "detections"},
            "labels": {0: "detections"},
        },
    )
