"""Partitions: which client holds which row, and in which split; made from a scheme, kept as a small checked file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedcore import config as settings
from fedcore import seeds
from fedcore.config import ConfigError, FilePartition, Problem, Splits
from fedcore.data import class_schemes, rotation, schemes, splits
from fedcore.data.dataset import Dataset
from fedcore.data.splits import TEST, TRAIN, UNUSED, VALIDATION

__all__ = ["TEST", "TRAIN", "UNUSED", "VALIDATION", "PartitionTable", "load", "make", "save"]

_SCHEMES: dict[type[Splits], Callable[[Any, Dataset], np.ndarray]] = {
    settings.IidPartition: schemes.iid,
    settings.DirichletPartition: schemes.dirichlet,
    settings.DirClientPartition: schemes.dir_client,
    settings.ShardsPartition: class_schemes.shards,
    settings.KClassesPartition: class_schemes.k_classes,
    settings.LgShardsPartition: class_schemes.lg_shards,
    settings.PathologicalPartition: class_schemes.pathological,
    settings.DominantPartition: class_schemes.dominant,
    settings.NaturalPartition: schemes.natural,
}


@dataclass(frozen=True, eq=False)
class PartitionTable:
    """Client and split of every row of a data set, and how far each client's images are turned.

    Parameters
    ----------
    client : array [n] int32
        Client id of each row, -1 for an unused row.
    split : array [n] int8
        0 train, 1 test, 2 validation; -1 for an unused row.
    num_clients : int, >= 1
        Training clients, ids 0..num_clients-1.
    num_unseen : int, >= 0
        Clients that never train, ids num_clients..num_clients+num_unseen-1.
    scheme : str
        The partition's parameters as JSON.
    rotation : array [num_total] float32, finite, default all 0
        Degrees by which the images of each client are turned, counter-clockwise.
    """

    client: np.ndarray
    split: np.ndarray
    num_clients: int
    num_unseen: int
    scheme: str
    rotation: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if not np.size(self.rotation):
            object.__setattr__(self, "rotation", np.zeros(max(self.num_total, 0)))
        for name, dtype in (("client", np.int32), ("split", np.int8), ("rotation", np.float32)):
            array = np.array(getattr(self, name), dtype=dtype)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if self.client.ndim != 1 or self.client.shape != self.split.shape:
            raise ValueError(f"partition: client {self.client.shape} and split {self.split.shape} must be equal [n]")
        if self.num_clients < 1 or self.num_unseen < 0:
            raise ValueError(f"partition: needs a client, got num_clients {self.num_clients}, unseen {self.num_unseen}")
        _check_values("partition", self.client, self.split, self.num_total)
        _check_rotation("partition", self.rotation, self.num_total)

    @property
    def num_total(self) -> int:
        """Number of clients, those that train and those that never do."""
        return self.num_clients + self.num_unseen

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 (64 hex digits) over the assignment, the rotation, the client counts and the scheme."""
        digest = hashlib.sha256(f"{self.num_clients} {self.num_unseen} {len(self.client)} {self.scheme}".encode())
        digest.update(self.client.astype("<i4").data)
        digest.update(self.split.data)
        digest.update(self.rotation.astype("<f4").data)
        return digest.hexdigest()


def make(config: settings.Partition, dataset: Dataset) -> PartitionTable:
    """Deal the rows of `dataset` to clients and split each client's share.

    Every draw comes from a stream of its own (`fedcore.seeds`), so the splits do not depend on how often the
    assignment was redrawn.

    Raises
    ------
    ConfigError
        When the scheme cannot be met; names the key, what was reached and what would work.
    ValueError
        When a partition file is missing or wrong; names the file, the array and the row.
    """
    if isinstance(config, FilePartition):
        client, split, degrees = _file(config, dataset)
    else:
        client = _deal(config, dataset)
        total = int(client.max()) + 1
        split = splits.assign(client, dataset.labels, total, config.test, config.validation, config.seed)
        degrees = _rotation(config, dataset, total)
    total = len(degrees)
    if config.unseen_clients >= total:
        message = f"{config.unseen_clients} of {total} clients unseen leaves none to train; use at most {total - 1}"
        raise ConfigError([Problem(("partition", "unseen_clients"), message)])
    scheme = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return PartitionTable(client, split, total - config.unseen_clients, config.unseen_clients, scheme, degrees)


