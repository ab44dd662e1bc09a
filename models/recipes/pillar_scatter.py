"""The front of a point-cloud detector: points inside the range become a bird's-eye-view map.

A BOOL mask picks points, their features are scattered to cells (the last point of a cell wins),
and occupied cells are listed with `torch.nonzero`: two masks, ranks 1 and 2.
torch 2.13.0, torch.onnx.export(dynamo=False), opset 17.
"""

import torch
from _export import export

CELLS, RANGE = 16, 4.0


class PillarScatter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())

    def forward(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        position = points[:, :2]
        inside = ((position > -RANGE) & (position < RANGE)).all(dim=1)
        points = points[inside]
        cell = ((points[:, :2] + RANGE) * (CELLS / (2 * RANGE))).long().clamp(0, CELLS - 1)
        weight = torch.ones_like(points[:, 0])
        place = cell[:, 0] * CELLS + cell[:, 1]
        hits = torch.zeros(CELLS * CELLS).scatter_add(0, place, weight).view(CELLS, CELLS)
        canvas = torch.zeros(CELLS * CELLS, 8)
        index = place[:, None].expand(-1, 8)
        canvas = canvas.scatter_add(0, index, self.encode(points)).view(CELLS, CELLS, 8)
        return canvas.permute(2, 0, 1), torch.nonzero(hits)


if __name__ == "__main__":
    export(
        __file__,
        PillarScatter,
        lambda: (torch.randn(50, 4) * 3,),
        opset=17,
        inputs=["points"],
        outputs=["canvas", "occupied"],
        dynamic={"points": {0: "points"}, "occupied": {0: "cells"}},
    )
