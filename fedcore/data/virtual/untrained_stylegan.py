"""Images of an untrained StyleGAN-v2 as virtual data."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, leaky_relu, pad

from fedcore.data.virtual.pixels import (
    CHUNK,
    Images,
    ImageShape,
    Labels,
    OnProgress,
    chunks,
    class_labels,
    num_chunks,
    resized,
    to_pixels,
)
from fedcore.seeds import stream

_START = 4  # width and height of the first layer
_TINY = 1e-8  # keeps roots finite


def stylegan(
    image_shape: ImageShape,
    num_classes: int,
    per_class: int,
    seed: int,
    latent: int = 64,
    mean_spread: float = 0.5,
    spread: float = 0.3,
    width: int = 512,
    on_progress: OnProgress | None = None,
) -> tuple[Images, Labels]:
    """Return images of one untrained StyleGAN-v2 generator: a class is a mean latent vector.

    Class mean ~ N(0, mean_spread^2 I) and latent of an example ~ N(mean, spread^2 I). The generator starts at 4 x 4
    and doubles until it covers the image, which is then resized where it is smaller. Its output has no last
    non-linearity and is cut to [0, 1]. Its noise inputs are left out: their gain is 0 before training. A class
    depends on its number and the seed alone.

    Parameters
    ----------
    image_shape : (C, H, W)
    num_classes, per_class : int, >= 1
    seed : int, >= 0
    latent : int, >= 1, default 64
        Latent width; the paper takes 256 for 100 classes, with ``spread`` 0.2, and 0.15 for 200.
    mean_spread, spread : float, >= 0, default 0.5, 0.3
    width : int, >= 1, default 512
        Channels of every layer; 512 takes about a quarter of a second on two cores for an image of 32 x 32, and half
        the width a quarter of that.
    on_progress : callable or None
        Called with the chunks of images made and all there are.

    Returns
    -------
    images : [num_classes * per_class, C, H, W] uint8
    labels : [num_classes * per_class] int64

    References
    ----------
    Karras et al., CVPR 2020, https://arxiv.org/abs/1912.04958; as virtual data: Tang et al., ICML 2022.
    """
    generator = Generator(seed, image_shape, latent, width)
    count = num_chunks(per_class)
    images = []
    for label in range(num_classes):
        mean = mean_spread * stream(seed, "virtual/stylegan/mean", label).normal(size=latent)
        examples = stream(seed, "virtual/stylegan/examples", label).normal(size=(count * CHUNK, latent))
        codes = torch.from_numpy((mean + spread * examples).astype(np.float32))
        made = []
        for number, chunk in enumerate(chunks(codes), 1):
            made.append(to_pixels(generator(chunk)))
            if on_progress:
                on_progress(label * count + number, num_classes * count)
        images.append(np.concatenate(made)[:per_class])
    return np.concatenate(images), class_labels(num_classes, per_class)


class Generator:
    """The generator at its initial weights. Scales of the equalised learning rate are folded into them."""

    def __init__(self, seed: int, image_shape: ImageShape, latent: int, width: int):
        channels, *size = image_shape
        self._image_shape = image_shape
        self._seed = seed
        self._doublings = max(0, math.ceil(math.log2(max(size) / _START)))
        self._mapping = self._drawn("mapping", latent, latent) / math.sqrt(latent)
        self._start = self._drawn("start", 1, width, _START, _START)
        names = ["4"] + [f"{_START << k}/{part}" for k in range(1, self._doublings + 1) for part in ("up", "flat")]
        self._convs = {n: self._drawn(n, width, width, 3, 3) / math.sqrt(9 * width) for n in names}
        stages = [str(_START << k) for k in range(self._doublings + 1)]
        self._outs = {n: self._drawn(f"{n}/out", channels, width, 1, 1) / math.sqrt(width) for n in stages}
        layers = [*names, *(f"{n}/out" for n in stages)]
        self._styles = {n: self._drawn(f"{n}/style", latent, width) / math.sqrt(latent) for n in layers}

    def __call__(self, codes: Tensor) -> Tensor:
        """Return images [M, C, H, W] of latent vectors [M, latent]."""
        normed = codes * torch.rsqrt((codes**2).mean(1, keepdim=True) + _TINY)
        w = _activate(normed @ self._mapping)
        x = self._conv(self._start.expand(len(codes), -1, -1, -1), w, "4")
        image = self._out(x, w, "4")
        for k in range(1, self._doublings + 1):
            stage = str(_START << k)
            x = self._conv(x, w, f"{stage}/up", up=True)
            x = self._conv(x, w, f"{stage}/flat")
            image = _doubled(image) + self._out(x, w, stage)
        return resized(image, self._image_shape)

    def _conv(self, x: Tensor, w: Tensor, name: str, up: bool = False) -> Tensor:
        """Modulate, convolve, demodulate; scaling inputs and outputs equals scaling the weights."""
        weight, style = self._convs[name], 1 + w @ self._styles[name]
        gain = torch.rsqrt((style**2) @ (weight**2).sum((2, 3)).T + _TINY)
        x = x * style[:, :, None, None]
        x = (
            _blurred(conv_transpose2d(x, weight.transpose(0, 1), stride=2), (1, 1, 1, 1))
            if up
            else conv2d(x, weight, padding=1)
        )
        return _activate(x * gain[:, :, None, None])

    def _out(self, x: Tensor, w: Tensor, stage: str) -> Tensor:
        return conv2d(x * (1 + w @ self._styles[f"{stage}/out"])[:, :, None, None], self._outs[stage])

    def _drawn(self, name: str, *shape: int) -> Tensor:
        values = stream(self._seed, f"virtual/stylegan/{name}").standard_normal(shape, np.float32)
        return torch.from_numpy(values)


def _activate(x: Tensor) -> Tensor:
    return leaky_relu(x, 0.2) * math.sqrt(2)


def _doubled(image: Tensor) -> Tensor:
    """Up-sample by zeros between pixels and a blur."""
    ones = torch.ones(image.shape[1], 1, 1, 1)
    sparse = conv_transpose2d(image, ones, stride=2, output_padding=1, groups=image.shape[1])
    return _blurred(sparse, (2, 1, 2, 1))


def _blurred(x: Tensor, padding: tuple[int, int, int, int]) -> Tensor:
    """Blur with the outer product of (1, 3, 3, 1); its sum is 4, for the zeros between pixels."""
    row = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 4
    kernel = (row[:, None] * row).expand(x.shape[1], 1, 4, 4)
    return conv2d(pad(x, padding), kernel, groups=x.shape[1])
