"""Partitions: which client holds which row, and in which split; made from a scheme, kept as a small checked file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedcore import config as settings
from fedcore.config import ConfigError, DirichletPartition, FilePartition, IidPartition, NaturalPartition, Problem
from fedcore.data import schemes, splits
from fedcore.data.dataset import Dataset
from fedcore.data.splits import TEST, TRAIN, UNUSED, VALIDATION

__all__ = ["TEST", "TRAIN", "UNUSED", "VALIDATION", "PartitionTable", "load", "make", "save"]


@dataclass(frozen=True, eq=False)
class PartitionTable:
    """Client and split of every row of a data set.

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
    """

    client: np.ndarray
    split: np.ndarray
    num_clients: int
    num_unseen: int
    scheme: str

    def __post_init__(self) -> None:
        for field, dtype in (("client", np.int32), ("split", np.int8)):
            array = np.array(getattr(self, field), dtype=dtype)
            array.flags.writeable = False
            object.__setattr__(self, field, array)
        if self.client.ndim != 1 or self.client.shape != self.split.shape:
            raise ValueError(f"partition: client {self.client.shape} and split {self.split.shape} must be equal [n]")
        if self.num_clients < 1 or self.num_unseen < 0:
            raise ValueError(f"partition: needs a client, got num_clients {self.num_clients}, unseen {self.num_unseen}")
        _check_values("partition", self.client, self.split, self.num_total)

    @property
    def num_total(self) -> int:
        """Number of clients, those that train and those that never do."""
        return self.num_clients + self.num_unseen

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 (64 hex digits) over the assignment, the client counts and the scheme."""
        digest = hashlib.sha256(f"{self.num_clients} {self.num_unseen} {len(self.client)} {self.scheme}".encode())
        digest.update(self.client.astype("<i4").data)
        digest.update(self.split.data)
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
    given = None
    if isinstance(config, IidPartition):
        client = schemes.iid(config, dataset)
    elif isinstance(config, DirichletPartition):
        client = schemes.dirichlet(config, dataset)
    elif isinstance(config, NaturalPartition):
        client = schemes.natural(config, dataset)
    else:
        client, given = _file(config, dataset)
    total = int(client.max()) + 1
    if config.unseen_clients >= total:
        message = f"{config.unseen_clients} of {total} clients unseen leaves none to train; use at most {total - 1}"
        raise ConfigError([Problem(("partition", "unseen_clients"), message)])
    if isinstance(config, FilePartition):
        assert given is not None
        split = given
        if not (split == VALIDATION).any():
            split = splits.cut_validation(client, dataset.labels, split, total, config.validation, config.seed)
    else:
        split = splits.assign(client, dataset.labels, total, config.test, config.validation, config.seed)
    scheme = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return PartitionTable(client, split, total - config.unseen_clients, config.unseen_clients, scheme)


def save(table: PartitionTable, path: Path | str) -> None:
    """Write `table` as a compressed ``.npz`` without pickle, in one step; same table, same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for field, array in _stored(table).items():
                # A fixed date and mode: the bytes must not tell when or where the file was written.
                entry = zipfile.ZipInfo(f"{field}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3
                entry.external_attr = 0o644 << 16
                content = io.BytesIO()
                np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
                archive.writestr(entry, content.getvalue())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def load(path: Path | str) -> PartitionTable:
    """Read a partition that `save` wrote.

    Raises
    ------
    ValueError
        One line naming the file when it is missing, broken, incomplete, or was changed after it was written.
    """
    arrays = _read_npz(Path(path))
    fields = ("client", "split", "num_clients", "num_unseen", "scheme", "content_hash")
    missing = [field for field in fields if field not in arrays]
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
        "content_hash": np.array(table.content_hash),
    }


def _file(config: FilePartition, dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    path = Path(config.path)
    arrays = _read_npz(path)
    for field in ("client", "split"):
        if field not in arrays:
            raise ValueError(f"{path}: array '{field}' is missing; found {', '.join(sorted(arrays)) or 'none'}")
        if arrays[field].dtype.kind not in "iu" or arrays[field].shape != (len(dataset),):
            raise ValueError(
                f"{path}: '{field}' must hold one integer per row of '{dataset.name}' ({len(dataset)}: train rows,"
                f" then test rows), got {arrays[field].dtype} {list(arrays[field].shape)}"
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
    if "content_hash" in arrays:
        load(path)
    return client.astype(np.int32), split.astype(np.int8)


def _check_values(where: str, client: np.ndarray, split: np.ndarray, num_total: int) -> None:
    wrong = np.flatnonzero((client < UNUSED) | (client >= num_total))
    if len(wrong):
        raise ValueError(f"{where}: client {client[wrong[0]]} in row {wrong[0]}; valid: -1 (unused) to {num_total - 1}")
    wrong = np.flatnonzero((client >= 0) & ((split < TRAIN) | (split > VALIDATION)))
    if len(wrong):
        message = f"split {split[wrong[0]]} in row {wrong[0]}; valid: 0 (train), 1 (test), 2 (validation)"
        raise ValueError(f"{where}: {message}")


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {field: archive[field] for field in archive.files}
    except FileNotFoundError:
        raise ValueError(f"{path}: does not exist") from None
    except (OSError, EOFError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: not readable as .npz of plain arrays ({' '.join(str(error).split())})") from None
