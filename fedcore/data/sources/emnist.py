"""EMNIST: handwritten digits and letters, from the official idx files."""

from __future__ import annotations

import string
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from fedcore.config import EmnistData
from fedcore.data.dataset import Dataset
from fedcore.data.rows import Rows
from fedcore.data.sources.download import Remote, check_official, fetch
from fedcore.data.sources.idx_files import read_pair, unpack
from fedcore.data.sources.progress import OnProgress
from fedcore.data.sources.scaling import half

ARCHIVE = "gzip.zip"
KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
_BLOCK = 10_000  # images that are turned together


def read(config: EmnistData, on_progress: OnProgress | None = None, path: Path | None = None) -> Dataset:
    """Return the images of one of the official splits, [n, 1, 28, 28] uint8, and labels: train rows, then test rows.

    The files hold every image mirrored at its diagonal; here letters stand upright, as MNIST's digits do (torchvision
    leaves them lying). The labels 1..26 of ``letters`` become 0..25. Of what lies in ``EMNIST/raw`` the first of these
    counts: the idx files of the split, packed or not, and the official archive of all splits, checked by its MD5.

    Raises
    ------
    ConfigError
        When files are missing and cannot be downloaded.
    ValueError
        One line naming the file, and the row if there is one.
    """
    names = _classes(config.split)
    first = 1 if config.split == "letters" else 0
    folder = Path(config.root) / "EMNIST" / "raw"
    files = [f"emnist-{config.split}-{part}" for part in ("train", "test")]
    labels = []
    with tempfile.TemporaryDirectory() as scratch, Rows(path) as rows:
        stage = Path(scratch)
        _gather(folder, [f"{file}-{kind}" for file in files for kind in KINDS], stage, config, on_progress)
        for file in files:
            pair = [f"{file}-{kind}" for kind in KINDS]
            images, targets = read_pair(stage, folder, pair[0], pair[1], first, first + len(names) - 1)
            for start in range(0, len(images), _BLOCK):
                upright = images[start : start + _BLOCK].transpose(0, 2, 1)[:, None]
                rows.append(np.ascontiguousarray(upright))
            labels.append(targets - first)
            for name in pair:
                (stage / name).unlink()
    return Dataset(config.name, rows.array(), np.concatenate(labels), names, *half(1), len(labels[0]))


def _classes(split: str) -> tuple[str, ...]:
    from torchvision.datasets import EMNIST  # type: ignore[import-untyped]

    # torchvision counts a class that no image has.
    return tuple(string.ascii_lowercase) if split == "letters" else tuple(EMNIST.classes_split_dict[split])


def _gather(folder: Path, names: list[str], stage: Path, config: EmnistData, on_progress: OnProgress | None) -> None:
    """Put the idx files into `stage`, unpacked."""
    found = {name: _find(folder, name) for name in names}
    if None in found.values():
        archive = folder / ARCHIVE
        if not archive.is_file():
            _download(folder, [name for name, file in found.items() if file is None], config, on_progress)
        _unpack_all(archive, names, stage)
        return
    for name, file in found.items():
        if file is not None and file.suffix == ".gz":
            unpack(file, stage / name)
        elif file is not None:
            (stage / name).symlink_to(file.resolve())


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def _download(folder: Path, absent: list[str], config: EmnistData, on_progress: OnProgress | None) -> None:
    from torchvision.datasets import EMNIST

    wanted = f"put {ARCHIVE}, or {', '.join(absent)} (.gz or not), into {folder}"
    wanted += ", or point dataset.root at a folder with EMNIST/raw"
    fetch(folder, [Remote(ARCHIVE, EMNIST.md5, (EMNIST.url,))], wanted, config.download, on_progress)


def _unpack_all(archive: Path, names: list[str], stage: Path) -> None:
    from torchvision.datasets import EMNIST

    check_official(archive, EMNIST.md5)
    try:
        with zipfile.ZipFile(archive) as members:
            for name in names:
                with members.open(f"gzip/{name}.gz") as packed:
                    unpack(archive, stage / name, packed)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{archive}: not readable ({' '.join(str(error).split())})") from None
