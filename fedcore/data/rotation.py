"""Feature shift: images turned by an angle of their client (rotated MNIST)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional

# Images turned together, so that the float copies stay small beside the set.
_CHUNK = 4096


def problem(degrees: np.ndarray, input_shape: tuple[int, ...]) -> str | None:
    """Return why inputs of this shape cannot be turned by these angles; None when they can.

    Parameters
    ----------
    degrees : array, any shape
    input_shape : ``(C, H, W)`` for images, ``(F,)`` for feature vectors
    """
    if not np.any(degrees):
        return None
    if len(input_shape) != 3:
        return f"only images can be turned; an input has shape {list(input_shape)}"
    height, width = input_shape[1:]
    quarter = np.asarray(degrees)[np.mod(degrees, 180) == 90]
    if height != width and len(quarter):
        return f"{height}x{width} images cannot be turned by {quarter[0]:g} degrees; only square ones can"
    return None


def rotate(images: np.ndarray, degrees: float) -> np.ndarray:
    """Return `images` turned counter-clockwise about their centre; what comes in from outside is black.

    Multiples of 90 degrees move whole pixels, so nothing is lost; other angles interpolate between the four nearest
    pixels and round.

    Parameters
    ----------
    images : array [n, C, H, W] uint8, row 0 of an image at its top
    degrees : float
        Any angle; multiples of 90 that are not multiples of 180 need square images.

    Returns
    -------
    array [n, C, H, W] uint8, a copy

    Raises
    ------
    ValueError
        If these images cannot be turned by this angle.
    """
    wrong = problem(np.array([degrees]), images.shape[1:])
    if wrong is not None:
        raise ValueError(wrong)
    quarters, rest = divmod(degrees % 360, 90)
    if rest == 0:
        return np.array(np.rot90(images, int(quarters), axes=(2, 3)), order="C")
    grid = _sampling_grid(math.radians(degrees), *images.shape[2:])
    turned = np.empty_like(images, order="C", subok=False)
    for start in range(0, len(images), _CHUNK):
        block = torch.from_numpy(images[start : start + _CHUNK].astype(np.float32))
        sampled = functional.grid_sample(
            block, grid.expand(len(block), -1, -1, -1), mode="bilinear", padding_mode="zeros", align_corners=False
        )
        turned[start : start + _CHUNK] = sampled.round().clamp(0, 255).to(torch.uint8).numpy()
    return turned


def rotate_rows(inputs: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Return `inputs` with every row turned by its own angle; `inputs` itself when no row turns.

    Parameters
    ----------
    inputs : array [n, C, H, W] uint8, or anything when all angles are 0
    degrees : array [n] float

    Raises
    ------
    ValueError
        As `rotate`.
    """
    if not np.any(degrees):
        return inputs
    turned = np.array(inputs)
    angles, group, counts = np.unique(np.mod(degrees, 360), return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(group, kind="stable"), np.cumsum(counts)[:-1])
    for angle, mine in zip(angles, rows, strict=True):
        if angle != 0:
            turned[mine] = rotate(turned[mine], float(angle))
    return turned


def _sampling_grid(radians: float, height: int, width: int) -> torch.Tensor:
    """Return where each pixel of the turned image comes from, [1, H, W, 2], from -1 to 1 across the image."""
    cos, sin = math.cos(radians), math.sin(radians)
    # Rows grow downwards, so turning the picture counter-clockwise reads the source clockwise; the quotients make one
    # step right and one step down equally long.
    back = torch.tensor([[[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]])
    return functional.affine_grid(back, [1, 1, height, width], align_corners=False)
