"""A data set on disk and in memory: examples, labels and how to scale them; never which client holds what."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.data.rows import blocks, is_whole_file

_KINDS = {(4, "uint8"), (3, "float32"), (2, "float32"), (2, "int32")}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled examples in their official order: train rows, then test rows.

    Parameters
    ----------
    name : str
        Name of the source.
    inputs : array
        [n, C, H, W] uint8 (images), [n, C, L] float32 (signals), [n, F] float32 (feature vectors) or [n, L] int32
        (token ids, 0..`num_tokens`-1). Raw units; the model sees ``(inputs - offset) * scale``, and ids as they are.
    labels : array [n] int64, 0..K-1
    class_names : K strings
    offset, scale : floats
        One per channel (images, signals), one or one per feature (vectors), ``(0.0,)`` and ``(1.0,)`` (token ids).
    num_train_rows : int, 1..n
        Rows before this one are the official train rows.
    clients : array [n] int32, >= 0, or None
        The set's own clients, if it has any.
    client_names : strings, or empty
        What the set calls its own clients, by their numbers; empty where it knows them by number only.
    protected : array [n, P] uint8, 0 or 1, or None
        Attributes that must not show in a representation (race, sex), if the set has any.
    protected_names : P strings, empty without `protected`
    num_tokens : int or None
        Size of the vocabulary; token ids have one, nothing else has.

    Raises
    ------
    ValueError
        One line naming the data set, the array and the row that is wrong.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    offset: tuple[float, ...]
    scale: tuple[float, ...]
    num_train_rows: int
    clients: np.ndarray | None = None
    protected: np.ndarray | None = None
    protected_names: tuple[str, ...] = ()
    num_tokens: int | None = None
    client_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("inputs", "labels", "clients", "protected"):
            if getattr(self, field) is not None:
                view = getattr(self, field).view()
                view.flags.writeable = False
                object.__setattr__(self, field, view)
        problem = next(_problems(self), None)
        if problem is not None:
            raise ValueError(f"data set '{self.name}': {problem}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example, ``(C, H, W)``, ``(C, L)``, ``(F,)`` or ``(L,)``."""
        return tuple(self.inputs.shape[1:])

    def take(self, rows: np.ndarray) -> Dataset:
        """Return the set of some rows, all of them counted as train rows."""
        own = {name: array[rows] for name, array in _arrays(self).items()}
        return dataclasses.replace(self, **own, num_train_rows=len(rows))

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 (64 hex digits) over the arrays and everything in ``meta.json``."""
        digest = hashlib.sha256(json.dumps(_meta(self), sort_keys=True).encode())
        for field, array in _arrays(self).items():
            digest.update(f"{field} {array.dtype.str} {array.shape}".encode())
            for _, block in blocks(array):
                digest.update(np.ascontiguousarray(block).reshape(-1).data)
        return digest.hexdigest()


def save(dataset: Dataset, folder: Path | str) -> None:
    """Write ``meta.json`` and an ``.npy`` per array, ``clients`` and ``protected`` if any; same data, same bytes.

    An array that already is that file, because its source wrote it there, is left as it is.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for field, array in _arrays(dataset).items():
        path = folder / f"{field}.npy"
        if not (path.is_file() and is_whole_file(array) and path.samefile(str(getattr(array, "filename", "")))):
            np.save(path, array, allow_pickle=False)
    meta = {**_meta(dataset), "content_hash": dataset.content_hash}
    (folder / "meta.json").write_text(json.dumps(meta, sort_keys=True, indent=2, ensure_ascii=False) + "\n")


def load(folder: Path | str) -> Dataset:
    """Read a data set folder; ``inputs`` stay on disk (memory-mapped, read-only).

    Raises
    ------
    ValueError
        One line naming the file when one is missing, broken, or differs from the stored content hash.
    """
    folder = Path(folder)
    meta = _read_meta(folder / "meta.json")
    try:
        dataset = Dataset(
            name=meta["name"],
            inputs=_read_array(folder / "inputs.npy", mapped=True),
            labels=_read_array(folder / "labels.npy"),
            class_names=tuple(meta["class_names"]),
            offset=tuple(meta["offset"]),
            scale=tuple(meta["scale"]),
            num_train_rows=meta["num_train_rows"],
            clients=_read_array(folder / "clients.npy") if (folder / "clients.npy").exists() else None,
            protected=_read_array(folder / "protected.npy") if "protected_names" in meta else None,
            protected_names=tuple(meta.get("protected_names", ())),
            num_tokens=meta.get("num_tokens"),
            client_names=tuple(meta.get("client_names", ())),
        )
        expected = meta["content_hash"]
    except KeyError as error:
        raise ValueError(f"{folder / 'meta.json'}: key {error} is missing; run `dvc repro prepare`") from None
    except (TypeError, ValueError) as error:
        raise ValueError(str(error) if str(folder) in str(error) else f"{folder}: {error}") from None
    if dataset.content_hash != expected:
        raise ValueError(f"{folder}: its files differ from the content hash in meta.json; run `dvc repro -f prepare`")
    return dataset


def _arrays(dataset: Dataset) -> dict[str, np.ndarray]:
    fields = ("inputs", "labels", "clients", "protected")
    return {field: array for field in fields if (array := getattr(dataset, field)) is not None}


