"""Tiny-ImageNet, all of its classes or some, from parquet files."""

from __future__ import annotations

from pathlib import Path

from fedcore.config import TinyImagenetData
from fedcore.data.dataset import Dataset
from fedcore.data.sources import image_tables
from fedcore.data.sources.download import missing
from fedcore.data.sources.progress import OnProgress
from fedcore.data.sources.scaling import scaling


def read(config: TinyImagenetData, on_progress: OnProgress | None = None, path: Path | None = None) -> Dataset:
    """Return the images, [n, 3, 64, 64] uint8, and labels: rows of train.parquet, then of val.parquet.

    The official test images have no labels; the validation images take their place, as is usual.
    """
    folder = Path(config.root) / config.folder
    files = [folder / "train.parquet", folder / "val.parquet"]
    absent = [path.name for path in files if not path.is_file()]
    if absent:
        raise missing(f"; put {' and '.join(absent)} into {folder}, or set dataset.root and dataset.folder")
    table = image_tables.read(files, image_tables.Columns(), on_progress=on_progress, path=path)
    offset, scale = scaling(config.name, config.normalise, 3)
    return Dataset(config.name, table.pixels, table.labels, table.class_names, offset, scale, table.rows[0])
