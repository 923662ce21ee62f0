"""How heterogeneous a partition is: label counts, client sizes, distance of each client's labels to the whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcore.data.partitions import PartitionTable


def label_counts(table: PartitionTable, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Return each client's examples by class, all splits together, [num_total, K] int64."""
    used = table.client >= 0
    cell = table.client[used].astype(np.int64) * num_classes + labels[used]
    counts = np.bincount(cell, minlength=table.num_total * num_classes)
    return counts.reshape(table.num_total, num_classes)


def client_sizes(table: PartitionTable) -> np.ndarray:
    """Return the number of examples of each client, all splits together, [num_total] int64."""
    return np.bincount(table.client[table.client >= 0], minlength=table.num_total)


def label_distance(counts: np.ndarray) -> np.ndarray:
    """Return the total-variation distance of each client's label distribution to the pooled one.

    Twice this is the "earth mover's distance" of Zhao et al. 2018 (sum over classes of the absolute differences).

    Parameters
    ----------
    counts : array [N, K] int
        Examples of each client by class.

    Returns
    -------
    array [N] float64
        0 (same distribution) to below 1 (the client holds none of the labels of the others); NaN without examples.
    """
    sizes = counts.sum(axis=1, keepdims=True)
    own = counts / np.where(sizes > 0, sizes, np.nan)
    pooled = counts.sum(axis=0) / counts.sum()
    return np.asarray(0.5 * np.abs(own - pooled).sum(axis=1))


def earth_movers_distance(counts: np.ndarray) -> np.ndarray:
    """Return the "earth mover's distance" of Zhao et al. 2018 of each client's labels to the pooled ones.

    Their name for the sum over classes of the absolute differences of shares: every move from one class to another
    counts the same, and a moved share counts at both ends. It is twice `label_distance`.

    Parameters
    ----------
    counts : array [N, K] int
        Examples of each client by class.

    Returns
    -------
    array [N] float64
        0 to below 2; NaN without examples.
    """
    return 2 * label_distance(counts)


def split_sizes(table: PartitionTable) -> np.ndarray:
    """Return each client's train, validation and test examples, [num_total, 3] int64."""
    place = np.array([0, 2, 1])  # of the codes TRAIN, TEST, VALIDATION
    used = table.client >= 0
    cell = table.client[used].astype(np.int64) * 3 + place[table.split[used]]
    return np.bincount(cell, minlength=table.num_total * 3).reshape(table.num_total, 3)


def summary(table: PartitionTable, counts: np.ndarray) -> dict[str, Any]:
    """Return the partition in a few figures, as JSON types.

    Parameters
    ----------
    table : PartitionTable
    counts : array [num_total, K] int
        Examples of each client by class, as `label_counts` returns them.

    Returns
    -------
    dict
        ``clients`` (that train), ``unseen_clients``, ``examples``, ``unused_examples``, ``train_examples``,
        ``validation_examples``, ``test_examples``; of ``client_examples`` and ``client_classes`` the least, median,
        mean and most of a client; of ``earth_movers_distance`` the mean and most.
    """
    sizes, distance = counts.sum(axis=1), earth_movers_distance(counts)
    train, validation, test = split_sizes(table).sum(axis=0).tolist()
    used = int(sizes.sum())
    return {
        "clients": table.num_clients,
        "unseen_clients": table.num_unseen,
        "examples": used,
        "unused_examples": len(table.client) - used,
        "train_examples": train,
        "validation_examples": validation,
        "test_examples": test,
        "client_examples": _spread(sizes),
        "client_classes": _spread(np.count_nonzero(counts, axis=1)),
        "earth_movers_distance": {
            "mean": round(float(np.nanmean(distance)), 6),
            "max": round(float(np.nanmax(distance)), 6),
        },
    }


def _spread(values: np.ndarray) -> dict[str, float]:
    return {
        "min": int(values.min()),
        "median": float(np.median(values)),
        "mean": round(float(values.mean()), 6),
        "max": int(values.max()),
    }
