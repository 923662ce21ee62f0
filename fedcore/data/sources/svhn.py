"""SVHN, cropped digits, from the official MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore.config import SvhnData
from fedcore.data.dataset import Dataset
from fedcore.data.sources.download import Remote, fetch
from fedcore.data.sources.progress import OnProgress
from fedcore.data.sources.scaling import scaling

SIDE = 32
FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}


def read(config: SvhnData, on_progress: OnProgress | None = None) -> Dataset:
    """Return the images, [99289, 3, 32, 32] uint8, and labels: rows of the train file, then of the test file.

    The files hold ``X`` [32, 32, 3, n] uint8 and ``y`` [n, 1] with 1..10, where 10 is the digit 0. What is missing is
    downloaded; the 531,131 extra images are not used.

    Raises
    ------
    ConfigError
        When a file is missing and cannot be downloaded.
    ValueError
        One line naming the file, and the row if there is one.
    """
    folder = Path(config.root) / "svhn"
    absent = [part for part, name in FILES.items() if not (folder / name).is_file()]
    if absent:
        _download(folder, absent, config.download, on_progress)
    (pixels, labels), test = (_part(folder / name) for name in FILES.values())
    return Dataset(
        config.name,
        np.concatenate([pixels, test[0]]),
        np.concatenate([labels, test[1]]),
        tuple(map(str, range(10))),
        *scaling(config.name, config.normalise, 3),
        len(labels),
    )


def _download(folder: Path, parts: list[str], allowed: bool, on_progress: OnProgress | None) -> None:
    from torchvision.datasets import SVHN  # type: ignore[import-untyped]

    wanted = f"put {' and '.join(FILES[part] for part in parts)} into {folder}, or point dataset.root at a folder"
    official = [SVHN.split_list[part] for part in parts]
    files = [Remote(name, md5, (url,)) for url, name, md5 in official]
    fetch(folder, files, f"{wanted} with svhn/", allowed, on_progress)


def _part(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat  # type: ignore[import-untyped]

    try:
        held = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # a broken file raises whatever its first wrong byte leads to
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged or not a MATLAB 5 file ({reason})") from None
    for name in ("X", "y"):
        if name not in held:
            raise ValueError(f"{path}: there is no array '{name}'; expected the official {path.name}")
    pixels, labels = held["X"], held["y"].reshape(-1)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (SIDE, SIDE, 3):
        raise ValueError(f"{path}: X must be uint8 [32, 32, 3, n], got {pixels.dtype} {list(pixels.shape)}")
    if not np.issubdtype(labels.dtype, np.integer) or len(labels) != pixels.shape[3]:
        raise ValueError(f"{path}: y must be {pixels.shape[3]} whole numbers, got {labels.dtype} [{len(labels)}]")
    wrong = np.flatnonzero((labels < 1) | (labels > 10))
    if len(wrong):
        raise ValueError(f"{path}: label {labels[wrong[0]]} in row {wrong[0]} is outside 1..10")
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10
