"""How inputs are scaled: pixels of the official image sets, features of own ones."""

from __future__ import annotations

import numpy as np

from fedcore.config import Normalise
from fedcore.data.rows import blocks

HALF = 127.5
# Mean and standard deviation of each channel, of pixels in 0..1: the figures in common use for each set, computed over
# its train images (Tiny-ImageNet: over ImageNet's).
OFFICIAL = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "tiny_imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def half(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return offset and scale per channel that bring 0..255 to -1..1."""
    return (HALF,) * channels, (1 / HALF,) * channels


def scaling(name: str, normalise: Normalise, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return offset and scale per channel of a set that has an official normalisation, for pixels in 0..255."""
    if normalise == "half":
        return half(channels)
    means, deviations = OFFICIAL[name]
    return tuple(255 * mean for mean in means), tuple(1 / (255 * deviation) for deviation in deviations)


UNSCALED = ((0.0,), (1.0,))


def standard(inputs: np.ndarray, num_train_rows: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return offset and scale that bring every feature [n, F] or channel [n, C, L] to mean 0 and deviation 1.

    Over the train rows, which come first; a constant one becomes 0. The inputs may be larger than memory.
    """
    axes = (0, *range(2, inputs.ndim))
    size = num_train_rows * int(np.prod(inputs.shape[2:], dtype=np.int64))
    mean = sum(block.sum(axis=axes, dtype=np.float64) for _, block in blocks(inputs, num_train_rows)) / size
    shape = (-1, *[1] * (inputs.ndim - 2))
    square, low, high = 0.0, np.inf, -np.inf
    for _, block in blocks(inputs, num_train_rows):
        square = square + np.square(block - mean.reshape(shape)).sum(axis=axes)
        low, high = np.minimum(low, block.min(axis=axes)), np.maximum(high, block.max(axis=axes))
    deviation = np.sqrt(square / size)
    # The deviation of equal numbers need not come out as 0.
    deviation[low == high] = 1.0
    return tuple(mean.tolist()), tuple((1 / deviation).tolist())
