"""Pooling in compiled steps as plain comparisons, which a compiler fuses with what is around them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

_aten = torch.ops.aten


def as_comparisons() -> dict[Any, Any]:
    """Return what a tracer makes of a maximum over windows that do not overlap, and of its gradient.

    What comes back as indices is the place inside a window, for the gradient here alone. Other windows stay.
    """
    return {
        _aten.max_pool2d_with_indices.default: _maximum,
        _aten.max_pool2d_with_indices_backward.default: _gradient,
    }


def _maximum(
    x: Tensor,
    kernel: list[int],
    stride: list[int] | None = None,
    padding: list[int] | int = 0,
    dilation: list[int] | int = 1,
    ceil: bool = False,
) -> Any:
    size = _window(x, kernel, stride, padding, dilation, ceil)
    if size is None:
        return NotImplemented
    windows = _windows(x.permute(0, 2, 3, 1), size)
    best = windows[:, :, 0, :, 0]
    place = torch.zeros_like(best)
    for number in range(1, size[0] * size[1]):
        value = windows[:, :, number // size[1], :, number % size[1]]
        is_better = (value > best) | (value != value)  # as PyTorch has it: the first of equals, and NaN wins
        best = torch.where(is_better, value, best)
        place = torch.where(is_better, float(number), place)
    return best.permute(0, 3, 1, 2), place.permute(0, 3, 1, 2)


def _gradient(
    slopes: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: list[int] | None,
    padding: list[int],
    dilation: list[int],
    ceil: bool,
    places: Tensor,
) -> Any:
    size = _window(x, kernel, stride, padding, dilation, ceil)
    if size is None:
        return NotImplemented
    height, width = size
    numbers = torch.arange(height * width, dtype=x.dtype, device=x.device).view(1, 1, height, 1, width, 1)
    rows, at = (t.permute(0, 2, 3, 1)[:, :, None, :, None] for t in (slopes, places))
    spread = torch.where(at == numbers, rows, 0.0)
    images = spread.reshape(len(x), rows.shape[1] * height, rows.shape[3] * width, x.shape[1])
    images = pad(images, (0, 0, 0, x.shape[3] - images.shape[2], 0, x.shape[2] - images.shape[1]))
    return images.permute(0, 3, 1, 2)


def _window(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> tuple[int, int] | None:
    """Return height and width of windows that lie side by side in images; None for any others."""
    height, width = _pair(kernel)
    if x.dim() != 4 or ceil or _pair(padding) != (0, 0) or _pair(dilation) != (1, 1):
        return None
    return (height, width) if not stride or _pair(stride) == (height, width) else None


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])


def _windows(rows: Tensor, size: tuple[int, int]) -> Tensor:
    """Return [B, H', h, W', w, C] of rows [B, H, W, C], without what does not fill a window."""
    height, width = size
    down, right = rows.shape[1] // height, rows.shape[2] // width
    rows = rows[:, : down * height, : right * width]
    return rows.reshape(len(rows), down, height, right, width, rows.shape[3])
