"""FEMNIST in LEAF's layout: handwritten digits and letters, by writer."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.config import FemnistData
from fedcore.data.dataset import Dataset
from fedcore.data.rows import Rows
from fedcore.data.sources.download import missing
from fedcore.data.sources.scaling import half

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SIDE = 28


def read(config: FemnistData, path: Path | None = None) -> Dataset:
    """Return the images, [n, 1, 28, 28] uint8: of train/*.json, then of test/*.json, files by name, writers in order.

    A file holds ``users`` and, in ``user_data``, for each of them ``x`` (lists of 784 numbers 0..1) and ``y`` (0..61:
    digits, upper case, lower case). Pixels stay as LEAF has them, dark on light: unlike in MNIST, paper is 255. Client
    i is the i-th writer to appear; LEAF's split by sample gives a writer rows in both parts, its split by user in one.

    Raises
    ------
    ConfigError
        When there are no files.
    ValueError
        One line naming the file, the writer and the writer's row.
    """
    folder = Path(config.root) / "femnist"
    parts = [sorted((folder / part).glob("*.json")) for part in ("train", "test")]
    if not parts[0]:
        raise missing(f"; put LEAF's json files into {folder / 'train'} (and {folder / 'test'}), or set dataset.root")
    numbers: dict[str, int] = {}
    labels, clients = [], []
    num_train = 0
    with Rows(path) as pixels:
        for number, files in enumerate(parts):
            for file in files:
                for user, images, classes in _writers(file):
                    client = numbers.setdefault(user, len(numbers))
                    pixels.append(images)
                    labels.append(classes)
                    clients.append(np.full(len(classes), client, np.int32))
                    num_train += len(classes) if number == 0 else 0
    if num_train == 0:
        raise ValueError(f"{folder / 'train'}: its files hold no images")
    return Dataset(
        config.name,
        pixels.array(),
        np.concatenate(labels),
        CLASSES,
        *half(1),
        num_train,
        np.concatenate(clients),
    )


def _writers(path: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not readable as JSON ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict) or not all(isinstance(content.get(k), t) for k, t in _KEYS.items()):
        raise ValueError(f"{path}: expected a JSON mapping with the list 'users' and the mapping 'user_data'")
    for user in content["users"]:
        held = content["user_data"].get(user) if isinstance(user, str) else None
        if not isinstance(held, dict) or not all(isinstance(held.get(key), list) for key in "xy"):
            raise ValueError(f"{path}: user_data of writer '{user}' must have the lists 'x' and 'y'")
        yield user, *_examples(f"{path}: writer '{user}'", held["x"], held["y"])


_KEYS: dict[str, type] = {"users": list, "user_data": dict}


def _examples(where: str, images: list[Any], labels: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    if len(images) != len(labels):
        raise ValueError(f"{where} has {len(images)} images and {len(labels)} labels")
    pixels = np.empty((len(images), SIDE * SIDE), np.uint8)
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        if type(label) is not int or not 0 <= label < len(CLASSES):
            raise ValueError(f"{where}: label {label!r} in row {row} is no whole number in 0..{len(CLASSES) - 1}")
        values = _numbers(image)
        if values is None or values.shape != (SIDE * SIDE,) or not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"{where}: row {row} must be a list of {SIDE * SIDE} numbers 0..1")
        pixels[row] = np.rint(values * 255)
    return pixels.reshape(-1, 1, SIDE, SIDE), np.array(labels, np.int64)


def _numbers(image: Any) -> np.ndarray | None:
    try:
        return np.array(image, np.float64)
    except (TypeError, ValueError):
        return None
