"""New examples that arrive for a data set: a file of its own kind, or a folder of images by class."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from fedcore import config as settings
from fedcore.config import nearest
from fedcore.data import accumulated
from fedcore.data.dataset import Dataset
from fedcore.data.sources import image_tables, own_arrays, own_images, own_tables

_ENDINGS = {
    "csv": (".csv", ".csv.gz"),
    "table": (".parquet",),
    "parquet": (".parquet",),
    "npz": (".npz",),
}


def read(config: settings.Dataset, data: Dataset, path: Path) -> Dataset:
    """Return the examples of a delivery in the terms of the data set they are for: its classes and its scaling.

    What a delivery is depends on the source: a file for ``csv``, ``table``, ``parquet`` and ``npz``, a folder
    ``<delivery>/<class>/<image>`` for ``image_folder``. Every other set of images or feature vectors takes ``.npz``
    files, as the source ``npz`` has them.

    Parameters
    ----------
    config : the ``dataset`` section
    data : the data set as it is
    path : the delivery

    Raises
    ------
    ValueError
        One line naming the file, the row or column where there is one, and what was expected.
    """
    found = _read(config, data, path)
    labels = _labels(path, found, data)
    if found.input_shape != data.input_shape:
        raise ValueError(f"{path}: an example has shape {list(found.input_shape)}, expected {list(data.input_shape)}")
    batch = dataclasses.replace(
        found, name=data.name, labels=labels, class_names=data.class_names, offset=data.offset, scale=data.scale
    )
    wrong = accumulated.problem(data, batch)
    if wrong is not None:
        raise ValueError(f"{path}: {wrong}")
    return batch


def _read(config: settings.Dataset, data: Dataset, path: Path) -> Dataset:
    if isinstance(config, settings.ImageFolderData):
        if not path.is_dir():
            raise ValueError(f"{path}: expected a folder with a folder per class, got a file")
        return own_images.read_folder(config.model_copy(update={"root": str(path)}))
    own = config.name in _ENDINGS
    endings = _ENDINGS[config.name if own else "npz"]
    if not path.is_file() or not path.name.endswith(endings):
        raise ValueError(f"{path}: data set '{config.name}' takes files ending in {' or '.join(endings)}")
    alone = {"files": [str(path)], "test_files": []}
    if isinstance(config, settings.ParquetData):
        columns = image_tables.Columns((config.image,), (config.label,))
        table = image_tables.read([path], columns, data.num_classes, config.channels, config.size)
        scaling = (data.offset, data.scale)
        return Dataset(config.name, table.pixels, table.labels, table.class_names, *scaling, len(table.labels))
    if isinstance(config, settings.CsvData | settings.TableData):
        # A file with its columns in another order, or with one more, must not mean something else.
        update = {**alone, "standardise": False, "features": own_tables.feature_names(config)}
        return own_tables.read(config.model_copy(update=update))
    if isinstance(config, settings.NpzData):
        return own_arrays.read(config.model_copy(update={**alone, "standardise": False}))
    if config.kind not in ("images", "feature vectors"):
        raise ValueError(f"{path}: data set '{config.name}' has {config.kind}, which .npz files cannot bring")
    section = settings.NpzData(name="npz", files=[str(path)], images=config.is_image, standardise=False)
    return dataclasses.replace(own_arrays.read(section), protected_names=data.protected_names)


def _labels(path: Path, found: Dataset, data: Dataset) -> np.ndarray:
    """Return the labels in the numbers of the data set; by the names of the classes, or else by their numbers."""
    names = data.class_names
    if not set(found.class_names) <= set(names) and all(name.isdecimal() for name in found.class_names):
        names = tuple(map(str, range(data.num_classes)))
    for number, name in enumerate(found.class_names):
        if name not in names and (found.labels == number).any():
            row = int(np.argmax(found.labels == number))
            raise ValueError(f"{path}: label '{name}' in row {row} is no class of the data set{nearest(name, names)}")
    numbers = {name: number for number, name in enumerate(names)}
    return np.asarray(np.array([numbers.get(name, 0) for name in found.class_names], np.int64)[found.labels])
