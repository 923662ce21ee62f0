"""Feature shift: images with Gaussian noise of a level of their client (NIID-Bench)."""

from __future__ import annotations

import numpy as np

from fedcore import seeds

_WHITE = 255


def problem(levels: np.ndarray, input_shape: tuple[int, ...]) -> str | None:
    """Return why inputs of this shape cannot get noise of these levels; None when they can.

    Parameters
    ----------
    levels : array, any shape
    input_shape : ``(C, H, W)`` for images, ``(F,)`` for feature vectors
    """
    if np.any(levels) and len(input_shape) != 3:
        return f"only images can get noise; an input has shape {list(input_shape)}"
    return None


def add_rows(inputs: np.ndarray, levels: np.ndarray, rows: np.ndarray, seed: int) -> np.ndarray:
    """Return `inputs` with Gaussian noise of a level per row; `inputs` itself when no row has any.

    The noise of a row depends on `seed` and the row's number alone, so a row looks the same in every round and
    whichever other rows are asked for. Pixels are rounded and stay within 0..255.

    Parameters
    ----------
    inputs : array [m, C, H, W] uint8, or anything when all levels are 0
    levels : array [m] float, >= 0
        Standard deviation; 1 is the whole range of a pixel, 0 leaves the row as it is.
    rows : array [m] int, >= 0
        Numbers of the rows in their data set.
    seed : int, >= 0

    Raises
    ------
    ValueError
        If these inputs cannot get noise.
    """
    wrong = problem(levels, inputs.shape[1:])
    if wrong is not None:
        raise ValueError(wrong)
    if not np.any(levels):
        return inputs
    noisy = np.array(inputs)
    for position in np.flatnonzero(levels):
        normal = seeds.stream(seed, "partition/noise", client=int(rows[position])).standard_normal(
            inputs.shape[1:], dtype=np.float32
        )
        pixels = noisy[position] + np.float32(_WHITE * levels[position]) * normal
        noisy[position] = np.clip(np.rint(pixels), 0, _WHITE)
    return noisy
