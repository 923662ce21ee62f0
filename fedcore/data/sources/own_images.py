"""The user's own images: a folder per class, or parquet files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore.config import ConfigError, ImageFolderData, ParquetData, Problem
from fedcore.data.dataset import Dataset
from fedcore.data.sources import image_tables
from fedcore.data.sources.columns import Column
from fedcore.data.sources.own_files import own_files
from fedcore.data.sources.own_roles import read_roles
from fedcore.data.sources.parquet_files import opened, pick
from fedcore.data.sources.pixels import decode_all
from fedcore.data.sources.progress import OnProgress
from fedcore.data.sources.scaling import half

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def read_folder(config: ImageFolderData, on_progress: OnProgress | None = None, path: Path | None = None) -> Dataset:
    """Return the images of ``<root>/<class>/<image>``: classes by name, then files by name.

    With ``clients: true`` of ``<root>/<client>/<class>/<image>``, clients by name first; a client need not have every
    class. Names that begin with a dot are passed over, and so is a file beside the class folders unless it is an image.

    Raises
    ------
    ConfigError
        When ``root`` is no folder.
    ValueError
        One line naming a class without images, a file that is no image, or one of another size.
    """
    root = Path(config.root)
    layout = "<root>/<client>/<class>/<image>" if config.clients else "<root>/<class>/<image>"
    if not root.is_dir():
        raise ConfigError([Problem(("dataset", "root"), f"{root} is no folder; expected {layout}")])
    owners = _folders(root, layout) if config.clients else [root]
    classes = [(client, folder) for client, owner in enumerate(owners) for folder in _folders(owner, layout)]
    names = sorted({folder.name for _, folder in classes})
    images = [images_in(folder) for _, folder in classes]
    counts = [len(files) for files in images]
    labels = np.repeat(np.array([names.index(folder.name) for _, folder in classes], np.int64), counts)
    rows = ((str(file), file) for files in images for file in files)
    pixels = decode_all(rows, len(labels), config.channels, config.size, on_progress, path)
    clients = np.repeat(np.array([client for client, _ in classes], np.int32), counts) if config.clients else None
    return Dataset(config.name, pixels, labels, tuple(names), *half(config.channels), len(labels), clients)


def _folders(parent: Path, layout: str) -> list[Path]:
    """Return the folders in a folder by name; an image beside them is a mistake, as it would not be read."""
    found = []
    for entry in visible(parent):
        if entry.is_dir():
            found.append(entry)
        elif entry.suffix.lower() in ENDINGS:
            raise ValueError(f"{entry}: lies in no class folder; expected {layout}")
    if not found:
        raise ValueError(f"{parent}: has no class folders; expected {layout}")
    return found


def images_in(folder: Path) -> list[Path]:
    """Return the images of a class folder by name.

    Raises
    ------
    ValueError
        One line naming a file that is no image, or a folder that is missing or empty.
    """
    paths = visible(folder) if folder.is_dir() else []
    for path in paths:
        if path.suffix.lower() not in ENDINGS or not path.is_file():
            raise ValueError(f"{path}: not an image; expected files ending in {', '.join(ENDINGS)} in a class folder")
    if not paths:
        raise ValueError(f"{folder}: a class without images; add some or remove the folder")
    return paths


def visible(folder: Path) -> list[Path]:
    """Return what a folder holds by name, without names that begin with a dot."""
    return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: path.name)


def read_parquet(config: ParquetData, on_progress: OnProgress | None = None, path: Path | None = None) -> Dataset:
    """Return the images of ``files``, then those of ``test_files``; see `image_tables.read`.

    Raises
    ------
    ConfigError
        When a file does not exist.
    ValueError
        One line naming the file and the row or column.
    """
    files = own_files(config)

    def parts(name: str) -> list[Column]:
        return [_column(file, name) for file in files]

    roles = read_roles(config, parts)
    columns = image_tables.Columns((config.image,), (config.label,))
    table = image_tables.read(files, columns, None, config.channels, config.size, on_progress, path)
    num_train, scaling = sum(table.rows[: len(config.files)]), half(config.channels)
    return Dataset(config.name, table.pixels, table.labels, table.class_names, *scaling, num_train, **vars(roles))


def _column(file: Path, name: str) -> Column:
    with opened(file) as content:
        pick(file, content.schema_arrow.names, (name,))
        return Column(file, name, content.read([name], use_threads=False)[name])
