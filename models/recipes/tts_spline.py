"""The piecewise rational-quadratic spline of a text-to-speech flow (as in VITS' stochastic
duration predictor).

Values inside the interval are transformed, values outside pass through: `out[inside] = ...` and
`x[inside]` make many NonZero of rank 3 on two masks, one the negation of the other.
torch 2.13.0, torch.onnx.export(dynamo=False), opset 17.
"""

import torch
from _export import export
from torch.nn import functional

BINS, TAIL, SMALLEST = 5, 3.0, 1e-3


class TtsSpline(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, widths: torch.Tensor, heights: torch.Tensor, slopes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inside = (x >= -TAIL) & (x <= TAIL)
        outside = ~inside
        out, log_slope = torch.zeros_like(x), torch.zeros_like(x)
        out[outside] = x[outside]
        value, slope = _spline(x[inside], widths[inside], heights[inside], slopes[inside])
        out[inside] = value
        log_slope[inside] = slope
        return out, log_slope


def _knots(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    share = SMALLEST + (1 - SMALLEST * BINS) * functional.softmax(raw, dim=-1)
    edges = functional.pad(torch.cumsum(share, dim=-1), (1, 0)) * 2 * TAIL - TAIL
    return edges, edges[..., 1:] - edges[..., :-1]


def _spline(
    x: torch.Tensor, widths: torch.Tensor, heights: torch.Tensor, slopes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    left, width = _knots(widths)
    bottom, height = _knots(heights)
    inner = SMALLEST + functional.softplus(slopes)
    slope = functional.pad(inner, (1, 1), value=1.0)
    place = (torch.sum(x[..., None] >= left, dim=-1) - 1).clamp(0, BINS - 1)[..., None]

    def pick(values: torch.Tensor) -> torch.Tensor:
        return values.gather(-1, place)[..., 0]

    w, h = pick(width), pick(height)
    theta = (x - pick(left)) / w
    first, second, mean = pick(slope), pick(slope[..., 1:]), h / w
    both = theta * (1 - theta)
    below = mean + (first + second - 2 * mean) * both
    value = pick(bottom) + h * (mean * theta**2 + first * both) / below
    steep = mean**2 * (second * theta**2 + 2 * mean * both + first * (1 - theta) ** 2)
    return value, torch.log(steep) - 2 * torch.log(below)


if __name__ == "__main__":
    export(
        __file__,
        TtsSpline,
        lambda: (
            torch.randn(1, 2, 9) * 3,
            torch.randn(1, 2, 9, BINS),
            torch.randn(1, 2, 9, BINS),
            torch.randn(1, 2, 9, BINS - 1),
        ),
        opset=17,
        inputs=["x", "widths", "heights", "slopes"],
        outputs=["y", "log_slope"],
        dynamic={
            name: {2: "frames"} for name in ("x", "widths", "heights", "slopes", "y", "log_slope")
        },
    )
