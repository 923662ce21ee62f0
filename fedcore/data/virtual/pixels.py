"""What the generators of virtual data share: their types, resizing, and bytes out of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

Images = NDArray[np.uint8]  # [M, C, H, W]
Labels = NDArray[np.int64]  # [M], sorted: class after class
ImageShape = tuple[int, int, int]  # C, H, W
OnProgress = Callable[[int, int], None]  # what is done and all there is to do, in units of the generator's own

# Networks always see this many images: a result's last bits may depend on how many are computed together, and
# an image must not depend on how many others were asked for.
CHUNK = 10


def class_labels(num_classes: int, per_class: int) -> Labels:
    """Return ``per_class`` times 0, then 1, ..."""
    return np.repeat(np.arange(num_classes, dtype=np.int64), per_class)


def num_chunks(per_class: int) -> int:
    """Return how many chunks hold the images of one class."""
    return -(-per_class // CHUNK)


def chunks(codes: Tensor) -> Iterator[Tensor]:
    """Yield the rows of a multiple of `CHUNK` latent vectors, one chunk after the other."""
    for begin in range(0, len(codes), CHUNK):
        yield codes[begin : begin + CHUNK]


def resized(images: Tensor, image_shape: ImageShape) -> Tensor:
    """Return values [M, C, h, w] with the height and width of `image_shape`; shrinking averages."""
    size = list(image_shape[1:])
    if list(images.shape[2:]) == size:
        return images
    return interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=True)


def to_pixels(values: Tensor) -> Images:
    """Return values [M, C, H, W], cut to [0, 1], as bytes."""
    scaled: Images = (values.clamp(0, 1) * 255 + 0.5).floor().to(torch.uint8).numpy()
    return scaled
