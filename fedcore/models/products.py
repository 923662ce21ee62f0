"""Convolutions of images as products of matrices: patches in rows (im2col), times the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, unfold
from torch.overrides import TorchFunctionMode


def by_products(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that convolves images by products where `call` has PyTorch convolve them.

    Kernels of each client's own make a batch of products (bmm), where PyTorch makes one convolution in groups.
    Convolutions that are in groups as it is, and those of series, stay.
    """

    def called(*arguments: Any, **named: Any) -> Any:
        with _ByProducts():
            return call(*arguments, **named)

    return called


class _ByProducts(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d and len(args) == 7 and args[6] == 1:  # as modules call it; the last is groups
            return _convolution(*args[:6])
        return func(*args, **(kwargs or {}))


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """Return the convolution [B, O, H', W'] of images [B, C, H, W] with kernels [O, C, h, w]."""
    patches = unfold(x, weight.shape[2:], dilation, padding, stride)
    batch, _, places = patches.shape
    # All images in one product: a product of each image's own would need a copy of the kernels.
    out = linear(patches.transpose(1, 2).flatten(0, 1), weight.flatten(1), bias)
    covered = dilation[0] * (weight.shape[2] - 1) + 1
    high = (x.shape[2] + 2 * padding[0] - covered) // stride[0] + 1
    # With channels in front again, in memory too: pooling on lanes is slow where they are innermost.
    return out.view(batch, places, -1).transpose(1, 2).contiguous().view(batch, -1, high, places // high)
