"""The user's own arrays, in ``.npz`` files."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.config import NpzData, nearest
from fedcore.data.dataset import Dataset
from fedcore.data.sources.numbering import Values, number_classes, number_clients
from fedcore.data.sources.own_files import own_files
from fedcore.data.sources.scaling import UNSCALED, half, standard

_NAMES = ("inputs", "labels", "clients", "protected")


@dataclass(frozen=True)
class _File:
    path: Path
    inputs: np.ndarray
    labels: Values
    clients: Values | None
    protected: np.ndarray | None


def read(config: NpzData) -> Dataset:
    """Return the rows of ``files``, then those of ``test_files``.

    A file holds ``inputs`` ([n, C, H, W] uint8 with ``images: true``, else [n, F] numbers) and ``labels`` [n], whole
    numbers or strings; optionally ``clients`` [n], whole numbers or strings, and ``protected`` [n, P], 0 and 1. Classes
    and clients are numbered as in `own_tables.read`.

    Raises
    ------
    ConfigError
        When a file does not exist.
    ValueError
        One line naming the file, the array, the row if there is one, and what was expected.
    """
    parts = [_file(path, config) for path in own_files(config)]
    for part in parts[1:]:
        if part.inputs.shape[1:] != parts[0].inputs.shape[1:]:
            shapes = [list(p.inputs.shape[1:]) for p in (part, parts[0])]
            raise ValueError(f"{part.path}: an input has shape {shapes[0]}, in {parts[0].path} {shapes[1]}")
        for name in ("clients", "protected"):
            if (getattr(part, name) is None) != (getattr(parts[0], name) is None):
                raise ValueError(f"{part.path}: array '{name}' must be in all files or in none, see {parts[0].path}")
    inputs = np.concatenate([part.inputs for part in parts])
    num_train = sum(len(part.inputs) for part in parts[: len(config.files)])
    labels, names = number_classes([part.labels for part in parts])
    clients = [part.clients for part in parts if part.clients is not None]
    protected, protected_names = _protected(parts, config)
    if config.images:
        offset, scale = half(inputs.shape[1])
    else:
        offset, scale = standard(inputs[:num_train]) if config.standardise else UNSCALED
    return Dataset(
        name=config.name,
        inputs=inputs,
        labels=labels,
        class_names=names,
        offset=offset,
        scale=scale,
        num_train_rows=num_train,
        clients=number_clients(clients) if clients else None,
        protected=protected,
        protected_names=protected_names,
    )


def _file(path: Path, config: NpzData) -> _File:
    arrays = _arrays(path)
    for name in ("inputs", "labels"):
        if name not in arrays:
            raise ValueError(f"{path}: there is no array '{name}'{nearest(name, arrays)}")
    inputs = _images(path, arrays["inputs"]) if config.images else _vectors(path, arrays["inputs"])
    if len(inputs) == 0:
        raise ValueError(f"{path}: there are no rows")
    for name in _NAMES[1:]:
        if name in arrays and arrays[name].shape[:1] != inputs.shape[:1]:
            found = list(arrays[name].shape)
            raise ValueError(f"{path}: array '{name}' must have {len(inputs)} rows, one per input, got shape {found}")
    clients = _values(path, "clients", arrays["clients"]) if "clients" in arrays else None
    protected = _flags(path, arrays["protected"]) if "protected" in arrays else None
    return _File(path, inputs, _values(path, "labels", arrays["labels"]), clients, protected)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            # Names that are not read are kept for the hint at a misspelt one.
            return {name: archive[name] if name in _NAMES else np.empty(0) for name in archive.files}
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: not readable as an .npz of plain arrays ({reason})") from None


def _images(path: Path, inputs: np.ndarray) -> np.ndarray:
    if inputs.dtype != np.uint8 or inputs.ndim != 4 or inputs.shape[1] not in (1, 3):
        raise ValueError(
            f"{path}: array 'inputs' must be images [n, C, H, W] uint8 with C 1 or 3,"
            f" got {inputs.dtype} {list(inputs.shape)}"
        )
    return inputs


def _vectors(path: Path, inputs: np.ndarray) -> np.ndarray:
    if inputs.ndim != 2 or not (np.issubdtype(inputs.dtype, np.number) or inputs.dtype == np.bool_):
        hint = "; images need dataset.images: true" if inputs.ndim == 4 else ""
        found = f"{inputs.dtype} {list(inputs.shape)}{hint}"
        raise ValueError(f"{path}: array 'inputs' must be feature vectors [n, F] of numbers, got {found}")
    if np.iscomplexobj(inputs):
        raise ValueError(f"{path}: array 'inputs' must be real numbers, got {inputs.dtype}")
    wrong = np.argwhere(~(np.abs(inputs.astype(np.float64)) <= np.finfo(np.float32).max))
    if len(wrong):
        row, column = wrong[0]
        value = inputs[row, column]
        raise ValueError(
            f"{path}: array 'inputs' holds {value} in row {row}, column {column}, expected a finite number"
        )
    return inputs.astype(np.float32)


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
