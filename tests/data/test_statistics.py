from __future__ import annotations

import numpy as np

from fedcore.data import statistics
from fedcore.data.partitions import PartitionTable


def test_counts_and_sizes_cover_every_split_and_leave_unused_rows_out() -> None:
    table = PartitionTable(np.array([0, 1, 1, -1, 2, 0]), np.array([0, 0, 1, -1, 0, 2]), 2, 1, "{}")
    counts = statistics.label_counts(table, np.array([2, 0, 0, 1, 1, 0]), 3)
    assert counts.tolist() == [[1, 0, 1], [2, 0, 0], [0, 1, 0]]
    assert statistics.client_sizes(table).tolist() == [2, 2, 1]


def test_label_distance_by_hand() -> None:
    # Pooled: 4/10, 4/10, 2/10. Client 0: 1, 0, 0 -> (0.6 + 0.4 + 0.2) / 2; client 1: the pooled shares -> 0.
    counts = np.array([[2, 0, 0], [2, 2, 1], [0, 2, 1]])
    distance = statistics.label_distance(counts)
    np.testing.assert_allclose(distance, [0.6, 0.0, (0.4 + (2 / 3 - 0.4) + (1 / 3 - 0.2)) / 2], atol=1e-12)


def test_a_client_without_examples_has_no_distance() -> None:
    distance = statistics.label_distance(np.array([[1, 1], [0, 0]]))
    assert distance[0] == 0
    assert np.isnan(distance[1])
