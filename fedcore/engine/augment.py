"""Changes of training images on the device: shifted crops, flips and cut-out squares, drawn per client, round and step.

The draws are made on the host from streams of their own, so which batches a client sees, and everything else that is
drawn, stays the same with and without; switched off, nothing is drawn or computed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.config import Augment
from fedcore.methods.base import Phase
from fedcore.models.moved_images import moved
from fedcore.seeds import stream
from fedcore.types import Batch

CROP, FLIP, CUTOUT = "augment.crop", "augment.flip", "augment.cutout"


def problem(settings: Augment, input_shape: tuple[int, ...]) -> str | None:
    """Return why inputs of this shape cannot be augmented so; None when they can.

    Parameters
    ----------
    settings : Augment
    input_shape : ``(C, H, W)`` for images, otherwise anything
    """
    if not settings.is_on:
        return None
    if len(input_shape) != 3:
        return f"only images can be augmented; an input has shape {list(input_shape)}"
    smallest = min(input_shape[1:])
    for key, most in (("crop", smallest - 1), ("cutout", smallest)):
        if getattr(settings, key) > most:
            height, width = input_shape[1:]
            return f"{key} {getattr(settings, key)} leaves nothing of {height}x{width} images; use at most {most}"
    return None


def draws(
    settings: Augment,
    phase: Phase,
    seed: int,
    round: int,
    client: int,
    purpose: str,
    size: tuple[int, ...],
    input_shape: tuple[int, ...],
) -> dict[str, NDArray[np.int64]]:
    """Return the random arrays of a client's phase; none in a phase that only looks, or without augmentation.

    Every kind of change has a stream of its own, so switching one off leaves the others as they were.

    Parameters
    ----------
    purpose : str
        What the batches are for, as in `fedcore.engine.schedule.schedule`.
    size : (K, B)
        Local steps, and rows a batch.
    input_shape : (C, H, W)
        Of an image; not looked at without augmentation.

    Returns
    -------
    dict
        ``augment.crop`` [K, B, 2], rows and columns 0..2 * crop; ``augment.flip`` [K, B], 0 or 1; ``augment.cutout``
        [K, B, 2], the row and column of the square's middle. Only what is switched on.
    """
    found: dict[str, NDArray[np.int64]] = {}
    if not phase.learns:
        return found

    def integers(name: str, below: int | tuple[int, ...], *more: int) -> NDArray[np.int64]:
        generator = stream(seed, f"{name}/{purpose}/{phase.name}", round, client)
        return generator.integers(0, below, (*size, *more))

    if settings.crop:
        found[CROP] = integers(CROP, 2 * settings.crop + 1, 2)
    if settings.flip:
        found[FLIP] = integers(FLIP, 2)
    if settings.cutout:
        found[CUTOUT] = integers(CUTOUT, tuple(input_shape[1:]), 2)
    return found


class Augmentation:
    """Applies the draws of one step to one client's batch; pure, so that clients can be stacked.

    Parameters
    ----------
    settings : Augment
    black : [C, 1, 1] or [1, 1, 1] float
        What a pixel of raw value 0 is as the model's input.
    """

    def __init__(self, settings: Augment, black: Tensor):
        self.settings = settings
        self.black = black

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with its images changed; as it is where nothing was drawn."""
        x = batch.x
        if CROP in batch.draws or FLIP in batch.draws:
            x = self._moved(x, batch.draws)
        if CUTOUT in batch.draws:
            x = self._cut_out(x, batch.draws[CUTOUT][: len(x)])
        return batch if x is batch.x else batch._replace(x=x)

    def _moved(self, x: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """Crop from the image with a black border, then flip left and right."""
        flip = draws[FLIP][: len(x)] if FLIP in draws else None
        shift = draws[CROP][: len(x)] - self.settings.crop if CROP in draws else None
        return moved(x, shift, flip, self.black)

    def _cut_out(self, x: Tensor, middle: Tensor) -> Tensor:
        """Set a square to 0, the middle of the model's range; it may lie partly outside."""
        side = self.settings.cutout
        first = middle - side // 2
        rows = torch.arange(x.shape[2], device=x.device) - first[:, :1]
        columns = torch.arange(x.shape[3], device=x.device) - first[:, 1:]
        square = ((rows >= 0) & (rows < side))[:, :, None] & ((columns >= 0) & (columns < side))[:, None, :]
        return torch.where(square[:, None], torch.zeros_like(x), x)
