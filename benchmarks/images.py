"""The image sets of the workloads, read without the pipeline's libraries, or random bytes of the same shapes."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedcore.config import Cifar10Data
from fedcore.data.dataset import Dataset
from fedcore.data.sources.scaling import half
from fedcore.seeds import stream

ImageSet = Literal["mnist", "fashion_mnist", "cifar10"]

_FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}
_SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
_TRAIN_ROWS = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000}
_TEST_ROWS = 10_000
_CLASSES = tuple(map(str, range(10)))


class Sources(NamedTuple):
    """Where the workloads' data come from.

    Attributes
    ----------
    root : Path
        Folder that holds MNIST/raw, FashionMNIST/raw and cifar10.
    partition : Path
        The ``.npz`` of W1: which client holds which row of MNIST.
    is_random : bool
        Random bytes of the same shapes instead of files; as fast, but nothing is learned.
    """

    root: Path
    partition: Path
    is_random: bool = False


def read(name: ImageSet, sources: Sources) -> Dataset:
    """Return an image set in official order, train rows first, scaled to -1..1.

    Raises
    ------
    ValueError
        If a file is missing or damaged; names it and the way out.
    """
    if sources.is_random:
        return _random(name)
    if name == "cifar10":
        return _cifar10(sources.root)
    folder = sources.root / _FOLDERS[name] / "raw"
    parts = [
        (_idx(folder / f"{part}-images-idx3-ubyte"), _idx(folder / f"{part}-labels-idx1-ubyte")) for part in _PARTS
    ]
    inputs = np.concatenate([images[:, None] for images, _ in parts])
    labels = np.concatenate([targets for _, targets in parts]).astype(np.int64)
    return Dataset(name, inputs, labels, _CLASSES, *half(1), len(parts[0][1]))


_PARTS = ("train", "t10k")


def _random(name: ImageSet) -> Dataset:
    generator = stream(0, f"benchmark/{name}")
    rows = _TRAIN_ROWS[name] + _TEST_ROWS
    shape = _SHAPES[name]
    inputs = generator.integers(0, 256, (rows, *shape), np.uint8)
    labels = generator.integers(0, len(_CLASSES), rows)
    return Dataset(name, inputs, labels, _CLASSES, *half(shape[0]), _TRAIN_ROWS[name])


def _cifar10(root: Path) -> Dataset:
    from fedcore.data.sources import cifar

    try:
        return cifar.read(Cifar10Data(name="cifar10", root=str(root), download=False))
    except ImportError as error:
        raise ValueError(
            f"{root}: CIFAR-10 as parquet needs {error.name}, which is not here; use --data random"
        ) from None
    except ValueError as error:
        raise ValueError(f"{error}; or use --data random") from None


def _idx(path: Path) -> np.ndarray:
    """Return the array of an idx file, ``.gz`` or plain: two zero bytes, type, dimensions, sizes, values."""
    packed = path.with_name(f"{path.name}.gz")
    try:
        content = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    except FileNotFoundError:
        raise ValueError(
            f"{packed}: does not exist; give --root a folder with the official files, or use --data random"
        ) from None
    except (OSError, EOFError) as error:
        raise ValueError(f"{packed}: not readable ({error})") from None
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"{path}: no idx file of bytes")
    header = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:header], ">u4"))
    if len(content) != header + int(np.prod(shape)):
        raise ValueError(f"{path}: damaged, {len(content)} bytes for an array {list(shape)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
