"""How heterogeneous a partition is: label counts, client sizes, distance of each client's labels to the whole."""

from __future__ import annotations

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
