from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcore.data.dataset import Dataset


def toy_dataset(labels: np.ndarray, num_classes: int | None = None, clients: np.ndarray | None = None) -> Dataset:
    """Return a data set whose one feature is the row number."""
    labels = np.asarray(labels, dtype=np.int64)
    names = tuple(f"class {k}" for k in range(num_classes or int(labels.max()) + 1))
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    return Dataset("toy", inputs, labels, names, (0.0,), (1.0,), len(labels), clients)


@pytest.fixture
def toy() -> Callable[..., Dataset]:
    return toy_dataset


@pytest.fixture
def skewed() -> Dataset:
    """1,200 rows, 6 classes of unequal size, in no order."""
    labels = np.repeat(np.arange(6), [400, 300, 200, 150, 100, 50])
    return toy_dataset(np.random.Generator(np.random.PCG64(3)).permutation(labels))


class IdxFiles:
    """Official-looking MNIST files with few, small images, and the table of checksums torchvision would hold."""

    def __init__(self) -> None:
        numbers = np.random.Generator(np.random.PCG64(5))
        self.arrays = {
            "train-images-idx3-ubyte": numbers.integers(0, 256, (12, 4, 4)).astype(np.uint8),
            "train-labels-idx1-ubyte": np.arange(12, dtype=np.uint8) % 10,
            "t10k-images-idx3-ubyte": numbers.integers(0, 256, (5, 4, 4)).astype(np.uint8),
            "t10k-labels-idx1-ubyte": np.arange(5, dtype=np.uint8),
        }
        self.plain = {name: idx(array) for name, array in self.arrays.items()}
        self.packed = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in self.plain.items()}
        self.resources = [(name, hashlib.md5(content).hexdigest()) for name, content in self.packed.items()]

    def write(self, folder: Path, *names: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names or self.packed:
            (folder / name).write_bytes({**self.plain, **self.packed}[name])
        return folder


def idx(array: np.ndarray) -> bytes:
    """Return an array of bytes in the idx format: magic number, big-endian shape, content."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def idx_files(monkeypatch: pytest.MonkeyPatch) -> IdxFiles:
    from torchvision import datasets

    files = IdxFiles()
    for official in (datasets.MNIST, datasets.FashionMNIST):
        monkeypatch.setattr(official, "resources", files.resources)
    return files