def _meta(dataset: Dataset) -> dict[str, Any]:
    meta = {
        "name": dataset.name,
        "num_classes": dataset.num_classes,
        "class_names": list(dataset.class_names),
        "offset": list(dataset.offset),
        "scale": list(dataset.scale),
        "num_train_rows": dataset.num_train_rows,
    }
    if dataset.protected is not None:
        meta["protected_names"] = list(dataset.protected_names)
    if dataset.num_tokens is not None:
        meta["num_tokens"] = dataset.num_tokens
    if dataset.client_names:
        meta["client_names"] = list(dataset.client_names)
    return meta


def _problems(dataset: Dataset) -> Iterator[str]:
    inputs, labels, clients = dataset.inputs, dataset.labels, dataset.clients
    if (inputs.ndim, inputs.dtype.name) not in _KINDS:
        expected = "[n, C, H, W] uint8, [n, C, L] float32, [n, F] float32 or [n, L] int32"
        yield f"inputs must be {expected}, got {inputs.dtype} {list(inputs.shape)}"
    if labels.dtype != np.int64 or labels.shape != inputs.shape[:1]:
        yield f"labels must be int64 [{len(inputs)}], one per input, got {labels.dtype} {list(labels.shape)}"
    if 0 in inputs.shape:
        yield f"inputs are empty, shape {list(inputs.shape)}"
    wrong = np.flatnonzero((labels < 0) | (labels >= dataset.num_classes))
    if len(wrong):
        yield f"label {labels[wrong[0]]} in row {wrong[0]} is outside 0..{dataset.num_classes - 1}"
    yield from _scaling_problems(dataset)
    if not 1 <= dataset.num_train_rows <= len(inputs):
        yield f"num_train_rows must be 1..{len(inputs)}, got {dataset.num_train_rows}"
    if clients is not None and (clients.dtype != np.int32 or clients.shape != labels.shape or clients.min() < 0):
        yield f"clients must be int32 [{len(labels)}], >= 0, got {clients.dtype} {list(clients.shape)}"
    names = dataset.client_names
    if names and (clients is None or len(names) <= clients.max() or len(set(names)) < len(names)):
        yield f"client_names must be one different name per client, got {len(names)} names"
    yield from _protected_problems(dataset)
    yield from _value_problems(dataset)


def _scaling_problems(dataset: Dataset) -> Iterator[str]:
    inputs, is_tokens = dataset.inputs, dataset.inputs.dtype == np.int32
    valid = {inputs.shape[1]} if inputs.ndim > 2 else {1} if is_tokens else {1, inputs.shape[1]}
    for key in ("offset", "scale"):
        values = getattr(dataset, key)
        if len(values) not in valid or not np.isfinite(values).all():
            yield f"{key} must be {' or '.join(map(str, sorted(valid)))} finite number(s), got {list(values)}"
    if is_tokens and (tuple(dataset.offset), tuple(dataset.scale)) != ((0.0,), (1.0,)):
        yield f"token ids have offset (0.0,) and scale (1.0,), got {dataset.offset} and {dataset.scale}"
    if is_tokens != (dataset.num_tokens is not None):
        yield f"num_tokens goes with token ids ([n, L] int32) only, got {dataset.num_tokens} with {inputs.dtype} inputs"


def _value_problems(dataset: Dataset) -> Iterator[str]:
    inputs = dataset.inputs
    if inputs.dtype == np.uint8:
        return
    for start, block in blocks(inputs):
        rows = block.reshape(-1, int(np.prod(inputs.shape[1:])))
        if dataset.num_tokens is None:
            valid = np.isfinite(rows).all(axis=1)
            message = "are not finite"
        else:
            valid = ((rows >= 0) & (rows < dataset.num_tokens)).all(axis=1)
            message = f"are outside 0..{dataset.num_tokens - 1}, the vocabulary"
        if not valid.all():
            yield f"inputs in row {start + int(np.argmin(valid))} {message}"


def _protected_problems(dataset: Dataset) -> Iterator[str]:
    protected, names = dataset.protected, dataset.protected_names
    if protected is None:
        if names:
            yield f"protected_names {list(names)} need the array protected, [{len(dataset)}, {len(names)}] uint8"
        return
    if protected.dtype != np.uint8 or not names or protected.shape != (len(dataset), len(names)):
        shape = f"[{len(dataset)}, {len(names)}]"
        found = f"{protected.dtype} {list(protected.shape)}"
        yield f"protected must be uint8 {shape}, a row per input and a column per protected name, got {found}"
    elif len(set(names)) < len(names):
        yield f"protected_names must differ, got {list(names)}"
    for row, column in np.argwhere(protected > 1)[:1]:
        yield f"protected value {protected[row, column]} of '{names[column]}' in row {row} is neither 0 nor 1"


def _read_array(path: Path, mapped: bool = False) -> np.ndarray:
    try:
        return np.asanyarray(np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False))
    except FileNotFoundError:
        raise ValueError(f"{path}: does not exist; run `dvc repro prepare`") from None
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path}: not readable as a plain .npy array ({' '.join(str(error).split())})") from None


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path}: does not exist; run `dvc repro prepare`") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(meta, dict):
        raise ValueError(f"{path}: expected a JSON mapping, got {type(meta).__name__}")
    return meta
