"""Partitions on disk: a small checked file of plain arrays, and files of one's own."""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedcore.config import FilePartition
from fedcore.data import noise, rotation, splits
from fedcore.data.dataset import Dataset
from fedcore.data.partition_table import PartitionTable, check_noise, check_rotation, check_values
from fedcore.data.splits import TRAIN, UNUSED, VALIDATION


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
            arrays.get("noise", np.zeros(0)),
            int(arrays.get("noise_seed", 0)),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if str(arrays["content_hash"]) != table.content_hash:
        raise ValueError(
            f"{path}: was changed after it was written (content hash differs); run `dvc repro -f partition`"
        )
    return table


class OwnPartition(NamedTuple):
    """What a file says: client and split of every row [n], degrees and noise level of every client [num_total]."""

    client: np.ndarray
    split: np.ndarray
    degrees: np.ndarray
    levels: np.ndarray
    noise_seed: int


def read_own(config: FilePartition, dataset: Dataset) -> OwnPartition:
    """Read a partition that somebody made for `dataset`, or that `save` wrote.

    Raises
    ------
    ValueError
        One line naming the file, the array and the row.
    """
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
    check_values(str(path), client, split, total)
    present = np.bincount(np.minimum(client[used], len(client)), minlength=min(total, len(client) + 1))
    if (present == 0).any():
        raise ValueError(
            f"{path}: client ids must be 0..{total - 1} without gaps; client {np.argmin(present)} has no row"
        )
    untrained = np.flatnonzero(np.bincount(client[split == TRAIN], minlength=total) == 0)
    if len(untrained):
        raise ValueError(f"{path}: client {untrained[0]} has no train row (split 0)")
    degrees = _per_client(arrays, "rotation", total)
    check_rotation(str(path), degrees, total)
    levels = _per_client(arrays, "noise", total)
    check_noise(str(path), levels, total)
    for name, wrong in (
        ("rotation", rotation.problem(degrees, dataset.input_shape)),
        ("noise", noise.problem(levels, dataset.input_shape)),
    ):
        if wrong is not None:
            raise ValueError(f"{path}: '{name}' cannot be applied to '{dataset.name}': {wrong}")
    if "content_hash" in arrays:
        load(path)
    client, split = client.astype(np.int32), split.astype(np.int8)
    if not (split == VALIDATION).any():
        split = splits.cut_validation(client, dataset.labels, split, total, config.validation, config.seed)
    return OwnPartition(client, split, degrees, levels, int(arrays.get("noise_seed", config.seed)))


def _per_client(arrays: dict[str, Any], name: str, total: int) -> np.ndarray:
    values = np.asarray(arrays.get(name, np.zeros(total, np.float32)))
    if values.dtype.kind != "f":
        return values
    with np.errstate(over="ignore"):  # becomes infinite, which the check names
        return values.astype(np.float32)


def _stored(table: PartitionTable) -> dict[str, np.ndarray]:
    return {
        "client": table.client,
        "split": table.split,
        "num_clients": np.array(table.num_clients, np.int64),
        "num_unseen": np.array(table.num_unseen, np.int64),
        "scheme": np.array(table.scheme),
        "rotation": table.rotation,
        **({"noise": table.noise, "noise_seed": np.array(table.noise_seed, np.int64)} if table.noise.any() else {}),
        "content_hash": np.array(table.content_hash),
    }


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise ValueError(f"{path}: does not exist") from None
    except (OSError, EOFError, RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: not readable as .npz of plain arrays ({' '.join(str(error).split())})") from None
