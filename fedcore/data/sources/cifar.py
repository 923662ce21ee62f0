"""CIFAR-10 and CIFAR-100: parquet files, or the official binary version (never the python version: it is pickled)."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcore.config import Cifar10Data, Cifar100Data
from fedcore.data.dataset import Dataset
from fedcore.data.sources import image_tables
from fedcore.data.sources.download import Remote, check_official, fetch, missing
from fedcore.data.sources.image_tables import Columns
from fedcore.data.sources.progress import OnProgress
from fedcore.data.sources.scaling import scaling

URL = "https://www.cs.toronto.edu/~kriz/"
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Binary:
    """The official binary version: records of one byte per label, then 3,072 of pixels (R, G, B planes)."""

    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str  # file with a class name per line
    labels: int  # label bytes in a record
    label: int  # which of them counts


@dataclass(frozen=True)
class _Set:
    columns: Columns
    num_classes: int
    binary: Binary


_ARCHIVE_10 = ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin")
_ARCHIVE_100 = ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary")
_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_FILES_100 = (("train.bin",), ("test.bin",))

CIFAR_10 = _Set(Columns(), 10, Binary(*_ARCHIVE_10, _BATCHES, ("test_batch.bin",), "batches.meta.txt", 1, 0))
FINE = _Set(
    Columns(label=("fine_label", "label")),
    100,
    Binary(*_ARCHIVE_100, *_FILES_100, "fine_label_names.txt", 2, 1),
)
COARSE = _Set(
    Columns(label=("coarse_label",), names_key="coarse_class_names"),
    20,
    Binary(*_ARCHIVE_100, *_FILES_100, "coarse_label_names.txt", 2, 0),
)


def read(
    config: Cifar10Data | Cifar100Data, on_progress: OnProgress | None = None, path: Path | None = None
) -> Dataset:
    """Return the images, [60000, 3, 32, 32] uint8, and labels in official order.

    Of what lies under ``root``, the first of these counts: the parquet files, the unpacked binary version, its
    archive (checked by its official MD5, read without unpacking it to disk). With none of them, the archive is
    downloaded into ``root``.
    """
    if isinstance(config, Cifar10Data):
        chosen = CIFAR_10
    else:
        chosen = FINE if config.labels == "fine" else COARSE
    offset, scale = scaling(config.name, config.normalise, 3)
    root = Path(config.root)
    tables = [root / config.name / f"{part}.parquet" for part in ("train", "test")]
    if any(path.is_file() for path in tables):
        absent = [path.name for path in tables if not path.is_file()]
        if absent:
            raise missing(f"; put {absent[0]} into {tables[0].parent}, beside the other")
        table = image_tables.read(tables, chosen.columns, chosen.num_classes, on_progress=on_progress, path=path)
        pixels, labels, names, num_train = table.pixels, table.labels, table.class_names, table.rows[0]
    else:
        pixels, labels, names, num_train = _read_binary(root, config, chosen, on_progress)
    return Dataset(config.name, pixels, labels, names, offset, scale, num_train)


def _read_binary(
    root: Path, config: Cifar10Data | Cifar100Data, chosen: _Set, on_progress: OnProgress | None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], int]:
    binary = chosen.binary
    place, contents = _contents(root, config, binary, on_progress)
    names = tuple(contents.pop(binary.names).decode(errors="replace").split())
    if len(names) != chosen.num_classes:
        raise ValueError(f"{place / binary.names}: {len(names)} class names, expected {chosen.num_classes}")
    parts = [_records(place / name, contents[name], binary) for name in (*binary.train, *binary.test)]
    pixels = np.concatenate([part[:, binary.labels :] for part in parts]).reshape(-1, 3, 32, 32)
    for name, part in zip((*binary.train, *binary.test), parts, strict=True):
        wrong = np.flatnonzero(part[:, binary.label] >= chosen.num_classes)
        if len(wrong):
            label = part[wrong[0], binary.label]
            raise ValueError(f"{place / name}: label {label} in row {wrong[0]} is outside 0..{chosen.num_classes - 1}")
    labels = np.concatenate([part[:, binary.label] for part in parts]).astype(np.int64)
    return pixels, labels, names, sum(map(len, parts[: len(binary.train)]))


def _records(path: Path, content: bytes, binary: Binary) -> np.ndarray:
    size = binary.labels + PIXELS
    if not content or len(content) % size:
        raise ValueError(f"{path}: damaged, {len(content):,} bytes are not whole records of {size:,}; replace it")
    return np.frombuffer(content, np.uint8).reshape(-1, size)


def _contents(
    root: Path, config: Cifar10Data | Cifar100Data, binary: Binary, on_progress: OnProgress | None
) -> tuple[Path, dict[str, bytes]]:
    """Return the files of the binary version by name, and where they are."""
    folder, archive = root / binary.folder, root / binary.archive
    needed = (*binary.train, *binary.test, binary.names)
    if folder.is_dir():
        absent = [name for name in needed if not (folder / name).is_file()]
        if absent:
            raise missing(f"; put {', '.join(absent)} into {folder}, or delete that folder to use {binary.archive}")
        return folder, {name: (folder / name).read_bytes() for name in needed}
    if archive.is_file():
        return archive, _unpack(archive, binary, needed)
    wanted = (
        f"put {binary.archive} into {root},"
        f" or point dataset.root at a folder with {config.name}/train.parquet and {config.name}/test.parquet"
    )
    file = Remote(binary.archive, binary.md5, (URL + binary.archive,))
    fetch(root, [file], wanted, config.download, on_progress)
    return archive, _unpack(archive, binary, needed)


def _unpack(archive: Path, binary: Binary, needed: Iterable[str]) -> dict[str, bytes]:
    check_official(archive, binary.md5)
    contents = {}
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                name = member.name.rpartition("/")[2]
                file = members.extractfile(member) if name in needed else None
                if file is not None:
                    contents[name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive}: not readable ({' '.join(str(error).split())})") from None
    absent = [name for name in needed if name not in contents]
    if absent:
        raise ValueError(f"{archive}: does not hold {', '.join(absent)}")
    return contents
