"""The user's own arrays, in ``.npz`` files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.config import NpzData
from fedcore.data.dataset import Dataset
from fedcore.data.rows import Rows
from fedcore.data.sources import npz_blocks
from fedcore.data.sources.numbering import Values, number_classes, number_clients
from fedcore.data.sources.own_files import own_files
from fedcore.data.sources.own_roles import Roles
from fedcore.data.sources.scaling import UNSCALED, half, standard

_NAMES = ("labels", "clients", "protected")


@dataclass(frozen=True)
class _File:
    path: Path
    shape: tuple[int, ...]  # of the inputs
    labels: Values
    clients: Values | None
    protected: np.ndarray | None


def read(config: NpzData, path: Path | None = None) -> Dataset:
    """Return the rows of ``files``, then those of ``test_files``.

    A file holds ``inputs`` ([n, C, H, W] uint8 with ``images: true``, else [n, F] numbers) and ``labels`` [n], whole
    numbers or strings; optionally ``clients`` [n], whole numbers or strings, and ``protected`` [n, P], 0 and 1. Classes
    and clients are numbered as in `own_tables.read`. Inputs are read block by block.

    Raises
    ------
    ConfigError
        When a file does not exist.
    ValueError
        One line naming the file, the array, the row if there is one, and what was expected.
    """
    parts = [_file(file, config) for file in own_files(config)]
    for part in parts[1:]:
        if part.shape[1:] != parts[0].shape[1:]:
            shapes = [list(p.shape[1:]) for p in (part, parts[0])]
            raise ValueError(f"{part.path}: an input has shape {shapes[0]}, in {parts[0].path} {shapes[1]}")
        for name in ("clients", "protected"):
            if (getattr(part, name) is None) != (getattr(parts[0], name) is None):
                raise ValueError(f"{part.path}: array '{name}' must be in all files or in none, see {parts[0].path}")
    num_train = sum(part.shape[0] for part in parts[: len(config.files)])
    labels, names = number_classes([part.labels for part in parts])
    held = [part.clients for part in parts if part.clients is not None]
    clients, client_names = number_clients(held) if held else (None, ())
    roles = Roles(clients, client_names, *_protected(parts, config))
    with Rows(path) as rows:
        for part in parts:
            first = 0
            for block in npz_blocks.read(part.path, "inputs"):
                rows.append(block if config.images else _finite(part.path, block, first))
                first += len(block)
    inputs = rows.array()
    if config.images:
        scaling = half(inputs.shape[1])
    else:
        scaling = standard(inputs, num_train) if config.standardise else UNSCALED
    return Dataset(config.name, inputs, labels, names, *scaling, num_train, **vars(roles))


def _file(path: Path, config: NpzData) -> _File:
    arrays, shape, dtype = npz_blocks.small_arrays(path, _NAMES, "inputs")
    (_check_images if config.images else _check_vectors)(path, shape, dtype)
    if shape[0] == 0:
        raise ValueError(f"{path}: there are no rows")
    for name, array in arrays.items():
        if array.shape[:1] != shape[:1]:
            found = list(array.shape)
            raise ValueError(f"{path}: array '{name}' must have {shape[0]} rows, one per input, got shape {found}")
    clients = _values(path, "clients", arrays["clients"]) if "clients" in arrays else None
    protected = _flags(path, arrays["protected"]) if "protected" in arrays else None
    return _File(path, shape, _values(path, "labels", arrays["labels"]), clients, protected)


def _check_images(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if dtype != np.uint8 or len(shape) != 4 or shape[1] not in (1, 3):
        raise ValueError(
            f"{path}: array 'inputs' must be images [n, C, H, W] uint8 with C 1 or 3, got {dtype} {list(shape)}"
        )


def _check_vectors(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if len(shape) != 2 or not (np.issubdtype(dtype, np.number) or dtype == np.bool_):
        hint = "; images need dataset.images: true" if len(shape) == 4 else ""
        found = f"{dtype} {list(shape)}{hint}"
        raise ValueError(f"{path}: array 'inputs' must be feature vectors [n, F] of numbers, got {found}")
    if np.issubdtype(dtype, np.complexfloating):
        raise ValueError(f"{path}: array 'inputs' must be real numbers, got {dtype}")


def _finite(path: Path, block: np.ndarray, first: int) -> np.ndarray:
    wrong = np.argwhere(~(np.abs(block.astype(np.float64)) <= np.finfo(np.float32).max))
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"{path}: array 'inputs' holds {block[row, column]} in row {first + row}, column {column},"
            " expected a finite number"
        )
    return block.astype(np.float32)


def _values(path: Path, name: str, array: np.ndarray) -> Values:
    if array.ndim == 1 and (np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_):
        return Values(path, name, array.astype(np.int64))
    if array.ndim == 1 and array.dtype.kind == "U":
        if "" in array:
            raise ValueError(f"{path}: array '{name}' has an empty string in row {int(np.argmax(array == ''))}")
        return Values(path, name, array.tolist())
    found = f"{array.dtype} {list(array.shape)}"
    if array.ndim == 1 and array.dtype.kind == "f" and np.isnan(array).any():
        found += f", NaN in row {int(np.argmax(np.isnan(array)))}"
    raise ValueError(f"{path}: array '{name}' must be [n] whole numbers or strings, got {found}")


def _flags(path: Path, array: np.ndarray) -> np.ndarray:
    table = array[:, None] if array.ndim == 1 else array
    if table.ndim != 2 or not (np.issubdtype(table.dtype, np.integer) or table.dtype == np.bool_):
        raise ValueError(f"{path}: array 'protected' must be [n, P] of 0 and 1, got {array.dtype} {list(array.shape)}")
    wrong = np.argwhere((table != 0) & (table != 1))
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"{path}: array 'protected' holds {table[row, column]} in row {row}, column {column}, expected 0 or 1"
        )
    return table.astype(np.uint8)


def _protected(parts: list[_File], config: NpzData) -> tuple[Any, tuple[str, ...]]:
    tables = [part.protected for part in parts if part.protected is not None]
    if not tables:
        if config.protected:
            raise ValueError(f"{parts[0].path}: there is no array 'protected', but dataset.protected names its columns")
        return None, ()
    names = tuple(config.protected) or tuple(f"protected_{column}" for column in range(tables[0].shape[1]))
    for part, table in zip(parts, tables, strict=True):
        if table.shape[1] != len(names):
            raise ValueError(f"{part.path}: array 'protected' has {table.shape[1]} columns, expected {len(names)}")
    return np.concatenate(tables), names
