"""What a data set looks like client by client: counts of labels and of binned features, kept in a small file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.files import atomic_path

if TYPE_CHECKING:
    from fedcore.data.dataset import Dataset
    from fedcore.data.partitions import PartitionTable

FOLDER = Path("data/statistics")
MAX_FEATURES = 256  # of more features, so many evenly spaced ones are looked at


@dataclass(frozen=True, eq=False)
class Statistics:
    """Counts of a data set's rows, or of some of them, as clients hold them.

    Attributes
    ----------
    clients : N names
        The data set's own names of the clients, or their numbers.
    labels : array [N, K] int64
        Examples by client and class.
    features : F names
    edges : array [F, B - 1] float64
        Inner edges of each feature's bins, ascending.
    binned : array [N, F, B] int64
        Examples by client, feature and bin.
    rows : int
        Rows of the whole data set when it was counted, unused ones too.
    digest : str
        SHA-256 over those rows in their order: tells whether a later data set begins with them.
    """

    clients: tuple[str, ...]
    labels: np.ndarray
    features: tuple[str, ...]
    edges: np.ndarray
    binned: np.ndarray
    rows: int
    digest: str


def count(data: Dataset, table: PartitionTable, bins: int) -> Statistics:
    """Count all rows that clients hold; the bins of a feature are equally full."""
    names, values = features(data, np.arange(len(data)))
    used = values[table.client >= 0]
    edges = np.quantile(used, np.arange(1, bins) / bins, axis=0).T if len(names) else np.empty((0, bins - 1))
    return count_rows(data, table, np.arange(len(data)), edges)


def count_rows(data: Dataset, table: PartitionTable, rows: np.ndarray, edges: np.ndarray) -> Statistics:
    """Count some rows [m] in given bins [F, B - 1]."""
    rows = rows[table.client[rows] >= 0]
    client = table.client[rows].astype(np.int64)
    total, classes, bins = table.num_total, data.num_classes, edges.shape[1] + 1
    labels = np.bincount(client * classes + data.labels[rows], minlength=total * classes).reshape(total, classes)
    names, values = features(data, rows)
    binned = np.zeros((total, len(names), bins), np.int64)
    for number, edge in enumerate(edges):
        cell = client * bins + np.searchsorted(edge, values[:, number], side="right")
        binned[:, number] = np.bincount(cell, minlength=total * bins).reshape(total, bins)
    return Statistics(
        client_names(data, table), labels, names, edges, binned, len(data), prefix_digest(data, len(data))
    )


def features(data: Dataset, rows: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the features that are looked at, F, and their values [m, F] float64.

    Feature vectors as they are; of images and signals the mean and the deviation of every channel; of token ids none.
    """
    inputs = data.inputs
    if data.num_tokens is not None:
        return (), np.empty((len(rows), 0))
    if inputs.ndim == 2:
        chosen = np.unique(np.linspace(0, inputs.shape[1] - 1, min(inputs.shape[1], MAX_FEATURES)).round().astype(int))
        return tuple(f"feature {number}" for number in chosen), np.asarray(inputs[rows][:, chosen], np.float64)
    flat = np.asarray(inputs[rows]).reshape(len(rows), inputs.shape[1], int(np.prod(inputs.shape[2:])))
    names = [f"channel {number} {what}" for what in ("mean", "deviation") for number in range(inputs.shape[1])]
    return tuple(names), np.concatenate([flat.mean(axis=2), flat.std(axis=2)], axis=1, dtype=np.float64)


def client_names(data: Dataset, table: PartitionTable) -> tuple[str, ...]:
    """Return the name of every client of a partition: the data set's own, or the number."""
    from fedcore.data.accumulated import names_of_clients

    if data.clients is None:
        return tuple(map(str, range(table.num_total)))
    own = names_of_clients(data)
    used, first = np.unique(table.client, return_index=True)
    holders = data.clients[first[used >= 0]]
    return tuple(own[holder] for holder in holders)


def prefix_digest(data: Dataset, rows: int) -> str:
    """Return the SHA-256 over the first `rows` rows in their order."""
    from fedcore.data.accumulated import example_keys

    first = data if rows == len(data) else data.take(np.arange(min(rows, len(data))))
    return hashlib.sha256(b"".join(example_keys(first))).hexdigest()


def file_of(dataset_hash: str, partition_hash: str, root: Path = FOLDER) -> Path:
    """Return where the statistics of a data set and a partition are kept."""
    return root / f"{dataset_hash[:16]}-{partition_hash[:16]}.npz"


def save(statistics: Statistics, path: Path) -> None:
    """Write statistics, without pickle, in one step."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            clients=np.array(statistics.clients),
            labels=statistics.labels,
            features=np.array(statistics.features),
            edges=statistics.edges,
            binned=statistics.binned,
            rows=statistics.rows,
            digest=statistics.digest,
        )


def load(path: Path) -> Statistics:
    """Read statistics; a missing or damaged file is a one-line ValueError that names it."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return Statistics(
                clients=tuple(map(str, found["clients"])),
                labels=found["labels"],
                features=tuple(map(str, found["features"])),
                edges=found["edges"],
                binned=found["binned"],
                rows=int(found["rows"]),
                digest=str(found["digest"]),
            )
    except FileNotFoundError:
        raise ValueError(f"{path}: does not exist") from None
    except (OSError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: not readable as statistics of a data set ({error})") from None
