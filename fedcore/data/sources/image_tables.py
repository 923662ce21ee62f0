"""Parquet files of encoded images with labels, as hubs of data sets publish them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.data.sources.parquet_files import opened, pick
from fedcore.data.sources.pixels import decode_all
from fedcore.data.sources.progress import OnProgress

_BATCH = 1_000


@dataclass(frozen=True)
class Columns:
    """Where a table keeps what: names of columns, the first that exists counts.

    `names_key` is the key of the schema's metadata with the list of class names, as JSON.
    """

    image: tuple[str, ...] = ("image", "img")
    label: tuple[str, ...] = ("label",)
    names_key: str = "class_names"


@dataclass(frozen=True)
class ImageTable:
    """Rows of all files in order: pixels [n, C, H, W] uint8, labels [n] int64, rows of each file."""

    pixels: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    rows: tuple[int, ...]


def read(
    files: Sequence[Path],
    columns: Columns,
    num_classes: int | None = None,
    channels: int = 3,
    size: int | None = None,
    on_progress: OnProgress | None = None,
    path: Path | None = None,
) -> ImageTable:
    """Read and decode parquet files; labels are all checked before the first image is decoded.

    Class names come from the schema's metadata (the key `columns.names_key`, or the class label feature under
    ``huggingface``), else they are the numbers; labels that are strings are the names, in alphabetical order.

    Parameters
    ----------
    files : read in this order
    num_classes : what the set must have; None: as many as there are names or the highest label says, none without rows
    channels, size, on_progress, path : see `pixels.decode_all`

    Raises
    ------
    ValueError
        One line naming the file and, where there is one, the row (from 0) or the column.
    """
    parts = [_read_labels(path, columns) for path in files]
    labels, names = _number(files, parts, num_classes)
    rows = tuple(len(part.labels) for part in parts)
    pixels = decode_all(_images(files, columns), sum(rows), channels, size, on_progress, path)
    return ImageTable(pixels, labels, names, rows)


@dataclass(frozen=True)
class _Part:
    labels: list[str] | np.ndarray
    names: tuple[str, ...] | None


def _number(files: Sequence[Path], parts: list[_Part], num_classes: int | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the labels of all files as numbers, and the class names."""
    texts = [isinstance(part.labels, list) for part in parts]
    if any(texts):
        if not all(texts):
            raise ValueError(f"{files[texts.index(False)]}: labels are numbers, in {files[texts.index(True)]} strings")
        names = tuple(sorted({str(label) for part in parts for label in part.labels}))
        numbers = {name: number for number, name in enumerate(names)}
        return np.array([numbers[label] for part in parts for label in part.labels], np.int64), names
    for path, part in zip(files, parts, strict=True):
        if part.names != parts[0].names:
            raise ValueError(f"{path}: its class names differ from those of {files[0]}")
    labels = [np.asarray(part.labels) for part in parts]
    found = parts[0].names
    if found is not None and num_classes not in (None, len(found)):
        raise ValueError(f"{files[0]}: its metadata name {len(found)} classes, expected {num_classes}")
    count = num_classes or (len(found) if found else min(1 + max(map(np.max, labels)), sum(map(len, labels))))
    for path, values in zip(files, labels, strict=True):
        wrong = np.flatnonzero((values < 0) | (values >= count))
        if len(wrong):
            raise ValueError(f"{path}: label {values[wrong[0]]} in row {wrong[0]} is outside 0..{count - 1}")
    joined, class_names = np.concatenate(labels), found or tuple(map(str, range(count)))
    empty = np.flatnonzero(np.bincount(joined, minlength=count) == 0)
    # Of an official set a part may be at hand; of others a class that nobody has is a slip.
    if num_classes is None and len(empty):
        where = f"{files[0]} and {len(files) - 1} more" if len(files) > 1 else f"{files[0]}"
        raise ValueError(
            f"{where}: class {empty[0]} ('{class_names[empty[0]]}') has no rows; labels are 0..{count - 1} without gaps"
        )
    return joined, class_names


def _read_labels(path: Path, columns: Columns) -> _Part:
    import pyarrow as pa  # type: ignore[import-untyped]

    with opened(path) as file:
        name = pick(path, file.schema_arrow.names, columns.label)
        _image_leaf(path, file, columns)
        if file.metadata.num_rows == 0:
            raise ValueError(f"{path}: there are no rows")
        values = file.read([name], use_threads=False)[name]
        names = _class_names(path, file.schema_arrow.metadata or {}, name, columns.names_key)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if values.null_count:
            row = values.is_null().to_numpy().argmax()
            raise ValueError(f"{path}: row {row} has no label (column '{name}')")
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            return _Part(values.to_pylist(), None)
        if not pa.types.is_integer(values.type):
            raise ValueError(f"{path}: column '{name}' must hold whole numbers or strings, got {values.type}")
        return _Part(values.to_numpy().astype(np.int64), names)


def _images(files: Sequence[Path], columns: Columns) -> Iterator[tuple[str, Any]]:
    for path in files:
        row = 0
        with opened(path) as file:
            leaf = _image_leaf(path, file, columns)
            for batch in file.iter_batches(_BATCH, columns=[leaf], use_threads=False):
                for value in batch.column(0).to_pylist():
                    yield f"{path}: row {row}", value["bytes"] if isinstance(value, dict) else value
                    row += 1


def _image_leaf(path: Path, file: Any, columns: Columns) -> str:
    """Return the path of the bytes inside the schema: ``image`` or ``image.bytes``."""
    import pyarrow as pa

    def is_bytes(kind: Any) -> bool:
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    name = pick(path, file.schema_arrow.names, columns.image)
    kind = file.schema_arrow.field(name).type
    if is_bytes(kind):
        return name
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and is_bytes(kind.field("bytes").type):
        return f"{name}.bytes"
    raise ValueError(f"{path}: column '{name}' must hold encoded images (binary, or a struct with `bytes`), got {kind}")


def _class_names(path: Path, metadata: dict[bytes, bytes], label: str, key: str) -> tuple[str, ...] | None:
    try:
        if key.encode() in metadata:
            names = json.loads(metadata[key.encode()])
        elif b"huggingface" in metadata:
            # A plain column of numbers is there, but has no names.
            names = json.loads(metadata[b"huggingface"])["info"]["features"].get(label, {}).get("names")
            if names is None:
                return None
        else:
            return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path}: the class names in the schema's metadata are not readable") from None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path}: the class names in the schema's metadata must be a list of strings")
    return tuple(names)
