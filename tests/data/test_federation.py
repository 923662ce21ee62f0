from __future__ import annotations

import numpy as np
import pytest

from fedcore.config import DirichletPartition
from fedcore.data import partitions
from fedcore.data.dataset import Dataset
from fedcore.data.federation import Federation
from fedcore.data.partitions import PartitionTable
from tests.data.conftest import toy_dataset

CLIENT = np.array([1, 0, -1, 1, 2, 0, 1, 0, 1, 2])
SPLIT = np.array([0, 0, -1, 2, 0, 1, 0, 0, 1, 2])
LABELS = np.array([0, 1, 2, 0, 2, 1, 1, 1, 0, 2])


@pytest.fixture
def small() -> Federation:
    return Federation(toy_dataset(LABELS), PartitionTable(CLIENT, SPLIT, 2, 1, "{}"))


def test_rows_are_each_clients_own_in_ascending_order(small: Federation) -> None:
    found = {(c, s): small.rows(c, s).tolist() for c in range(3) for s in ("train", "val", "test")}
    assert found == {
        (0, "train"): [1, 7],
        (0, "val"): [],
        (0, "test"): [5],
        (1, "train"): [0, 6],
        (1, "val"): [3],
        (1, "test"): [8],
        (2, "train"): [4],
        (2, "val"): [9],
        (2, "test"): [],
    }
    assert small.rows(0, "val").dtype == np.int64


def test_rows_of_many_clients_are_those_of_each_in_turn(skewed: Dataset) -> None:
    table = partitions.make(DirichletPartition(scheme="dirichlet", alpha=0.3, clients=9, min_examples=3), skewed)
    federation = Federation(skewed, table)
    for split in ("train", "val", "test"):
        for clients in (range(9), [7, 2, 2, 0], []):
            expected = [row for client in clients for row in federation.rows(client, split)]
            assert federation.rows_of(clients, split).tolist() == expected


def test_every_other_validation_row_is_for_fitting_and_the_rest_held_out(skewed: Dataset) -> None:
    table = partitions.make(DirichletPartition(scheme="dirichlet", alpha=0.3, clients=9, min_examples=3), skewed)
    federation = Federation(skewed, table)
    rest = federation.held_out()
    for client in range(9):
        rows = federation.rows(client, "val").tolist()
        assert federation.fitting_rows(client).tolist() == [row for at, row in enumerate(rows) if at % 2 == 0]
        assert rest.rows(client, "val").tolist() == [row for at, row in enumerate(rows) if at % 2 == 1]
        assert rest.sizes("val")[client] == len(rows) // 2
        for split in ("train", "test"):
            assert rest.rows(client, split).tolist() == federation.rows(client, split).tolist()
    assert rest.rows_of(range(9), "val").tolist() == [row for c in range(9) for row in rest.rows(c, "val")]
    assert (
        sum(rest.sizes("val")) < sum(federation.sizes("val")) == sum(len(federation.rows(c, "val")) for c in range(9))
    )
    assert (rest.class_counts == federation.class_counts).all()
    assert np.array_equal(rest.inputs(), federation.inputs())


def test_sizes_and_class_counts(small: Federation) -> None:
    assert (small.num_clients, small.num_unseen, small.num_total) == (2, 1, 3)
    assert small.num_examples.tolist() == small.sizes("train").tolist() == [2, 2, 1]
    assert small.sizes("val").tolist() == [0, 1, 1]
    assert small.sizes("test").tolist() == [1, 1, 0]
    assert small.class_counts.tolist() == [[0, 2, 0], [1, 1, 0], [0, 0, 1]]
    assert {small.class_counts.dtype, small.num_examples.dtype, small.sizes("val").dtype} == {np.dtype(np.int64)}


def test_a_real_partition_is_covered_once(skewed: Dataset) -> None:
    config = DirichletPartition(scheme="dirichlet", alpha=0.3, clients=9, min_examples=5, unseen_clients=2)
    table = partitions.make(config, skewed)
    federation = Federation(skewed, table)
    seen = np.zeros(len(skewed), int)
    for client in range(federation.num_total):
        for code, split in enumerate(("train", "test", "val")):
            rows = federation.rows(client, split)
            assert (np.diff(rows) > 0).all()
            assert (table.client[rows] == client).all()
            assert (table.split[rows] == code).all()
            assert len(rows) == federation.sizes(split)[client]
            seen[rows] += 1
        own = np.bincount(skewed.labels[federation.rows(client, "train")], minlength=skewed.num_classes)
        assert federation.class_counts[client].tolist() == own.tolist()
    assert (seen == 1).all()


def test_nothing_can_be_written(small: Federation) -> None:
    for array in (small.rows(0, "train"), small.num_examples, small.class_counts, small.sizes("test")):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5


def test_unknown_clients_and_splits_are_refused(small: Federation) -> None:
    for client in (-1, 3):
        with pytest.raises(ValueError, match=f"client {client} does not exist; valid: 0 to 2"):
            small.rows(client, "train")
    with pytest.raises(ValueError, match="split 'validation' does not exist; valid: train, test, val"):
        small.rows(0, "validation")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="split 'all' does not exist"):
        small.sizes("all")  # type: ignore[arg-type]


def test_a_partition_of_another_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the partition has 10 rows, data set 'toy' has 9; run `dvc repro partition`"):
        Federation(toy_dataset(LABELS[:9]), PartitionTable(CLIENT, SPLIT, 2, 1, "{}"))
