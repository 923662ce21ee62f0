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


def test_the_earth_movers_distance_is_the_sum_of_differences() -> None:
    """Zhao et al.: against 1/2, 1/2, one class alone is 1/2 + 1/2 = 1; three quarters of one are 1/4 + 1/4."""
    counts = np.array([[4, 0], [0, 4], [3, 1], [1, 3]])
    assert statistics.earth_movers_distance(counts).tolist() == [1, 1, 0.5, 0.5]


def test_the_summary_by_hand() -> None:
    # Client 0: two train rows, labels 0 and 1; client 1: a train, a test, a validation row, all of label 1; 2: unseen.
    client = np.array([0, 0, 1, 1, 1, 2, -1])
    split = np.array([0, 0, 0, 1, 2, 0, -1])
    labels = np.array([0, 1, 1, 1, 1, 0, 0])
    table = PartitionTable(client, split, 2, 1, "{}")
    assert statistics.split_sizes(table).tolist() == [[2, 0, 0], [1, 1, 1], [1, 0, 0]]
    # Pooled 1/3, 2/3: distances 1/6 + 1/6, 1/3 + 1/3, 2/3 + 2/3.
    assert statistics.summary(table, statistics.label_counts(table, labels, 2)) == {
        "clients": 2,
        "unseen_clients": 1,
        "examples": 6,
        "unused_examples": 1,
        "train_examples": 4,
        "validation_examples": 1,
        "test_examples": 1,
        "client_examples": {"min": 1, "median": 2.0, "mean": 2.0, "max": 3},
        "client_classes": {"min": 1, "median": 1.0, "mean": 1.333333, "max": 2},
        "earth_movers_distance": {"mean": 0.777778, "max": 1.333333},
    }
