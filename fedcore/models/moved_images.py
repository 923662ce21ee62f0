"""Images shifted and flipped on the device."""

from __future__ import annotations

import torch
from torch import Tensor


def moved(images: Tensor, shift: Tensor | None, flip: Tensor | None, border: Tensor) -> Tensor:
    """Return images [B, C, H, W] shifted, then flipped left and right: one gather for both.

    Parameters
    ----------
    shift : [B, 2] int64, or None
        The row and column that come first, below 0 for the border's.
    flip : [B] int64, or None
        1 for an image that is flipped.
    border : [C, 1, 1] or [1, 1, 1] float
        What comes in from outside.
    """
    size, channels, height, width = images.shape
    rows = torch.arange(height, device=images.device).expand(size, height)
    columns = torch.arange(width, device=images.device).expand(size, width)
    if flip is not None:
        columns = torch.where(flip[:, None] == 1, width - 1 - columns, columns)
    if shift is not None:
        rows, columns = rows + shift[:, :1], columns + shift[:, 1:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    source = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    index = source.reshape(size, 1, height * width).expand(size, channels, height * width)
    gathered = images.reshape(size, channels, height * width).gather(2, index).reshape(images.shape)
    return torch.where(inside[:, None], gathered, border)
