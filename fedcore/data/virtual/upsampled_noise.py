"""Pure noise, up-sampled: the simplest virtual data."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import interpolate

from fedcore.data.virtual.pixels import Images, ImageShape, Labels, class_labels, to_pixels
from fedcore.seeds import stream

_CELLS = 8  # width and height of the noise before it is up-sampled


def noise(
    image_shape: ImageShape, num_classes: int, per_class: int, seed: int, spread: float = 0.5
) -> tuple[Images, Labels]:
    """Return up-sampled Gaussian noise: a class is a mean image, its examples are that mean plus noise.

    Class mean ~ N(0, I) and example ~ N(mean, spread^2 I) over C x 8 x 8 cells, bilinearly resized, cut to [0, 1].
    What is below 0 becomes black, which is part of how the classes look. A class depends on its number and the seed
    alone, so more classes or more examples leave the others as they are.

    Parameters
    ----------
    image_shape : (C, H, W)
        Of one image; any size.
    num_classes, per_class : int, >= 1
    seed : int, >= 0
    spread : float, >= 0, default 0.5

    Returns
    -------
    images : [num_classes * per_class, C, H, W] uint8
    labels : [num_classes * per_class] int64

    References
    ----------
    Tang et al., ICML 2022, "pure noise". https://arxiv.org/abs/2206.02465
    """
    channels, height, width = image_shape
    cells = (channels, _CELLS, _CELLS)
    images = []
    for label in range(num_classes):
        mean = stream(seed, "virtual/noise/mean", label).normal(size=cells)
        examples = stream(seed, "virtual/noise/examples", label)
        values = mean + spread * examples.normal(size=(per_class, *cells))
        # Not averaged where it shrinks: the recipe is for up-sampling, and smaller images would turn grey.
        enlarged = interpolate(
            torch.from_numpy(values.astype(np.float32)), size=(height, width), mode="bilinear", align_corners=False
        )
        images.append(to_pixels(enlarged))
    return np.concatenate(images), class_labels(num_classes, per_class)
