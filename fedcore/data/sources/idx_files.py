"""Pairs of idx files: images and their labels, as they are or packed."""

from __future__ import annotations

import gzip
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np


def unpack(archive: Path, target: Path, opened: IO[bytes] | None = None) -> None:
    """Unpack a ``.gz`` file, or the open stream of one inside `archive`, into the file `target`.

    Raises
    ------
    ValueError
        One line naming the archive when it is damaged.
    """
    try:
        with gzip.open(archive if opened is None else opened) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{archive}: damaged, {target.name} cannot be unpacked ({error}); replace it") from None


def read_pair(stage: Path, folder: Path, images: str, labels: str, low: int, high: int) -> tuple[Any, np.ndarray]:
    """Return the images [n, H, W] uint8 and the labels [n] int64 of two idx files that lie unpacked in `stage`.

    Parameters
    ----------
    folder : where they come from, for the messages
    images, labels : the files' names
    low, high : range of the labels

    Raises
    ------
    ValueError
        One line naming the file, and the row of a label that is outside the range.
    """
    from torchvision.datasets.mnist import read_image_file, read_label_file  # type: ignore[import-untyped]

    pixels = _parse(read_image_file, stage, folder, images)
    targets = _parse(read_label_file, stage, folder, labels)
    if len(pixels) != len(targets):
        raise ValueError(f"{folder}: {images} has {len(pixels)} rows, {labels} has {len(targets)}")
    wrong = np.flatnonzero((targets < low) | (targets > high))
    if len(wrong):
        raise ValueError(f"{folder / labels}: label {targets[wrong[0]]} in row {wrong[0]} is outside {low}..{high}")
    return pixels, targets


def _parse(reader: Callable[[str], Any], stage: Path, folder: Path, name: str) -> np.ndarray:
    try:
        return np.asarray(reader(str(stage / name)).numpy())
    except (AssertionError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{folder / name}: damaged or not an idx file ({reason}); delete it and run again") from None
