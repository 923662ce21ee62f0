"""The contact sheet of virtual data: a row per class, its number in front, its first samples beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SAMPLES = 10  # per class
TILE = 32  # pixels an image is enlarged to, at least
_MARGIN = 30  # pixels for the numbers


def write_contact_sheet(path: Path, images: np.ndarray, per_class: int) -> None:
    """Draw the first samples of every class.

    Parameters
    ----------
    path : Path
        PNG to write.
    images : [classes * per_class, C, H, W] uint8, class after class
        With 3 channels in colour, otherwise the first channel in grey.
    per_class : int
    """
    import numpy as np
    from PIL import Image, ImageDraw

    chosen = images.reshape(-1, per_class, *images.shape[1:])[:, :SAMPLES]
    chosen = chosen if chosen.shape[2] == 3 else chosen[:, :, :1].repeat(3, axis=2)
    factor = max(1, -(-TILE // max(images.shape[2:])))
    tiles = chosen.repeat(factor, axis=3).repeat(factor, axis=4)
    framed = np.pad(tiles, ((0, 0), (0, 0), (0, 0), (1, 1), (1, 1)), constant_values=255)
    classes, samples, channels, height, width = framed.shape
    rows = framed.transpose(0, 3, 1, 4, 2).reshape(classes * height, samples * width, channels)
    sheet = Image.new("RGB", (_MARGIN + rows.shape[1], rows.shape[0]), "white")
    sheet.paste(Image.fromarray(rows), (_MARGIN, 0))
    pen = ImageDraw.Draw(sheet)
    for label in range(classes):
        pen.text((_MARGIN - 6, label * height + height // 2), str(label), "black", anchor="rm")
    sheet.save(path)
