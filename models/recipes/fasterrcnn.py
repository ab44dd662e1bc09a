"""torchvision's Faster R-CNN with a small backbone and random weights.

    pip install torch==2.14.1 torchvision==0.29.1 onnx onnxscript onnxruntime
    python models/recipes/fasterrcnn.py OUT.onnx

Seven NonZero: proposals by size and score, RoIs by pyramid level, detections by score and size;
behind some of them NonMaxSuppression, RoiAlign and ScatterND.

``models/fasterrcnn.onnx`` was exported with torch 2.14.1 and torchvision 0.29.1,
torch.onnx.export(dynamo=False), opset 17, from a module of this structure (all layer sizes below
are read from the file). Its random weights are not this recipe's: expect the same graph, not the
same bytes.
"""

import sys

import torch
from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.ops import MultiScaleRoIAlign


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 16, 3, stride=4, padding=1), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.ReLU())
        self.c = nn.Sequential(nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x)))


class Export(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = {"a": "0", "b": "1", "c": "2"}
        backbone = BackboneWithFPN(Body(), layers, [16, 24, 32], 32)
        self.m = FasterRCNN(
            backbone,
            num_classes=5,
            min_size=64,
            max_size=96,
            rpn_anchor_generator=AnchorGenerator(
                ((8,), (16,), (32,), (64,)), ((0.5, 1.0, 2.0),) * 4
            ),
            box_roi_pool=MultiScaleRoIAlign(["0", "1", "2"], output_size=5, sampling_ratio=2),
            box_head=_box_head(),
            box_predictor=_box_predictor(),
            rpn_post_nms_top_n_test=20,
        )

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.m([image])[0]
        return found["boxes"], found["labels"], found["scores"]


def _box_head() -> nn.Module:
    from torchvision.models.detection.faster_rcnn import TwoMLPHead

    return TwoMLPHead(32 * 5 * 5, 64)


def _box_predictor() -> nn.Module:
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor

    return FastRCNNPredictor(64, 5)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.onnx.export(
        Export().eval(),
        (torch.rand(3, 64, 80),),
        sys.argv[1],
        opset_version=17,
        input_names=["image"],
        output_names=["out0", "out1", "out2"],
        dynamo=False,
    )
