"""Images of untrained convolutional networks, one network per class, as virtual data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

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
from fedcore.seeds import module_stream, stream

_START = 8  # channels, height and width the latent vector is spread over
_CELLS = 8  # height and width at which diversity is measured


def cnn(
    image_shape: ImageShape,
    num_classes: int,
    per_class: int,
    seed: int,
    latent: int = 64,
    width: int = 64,
    diversity_steps: int = 50,
    diversity_batch: int = 64,
    diversity_lr: float = 0.01,
    on_progress: OnProgress | None = None,
) -> tuple[Images, Labels]:
    """Return images of small untrained networks: a class is a network of its own, its examples are latent vectors.

    Latent vector ~ N(0, I), spread over 8 x 8 x 8 by a linear layer; four transposed 3 x 3 convolutions, the first
    two followed by doubling; four 5 x 5 convolutions, the last to the image's channels; tanh. Batch normalisation
    and ReLU after every layer but the last. The 32 x 32 that come out are resized and cut to [0, 1], so what is below
    0 becomes black. Beforehand a few gradient steps make the images of a network differ from each other (`likeness`).
    A class depends on its number and the seed alone.

    Parameters
    ----------
    image_shape : (C, H, W)
    num_classes, per_class : int, >= 1
    seed : int, >= 0
    latent : int, >= 1, default 64
    width : int, >= 1, default 64
        Channels of every convolution.
    diversity_steps : int, >= 0, default 50
        Gradient steps per network. They take nearly all of the time: with the defaults a few seconds each on two
        cores; half the width, or a quarter of the batch, about a third of that.
    diversity_batch : int, >= 2, default 64
        Images in a step.
    diversity_lr : float, > 0, default 0.01
    on_progress : callable or None
        Called with the steps and chunks of images done and all there are.

    Returns
    -------
    images : [num_classes * per_class, C, H, W] uint8
    labels : [num_classes * per_class] int64

    Notes
    -----
    Differs from the released code: batch normalisation's statistics are means over the batches of the steps (and one
    before them, so that none is needed), not moving averages. The released steps have momentum 0.9 but a fresh
    optimiser each, which is none; there are none here.

    References
    ----------
    Tang et al., ICML 2022, "simple CNN". https://arxiv.org/abs/2206.02465
    """
    work = diversity_steps + num_chunks(per_class)
    images = []
    for label in range(num_classes):
        batches = stream(seed, "virtual/cnn/diversity", label)
        with module_stream(seed, f"virtual/cnn/{label}"):
            network = generator(image_shape[0], latent, width)
        with torch.no_grad():
            network(_codes(batches, diversity_batch, latent))  # statistics of the normalisation
        for step in range(diversity_steps):
            _diversify(network, _codes(batches, diversity_batch, latent), diversity_lr)
            if on_progress:
                on_progress(label * work + step + 1, num_classes * work)
        codes = _codes(stream(seed, "virtual/cnn/examples", label), num_chunks(per_class) * CHUNK, latent)
        made = []
        for number, chunk in enumerate(chunks(codes), 1):
            with torch.no_grad():
                made.append(to_pixels(resized(network.eval()(chunk), image_shape)))
            if on_progress:
                on_progress(label * work + diversity_steps + number, num_classes * work)
        images.append(np.concatenate(made)[:per_class])
    return np.concatenate(images), class_labels(num_classes, per_class)


def generator(channels: int, latent: int, width: int) -> nn.Sequential:
    """Return one network at its initial weights: latent vectors [B, latent] -> images [B, channels, 32, 32]."""
    flat = _START**3

    def grow(before: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(before, width, 3), nn.BatchNorm2d(width, momentum=None), nn.ReLU()]

    def shrink() -> list[nn.Module]:
        return [nn.Conv2d(width, width, 5), nn.BatchNorm2d(width, momentum=None), nn.ReLU()]

    return nn.Sequential(
        *(nn.Linear(latent, flat), nn.BatchNorm1d(flat, momentum=None), nn.ReLU()),
        nn.Unflatten(1, (_START, _START, _START)),
        *(*grow(_START), nn.Upsample(scale_factor=2)),  # 8 -> 10 -> 20
        *(*grow(width), nn.Upsample(scale_factor=2)),  # 22 -> 44
        *(*grow(width), *grow(width)),  # 46 -> 48
        *(*shrink(), *shrink(), *shrink()),  # 44 -> 40 -> 36
        *(nn.Conv2d(width, channels, 5), nn.Tanh()),  # 32
    )


def likeness(images: Tensor) -> Tensor:
    """Return how much the cells of images go together, the lower the more the images differ.

    Sum over channels of mean_{j != k} (sum_b x_bj x_bk)^2 / (B - 1), x_b the 8 x 8 cells of image b's channel, at unit
    length; the mean is over all 64 x 64 pairs, with j = k counted as 0.

    Parameters
    ----------
    images : [B, C, H, W], B >= 2
    """
    cells = interpolate(images, size=(_CELLS, _CELLS), mode="bilinear", align_corners=False).flatten(2)
    rows = (cells / cells.norm(dim=2, keepdim=True)).transpose(0, 1)  # [C, B, 64]
    products = (rows.transpose(1, 2) @ rows) ** 2 / (len(images) - 1)
    off_diagonal = products - torch.diag_embed(products.diagonal(dim1=1, dim2=2))
    total: Tensor = off_diagonal.mean((1, 2)).sum()
    return total


def _diversify(network: nn.Sequential, codes: Tensor, lr: float) -> None:
    parameters = list(network.parameters())
    slopes = torch.autograd.grad(likeness(network(codes)), parameters)
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter.sub_(lr * slope)


def _codes(random: np.random.Generator, count: int, latent: int) -> Tensor:
    return torch.from_numpy(random.standard_normal((count, latent), np.float32))