def _deal(config: Splits, dataset: Dataset) -> np.ndarray:
    """Return the client of each row, of the kept share of every class; the other rows are unused."""
    scheme = _SCHEMES[type(config)]
    if config.keep == 1:
        return scheme(config, dataset)
    shuffled = seeds.stream(config.seed, "partition/keep").permutation(len(dataset))
    by_class = shuffled[np.argsort(dataset.labels[shuffled], kind="stable")]
    sizes = np.bincount(dataset.labels, minlength=dataset.num_classes)
    place = np.arange(len(dataset)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.maximum(np.rint(config.keep * sizes), 1).astype(np.int64)
    rows = np.sort(by_class[place < np.repeat(wanted, sizes)])
    client = np.full(len(dataset), UNUSED, np.int32)
    client[rows] = scheme(config, dataset.take(rows))
    return client


def _rotation(config: Splits, dataset: Dataset, total: int) -> np.ndarray:
    # Below a full turn, so that a float32 is exact enough however many clients there are.
    degrees = np.fmod(np.arange(total) * config.rotation, 360)
    if config.unseen_rotation is not None:
        degrees[max(total - config.unseen_clients, 0) :] = config.unseen_rotation
    wrong = rotation.problem(degrees, dataset.input_shape)
    if wrong is not None:
        key = "rotation" if config.rotation else "unseen_rotation"
        raise ConfigError([Problem(("partition", key), f"'{dataset.name}': {wrong}. Valid: 0")])
    return np.asarray(degrees, np.float32)


def save(table: PartitionTable, path: Path | str) -> None:
    """Write `table` as a compressed ``.npz`` without pickle, in one step; same table, same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, array in _stored(table).items():
                # A fixed date and mode: the bytes must not tell when or where the file was written.
                entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3
                entry.external_attr = 0o644 << 16
                content = io.BytesIO()
                np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
                archive.writestr(entry, content.getvalue())
        Path(unfinished).chmod(0o644)
        Path(unfinished).replace(path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


def load(path: Path | str) -> PartitionTable:
    """Read a partition that `save` wrote.

    Raises
    ------
    ValueError
        One line naming the file when it is missing, broken, incomplete, or was changed after it was written.
    """
    arrays = _read_npz(Path(path))
    fields = ("client", "split", "num_clients", "num_unseen", "scheme", "rotation", "content_hash")
    missing = [name for name in fields if name not in arrays]
    if missing:
        raise ValueError(
            f"{path}: lacks {', '.join(missing)}; not made by `dvc repro partition` (see partition.scheme: file)"
        )
    try:
        table = PartitionTable(
            arrays["client"],
            arrays["split"],
            int(arrays["num_clients"]),
            int(arrays["num_unseen"]),
            str(arrays["scheme"]),
            arrays["rotation"],
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if str(arrays["content_hash"]) != table.content_hash:
        raise ValueError(
            f"{path}: was changed after it was written (content hash differs); run `dvc repro -f partition`"
        )
    return table


def _stored(table: PartitionTable) -> dict[str, np.ndarray]:
    return {
        "client": table.client,
        "split": table.split,
        "num_clients": np.array(table.num_clients, np.int64),
        "num_unseen": np.array(table.num_unseen, np.int64),
        "scheme": np.array(table.scheme),
        "rotation": table.rotation,
        "content_hash": np.array(table.content_hash),
    }


def _file(config: FilePartition, dataset: Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    path = Path(config.path)
    arrays = _read_npz(path)
    for name in ("client", "split"):
        if name not in arrays:
            raise ValueError(f"{path}: array '{name}' is missing; found {', '.join(sorted(arrays)) or 'none'}")
        if arrays[name].dtype.kind not in "iu" or arrays[name].shape != (len(dataset),):
            raise ValueError(
                f"{path}: '{name}' must hold one integer per row of '{dataset.name}' ({len(dataset)}: train rows,"
                f" then test rows), got {arrays[name].dtype} {list(arrays[name].shape)}"
            )
    client = arrays["client"].astype(np.int64)
    used = client >= 0
    if not used.any():
        raise ValueError(f"{path}: every row is unused (client -1)")
    total = int(client.max()) + 1
    split = np.where(used, arrays["split"].astype(np.int64), UNUSED)
    _check_values(str(path), client, split, total)
    present = np.bincount(np.minimum(client[used], len(client)), minlength=min(total, len(client) + 1))
    if (present == 0).any():
        raise ValueError(
            f"{path}: client ids must be 0..{total - 1} without gaps; client {np.argmin(present)} has no row"
        )
    untrained = np.flatnonzero(np.bincount(client[split == TRAIN], minlength=total) == 0)
    if len(untrained):
        raise ValueError(f"{path}: client {untrained[0]} has no train row (split 0)")
    degrees = arrays.get("rotation", np.zeros(total, np.float32))
    if degrees.dtype.kind == "f":
        with np.errstate(over="ignore"):  # becomes infinite, which the check names
            degrees = degrees.astype(np.float32)
    _check_rotation(str(path), degrees, total)
    wrong = rotation.problem(degrees, dataset.input_shape)
    if wrong is not None:
        raise ValueError(f"{path}: 'rotation' cannot be applied to '{dataset.name}': {wrong}")
    if "content_hash" in arrays:
        load(path)
    client, split = client.astype(np.int32), split.astype(np.int8)
    if not (split == VALIDATION).any():
        split = splits.cut_validation(client, dataset.labels, split, total, config.validation, config.seed)
    return client, split, degrees


def _check_values(where: str, client: np.ndarray, split: np.ndarray, num_total: int) -> None:
    wrong = np.flatnonzero((client < UNUSED) | (client >= num_total))
    if len(wrong):
        raise ValueError(f"{where}: client {client[wrong[0]]} in row {wrong[0]}; valid: -1 (unused) to {num_total - 1}")
    wrong = np.flatnonzero((client >= 0) & ((split < TRAIN) | (split > VALIDATION)))
    if len(wrong):
        message = f"split {split[wrong[0]]} in row {wrong[0]}; valid: 0 (train), 1 (test), 2 (validation)"
        raise ValueError(f"{where}: {message}")


def _check_rotation(where: str, degrees: np.ndarray, num_total: int) -> None:
    if degrees.dtype.kind not in "iuf" or degrees.shape != (num_total,):
        raise ValueError(
            f"{where}: 'rotation' must hold one number of degrees per client ({num_total}), got {degrees.dtype}"
            f" {list(degrees.shape)}"
        )
    wrong = np.flatnonzero(~np.isfinite(degrees))
    if len(wrong):
        raise ValueError(f"{where}: rotation {degrees[wrong[0]]} of client {wrong[0]} is no finite number of degrees")


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise ValueError(f"{path}: does not exist") from None
    except (OSError, EOFError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: not readable as .npz of plain arrays ({' '.join(str(error).split())})") from None
