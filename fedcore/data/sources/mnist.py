"""MNIST and Fashion-MNIST, from the official idx files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.config import MnistData
from fedcore.data.dataset import Dataset
from fedcore.data.sources.download import Remote, check_official, fetch
from fedcore.data.sources.idx_files import read_pair, unpack
from fedcore.data.sources.progress import OnProgress
from fedcore.data.sources.scaling import scaling

LAST_CLASS = 9


def read(config: MnistData, on_progress: OnProgress | None = None) -> Dataset:
    """Return the images, [70000, 1, 28, 28] uint8, and labels in official order; download what is missing."""
    from torchvision import datasets  # type: ignore[import-untyped]

    official = {"mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}[config.name]
    folder = Path(config.root) / official.__name__ / "raw"
    parts = []
    with tempfile.TemporaryDirectory() as scratch:
        # Files are unpacked here, never beside the originals: those may lie in a read-only folder.
        stage = Path(scratch)
        missing = _unpack(official.resources, folder, stage)
        if missing:
            _download(official, config, folder, missing, on_progress)
            _unpack(missing, folder, stage)
        for part in ("train", "t10k"):
            pair = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
            parts.append(read_pair(stage, folder, *pair, 0, LAST_CLASS))
    (train, labels), (test, test_labels) = parts
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(f"{folder}: train images are {train.shape[1:]}, test images {test.shape[1:]}")
    names = tuple(map(str, range(LAST_CLASS + 1))) if config.name == "mnist" else tuple(official.classes)
    pixels, targets = np.concatenate([train, test])[:, None], np.concatenate([labels, test_labels])
    return Dataset(config.name, pixels, targets, names, *scaling(config.name, config.normalise, 1), len(labels))


def _unpack(resources: list[tuple[str, str]], folder: Path, stage: Path) -> list[tuple[str, str]]:
    """Check and unpack what `folder` holds into `stage`; return names and checksums of the files it lacks."""
    missing = []
    for name, md5 in resources:
        archive, plain = folder / name, folder / Path(name).stem
        if archive.is_file():
            check_official(archive, md5)
            unpack(archive, stage / plain.name)
        elif plain.is_file():
            (stage / plain.name).symlink_to(plain.resolve())
        else:
            missing.append((name, md5))
    return missing


def _download(
    official: Any, config: MnistData, folder: Path, missing: list[tuple[str, str]], on_progress: OnProgress | None
) -> None:
    names = ", ".join(name for name, _ in missing)
    wanted = f"put {names} into {folder}, or point dataset.root at a folder with {official.__name__}/raw"
    files = [Remote(name, md5, tuple(mirror + name for mirror in official.mirrors)) for name, md5 in missing]
    fetch(folder, files, wanted, config.download, on_progress)
