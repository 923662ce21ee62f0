"""Short ways to write and read CIFAR: seven images, the last two of the test split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcore.config import Cifar10Data, Cifar100Data
from fedcore.data import sources
from fedcore.data.dataset import Dataset
from tests.data.images import PNGS, write_table

TEN = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NAMES = {"class_names": json.dumps(TEN)}


def cifar10(root: Path, **options: Any) -> Dataset:
    return sources.read(Cifar10Data(name="cifar10", root=str(root), **{"download": False, **options}))


def cifar100(root: Path, **options: Any) -> Dataset:
    return sources.read(Cifar100Data(name="cifar100", root=str(root), download=False, **options))


def tables(root: Path, labels: Sequence[int] = (3, 0, 9, 1, 2), **options: Any) -> Path:
    write_table(root / "cifar10" / "train.parquet", PNGS[:5], NAMES, label=list(labels), **options)
    write_table(root / "cifar10" / "test.parquet", PNGS[5:], NAMES, label=[7, 8], **options)
    return root
