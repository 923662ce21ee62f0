"""Encoded images (PNG, JPEG, WebP, ...) -> one array of pixels."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.data.rows import Rows
from fedcore.data.sources.progress import OnProgress, Progress

PROGRESS_ROWS = 5_000
_BLOCK = 1_000  # images that lie in memory together when they are written to a file


def decode_all(
    images: Iterable[tuple[str, Any]],
    total: int,
    channels: int = 3,
    size: int | None = None,
    on_progress: OnProgress | None = None,
    path: Path | None = None,
) -> np.ndarray:
    """Decode images of one size into an array [total, channels, H, W] uint8.

    Parameters
    ----------
    images : `total` pairs (file and row, for the messages; encoded bytes or a path)
    channels : 1 (grey) or 3 (RGB); transparency is dropped
    size : side in pixels to which every image is resized (bilinear); None: as they are
    on_progress : called every 5,000 rows and at the end
    path : ``.npy`` file the pixels are written to as they are decoded; None: they stay in memory

    Raises
    ------
    ValueError
        One line naming the file and row of an image that is broken or of another size than the first.
    """
    step = total if path is None else min(_BLOCK, total)
    block = np.empty((0, 0, 0, 0), np.uint8)
    with Rows(path) as rows:
        for row, (where, encoded) in enumerate(images):
            image = _decode(where, encoded, channels, size)
            if row == 0:
                block = _allocate((step, *image.shape))
            if image.shape != block.shape[1:]:
                found, first = _shown(image.shape), _shown(block.shape[1:])
                raise ValueError(f"{where}: the image is {found}, the first one {first}; all images must have one size")
            block[row % step] = image
            done = row + 1
            if done % step == 0 or done == total:
                rows.append(block[: row % step + 1])
            if on_progress is not None and (done % PROGRESS_ROWS == 0 or done == total):
                on_progress(Progress("decode", "images", done, total))
    return rows.array()


def _decode(where: str, encoded: Any, channels: int, size: int | None) -> np.ndarray:
    from PIL import Image

    if encoded is None or encoded == b"":
        raise ValueError(f"{where}: there is no image")
    try:
        with Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image:
            mode = image.mode
            decoded = image.convert("RGB" if channels == 3 else "L")
    except Exception as error:  # every image format raises kinds of its own for a broken file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{where}: not readable as an image ({reason})") from None
    if mode.startswith(("I", "F")):
        # A conversion would cut these off at 255 instead of scaling them.
        raise ValueError(f"{where}: the image has more than 8 bits per channel (mode {mode}); save it with 8")
    if size is not None:
        decoded = decoded.resize((size, size), Image.Resampling.BILINEAR)
    array = np.asarray(decoded)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def _allocate(shape: tuple[int, ...]) -> np.ndarray:
    try:
        return np.empty(shape, np.uint8)
    except MemoryError:
        gigabytes = np.prod(shape, dtype=np.float64) / 1e9
        raise ValueError(f"{shape[0]} images of {_shown(shape[1:])} need {gigabytes:.1f} GB of memory") from None


def _shown(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} x {shape[2]} pixels (height x width)"
