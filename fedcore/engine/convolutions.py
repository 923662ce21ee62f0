"""Convolutions in compiled steps as products of matrices, where those are faster."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

_aten = torch.ops.aten
_FEW = 64  # numbers in a patch, up to which products are faster in single precision


def as_products() -> dict[Any, Any]:
    """Return what a tracer makes of convolutions and their gradients, by operator.

    On a CPU convolutions of patches with few numbers (a first layer on images of one channel), and all in bfloat16, are
    slower than the product of the patches, one in each row, with the kernels; see docs/decisions.md. Others stay.
    """
    return {_aten.convolution.default: _convolution, _aten.convolution_backward.default: _gradient}


class _Shape(NamedTuple):
    """Of a convolution on images [B, C, H, W]."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    kernel: tuple[int, int]

    def places(self, x: Tensor) -> tuple[int, int]:
        """Return at how many places down and right the kernel is applied."""
        down, right = (
            (size + 2 * padding - kernel) // stride + 1
            for size, stride, padding, kernel in zip(x.shape[2:], *self, strict=True)
        )
        return down, right


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Any:
    shape = _shape(x, weight, *settings)
    if shape is None:
        return NotImplemented
    out = _patches(x, shape) @ _kernels(weight).t()
    if bias is not None:
        out = out + bias  # not within the product, but with what follows
    high, wide = shape.places(x)
    return out.view(len(x), high, wide, len(weight)).permute(0, 3, 1, 2)


def _gradient(slopes: Tensor, x: Tensor, weight: Tensor, bias_sizes: list[int] | None, *settings: Any) -> Any:
    *settings_of_output, wanted = settings
    shape = _shape(x, weight, *settings_of_output)
    if shape is None or (wanted[0] and shape.stride != (1, 1)):
        return NotImplemented
    rows = slopes.permute(0, 2, 3, 1)
    flat = rows.flatten(0, 2)
    of_x = of_weight = of_bias = None
    if wanted[0]:
        of_x = _unpatched((flat @ _kernels(weight)).view(*rows.shape[:3], *shape.kernel, x.shape[1]), shape)
    if wanted[1]:
        product = flat.t() @ _patches(x, shape)
        of_weight = product.view(len(weight), *shape.kernel, x.shape[1]).permute(0, 3, 1, 2)
    if wanted[2]:
        of_bias = flat.sum(0)
    return of_x, of_weight, of_bias


def _shape(
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    is_transposed: bool,
    output_padding: list[int],
    groups: int,
) -> _Shape | None:
    """Return what a convolution that becomes a product is like; None for one that stays."""
    if x.dim() != 4 or is_transposed or groups != 1 or any(d != 1 for d in dilation):
        return None
    if weight.dtype != torch.bfloat16 and weight[0].numel() > _FEW:
        return None
    (down, right), (above, left) = stride, padding
    return _Shape((down, right), (above, left), (weight.shape[2], weight.shape[3]))


def _kernels(weight: Tensor) -> Tensor:
    """Return kernels [O, C, h, w] as rows [O, h w C]; no copy where channels are innermost."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def _patches(x: Tensor, shape: _Shape) -> Tensor:
    """Return what a kernel sees at every place, in a row each: [B H' W', h w C]."""
    rows = x.permute(0, 2, 3, 1)
    above, left = shape.padding
    if above or left:
        rows = pad(rows, (0, 0, left, left, above, above))
    rows = rows.contiguous()
    batch, high, wide, channels = rows.shape
    (down, right), (height, width), line = shape.stride, shape.kernel, wide * channels
    size = (batch, *shape.places(x), height, width * channels)
    # Strides, not views: a compiler then makes the images once and copies stretches of them, without divisions.
    seen = rows.as_strided(size, (high * line, down * line, right * channels, line, 1)).contiguous()
    patch = height * width * channels
    return seen.as_strided((seen.numel() // patch, patch), (patch, 1))


def _unpatched(patches: Tensor, shape: _Shape) -> Tensor:
    """Return the sum of overlapping patches [B, H', W', h, w, C] where they lie in images [B, C, H, W]."""
    height, width = shape.kernel
    along = [pad(patches[:, :, :, :, j], (0, 0, 0, 0, j, width - 1 - j)) for j in range(width)]
    rows = sum(along[1:], start=along[0])
    down = [pad(rows[:, :, :, i], (0, 0, 0, 0, i, height - 1 - i)) for i in range(height)]
    images = sum(down[1:], start=down[0])
    above, left = shape.padding
    images = images[:, above : images.shape[1] - above, left : images.shape[2] - left]
    return images.permute(0, 3, 1, 2)
