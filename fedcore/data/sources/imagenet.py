"""Some classes of ImageNet, as small square images, from the official folders of JPEG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore.config import ConfigError, ImagenetData, Problem, nearest
from fedcore.data.dataset import Dataset
from fedcore.data.sources.download import missing
from fedcore.data.sources.own_images import images_in, visible
from fedcore.data.sources.pixels import decode_all
from fedcore.data.sources.progress import OnProgress
from fedcore.data.sources.scaling import scaling


def read(config: ImagenetData, on_progress: OnProgress | None = None, path: Path | None = None) -> Dataset:
    """Return the images, [n, 3, size, size] uint8: of `folder` class by class, files by name, then of `test_folder`.

    Images are resized without regard to their proportions. The 12 classes at 64x64 of FedLC's experiments are not
    named in the paper; the default takes the first 12 folders by name.

    Raises
    ------
    ConfigError
        When a folder is missing, or a class has none.
    ValueError
        One line naming a class without images, or a file that is no image.
    """
    root = Path(config.root)
    train = root / config.folder
    if not train.is_dir():
        raise missing(f"; put ImageNet's class folders <wnid>/*.JPEG into {train}, or set dataset.root or .folder")
    classes = _classes(config, train)
    folders = [train] if config.test_folder is None else [train, root / config.test_folder]
    files, labels, counts = [], [], []
    for folder in folders:
        if not folder.is_dir():
            raise missing(f"; put class folders <wnid>/*.JPEG into {folder}, or set dataset.test_folder to null")
        found = [images_in(folder / name) for name in classes]
        files += [file for images in found for file in images]
        labels.append(np.repeat(np.arange(len(classes)), list(map(len, found))).astype(np.int64))
        counts.append(len(labels[-1]))
    rows = ((str(file), file) for file in files)
    pixels = decode_all(rows, len(files), 3, config.size, on_progress, path)
    scale = scaling(config.name, config.normalise, 3)
    return Dataset(config.name, pixels, np.concatenate(labels), tuple(classes), *scale, counts[0])


def _classes(config: ImagenetData, train: Path) -> list[str]:
    there = [entry.name for entry in visible(train) if entry.is_dir()]
    where = ("dataset", "classes")
    if isinstance(config.classes, int):
        if config.classes > len(there):
            message = f"{config.classes} classes are wanted, {train} has {len(there)} folders"
            raise ConfigError([Problem(where, message)])
        return there[: config.classes]
    problems = [
        Problem((*where, number), f"{train} has no folder '{name}'{nearest(name, there)}")
        for number, name in enumerate(config.classes)
        if name not in there
    ]
    repeated = [name for number, name in enumerate(config.classes) if name in config.classes[:number]]
    problems += [Problem(where, f"'{name}' is there twice") for name in repeated]
    if problems:
        raise ConfigError(problems)
    return config.classes
