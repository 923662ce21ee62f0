"""Data sources: the ``dataset`` section of the parameters -> arrays. One module per source."""

from __future__ import annotations

from pathlib import Path

from fedcore import config as settings
from fedcore.data.dataset import Dataset
from fedcore.data.sources import (
    adult,
    ag_news,
    cifar,
    digits,
    emnist,
    femnist,
    har,
    imagenet,
    mnist,
    own_arrays,
    own_images,
    own_tables,
    svhn,
    synthetic,
    tiny_imagenet,
)
from fedcore.data.sources.progress import OnProgress, Progress

__all__ = ["OnProgress", "Progress", "read"]


def read(config: settings.Dataset, on_progress: OnProgress | None = None, folder: Path | None = None) -> Dataset:
    """Return the data set that `config` names.

    Official train rows come first, then the official test rows; a set without an official split counts all its
    rows as train rows. ``digits`` and ``synthetic`` touch neither the disk nor the network.

    Parameters
    ----------
    config : the ``dataset`` section
    on_progress : told now and then how far a download, or what else takes long, has come
    folder : an empty folder that `fedcore.data.dataset.save` will write the set into: where the inputs may be more
        than fits in memory, they are written there as they are read; None: all is in memory

    Raises
    ------
    ConfigError
        When files are missing and cannot be downloaded.
    ValueError
        When a file is damaged or holds something else; one line naming it, and the row where there is one.
    """
    path = None if folder is None else folder / "inputs.npy"
    match config:
        case settings.DigitsData():
            return digits.read()
        case settings.SyntheticData():
            return synthetic.read(config, on_progress, path)
        case settings.MnistData():
            return mnist.read(config, on_progress)
        case settings.Cifar10Data() | settings.Cifar100Data():
            return cifar.read(config, on_progress, path)
        case settings.TinyImagenetData():
            return tiny_imagenet.read(config, on_progress, path)
        case settings.AdultData():
            return adult.read(config)
        case settings.SvhnData():
            return svhn.read(config, on_progress)
        case settings.EmnistData():
            return emnist.read(config, on_progress, path)
        case settings.ImagenetData():
            return imagenet.read(config, on_progress, path)
        case settings.FemnistData():
            return femnist.read(config, path)
        case settings.HarData():
            return har.read(config)
        case settings.AgNewsData():
            return ag_news.read(config)
        case settings.ImageFolderData():
            return own_images.read_folder(config, on_progress, path)
        case settings.ParquetData():
            return own_images.read_parquet(config, on_progress, path)
        case settings.CsvData() | settings.TableData():
            return own_tables.read(config, path)
        case settings.NpzData():
            return own_arrays.read(config, path)
