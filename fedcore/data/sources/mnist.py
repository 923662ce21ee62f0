"""MNIST and Fashion-MNIST, from the official idx files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.config import MnistData
from fedcore.data.dataset import Dataset
from fedcore.data.sources.download import fetch, put
from fedcore.data.sources.scaling import scaling


def read(config: MnistData) -> Dataset:
    """Return the images, [70000, 1, 28, 28] uint8, and labels in official order; download what is missing."""
    from torchvision import datasets  # type: ignore[import-untyped]
    from torchvision.datasets.mnist import read_image_file, read_label_file  # type: ignore[import-untyped]

    official = {"mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}[config.name]
    folder = Path(config.root) / official.__name__ / "raw"
    with tempfile.TemporaryDirectory() as scratch:
        # Files are unpacked here, never beside the originals: those may lie in a read-only folder.
        stage = Path(scratch) / official.__name__ / "raw"
        missing = _unpack(official.resources, folder, stage)
        if missing:
            _download(official, config, folder, stage, missing)
        inputs, labels, rows = [], [], []
        for part in ("train", "t10k"):
            pair = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
            images = _parse(read_image_file, stage, folder, pair[0])
            targets = _parse(read_label_file, stage, folder, pair[1])
            if len(images) != len(targets):
                raise ValueError(f"{folder}: {pair[0]} has {len(images)} rows, {pair[1]} has {len(targets)}")
            inputs.append(images[:, None])
            labels.append(targets)
            rows.append(len(images))
    if inputs[0].shape[1:] != inputs[1].shape[1:]:
        raise ValueError(f"{folder}: train images are {inputs[0].shape[2:]}, test images {inputs[1].shape[2:]}")
    names = tuple(map(str, range(10))) if config.name == "mnist" else tuple(official.classes)
    pixels, targets = np.concatenate(inputs), np.concatenate(labels)
    return Dataset(config.name, pixels, targets, names, *scaling(config.name, config.normalise, 1), rows[0])


def _unpack(resources: list[tuple[str, str]], folder: Path, stage: Path) -> list[str]:
    """Check and unpack what `folder` holds into `stage`; return the names of the official files it lacks."""
    from torchvision.datasets.utils import calculate_md5, extract_archive  # type: ignore[import-untyped]

    stage.mkdir(parents=True)
    missing = []
    for name, expected in resources:
        archive, plain = folder / name, folder / Path(name).stem
        if archive.is_file():
            found = calculate_md5(archive)
            if found != expected:
                size = archive.stat().st_size
                raise ValueError(
                    f"{archive}: damaged or not the official file ({size} bytes, MD5 {found}; official MD5 {expected});"
                    " replace it, or delete it to have it downloaded"
                )
            (stage / name).symlink_to(archive.resolve())
            extract_archive(str(archive), str(stage))
        elif plain.is_file():
            # A copy, not a link: a download of the others unpacks every file into `stage` again.
            shutil.copyfile(plain, stage / plain.name)
        else:
            missing.append(name)
    return missing


def _download(official: Any, config: MnistData, folder: Path, stage: Path, missing: list[str]) -> None:
    """Fetch the official files into `stage`, then put the missing ones into `folder`, each in one step."""
    wanted = f"put {', '.join(missing)} into {folder}, or point dataset.root at a folder with {official.__name__}/raw"
    fetch(folder, wanted, config.download, lambda: official(str(stage.parents[1]), download=True))
    for name in missing:
        put(stage / name, folder)


def _parse(reader: Callable[[str], Any], stage: Path, folder: Path, name: str) -> np.ndarray:
    try:
        return np.asarray(reader(str(stage / name)).numpy())
    except (AssertionError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{folder / name}: damaged or not an idx file ({reason}); delete it and run again") from None
