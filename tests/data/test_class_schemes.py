"""Schemes that limit the classes of a client."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.config import ConfigError, Splits
from fedcore.data import partitions, statistics
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import TEST, TRAIN
from tests.data.conftest import toy_dataset
from tests.data.partition_settings import dominant, k_classes, lg_shards, pathological, shards


def balanced(classes: int, rows: int) -> Dataset:
    """Return so many rows of every class, in no order."""
    return toy_dataset(np.random.Generator(np.random.PCG64(1)).permutation(np.repeat(np.arange(classes), rows)))


def counts_of(config: Splits, data: Dataset) -> np.ndarray:
    """Return the rows of each client by class, [clients, K]."""
    return statistics.label_counts(partitions.make(config, data), data.labels, data.num_classes)


# --- shards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_shards_that_divide_the_classes_give_at_most_so_many_classes(seed: int) -> None:
    """800 rows in 20 * 2 sets of 20, which divides the 80 rows of a class."""
    counts = counts_of(shards(clients=20, shards=2, seed=seed), balanced(10, 80))
    assert set(counts.ravel()) <= {0, 20, 40}
    assert (counts.sum(axis=1) == 40).all()
    assert (counts.sum(axis=0) == 80).all()


def test_shards_that_lie_across_classes_give_at_most_twice_as_many(skewed: Dataset) -> None:
    """23 * 2 sets of 26 or 27 rows, the smallest class has 50: no set covers more than two classes."""
    counts = counts_of(shards(clients=23, shards=2), skewed)
    assert counts.sum() == 1200
    assert set(counts.sum(axis=1)) <= {52, 53, 54}
    assert 2 < np.count_nonzero(counts, axis=1).max() <= 4


def test_rows_of_a_class_are_mixed_before_they_are_cut() -> None:
    data = toy_dataset(np.repeat([0, 1], 50))
    table = partitions.make(shards(clients=4, shards=1), data)
    assert np.count_nonzero(np.diff(table.client[:50])) > 10


# --- k_classes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 5, 10])
def test_k_classes_are_exactly_k_and_one_goes_by_number(k: int) -> None:
    counts = counts_of(k_classes(clients=23, classes=k), balanced(10, 100))
    assert (np.count_nonzero(counts, axis=1) == k).all()
    assert all(counts[i, i % 10] > 0 for i in range(23))
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T)
    assert (counts.sum(axis=0) == 100).all()


def test_the_other_classes_are_drawn_evenly() -> None:
    """Of 300 clients, 100 hold class 0 by number; each other class is the second one of about 50 of them."""
    counts = counts_of(k_classes(clients=300, classes=2), balanced(3, 900))
    second = np.count_nonzero(counts[::3, 1:], axis=0)
    assert second.sum() == 100
    assert abs(second[0] - 50) <= 15


def test_classes_that_no_client_has_stay_unused() -> None:
    table = partitions.make(k_classes(clients=2, classes=1), data := balanced(4, 6))
    assert set(data.labels[table.client >= 0]) == {0, 1}
    assert set(data.labels[table.client < 0]) == {2, 3}


# --- lg_shards -------------------------------------------------------------------------------------------------------


def test_lg_shards_deals_whole_pieces() -> None:
    """30 clients * 2 shards = 60 pieces, 6 of each of 10 classes, 60 rows in 6 pieces of 10."""
    data = balanced(10, 60)
    held = [counts_of(lg_shards(clients=30, shards=2, seed=seed), data) for seed in range(5)]
    for counts in held:
        assert set(counts.ravel()) <= {0, 10, 20}
        assert (counts.sum(axis=1) == 20).all()
        assert (counts.sum(axis=0) == 60).all()
    assert any((counts == 20).any() for counts in held)  # the same class twice


def test_left_over_rows_go_one_to_each_of_the_first_pieces() -> None:
    """62 rows of class 0 in 4 pieces: 16, 16, 15, 15; one piece per client."""
    data = toy_dataset(np.repeat([0, 1], [62, 60]))
    counts = counts_of(lg_shards(clients=8, shards=1), data)
    assert sorted(counts[:, 0]) == [0, 0, 0, 0, 15, 15, 16, 16]
    assert sorted(counts[:, 1]) == [0, 0, 0, 0, 15, 15, 15, 15]


def test_train_and_test_of_a_client_have_the_same_classes() -> None:
    data = balanced(10, 400)
    table = partitions.make(lg_shards(clients=20, shards=2, test=0.25, validation=0.0), data)
    for client in range(20):
        train, test = (np.unique(data.labels[(table.client == client) & (table.split == s)]) for s in (TRAIN, TEST))
        assert train.tolist() == test.tolist()
        assert len(train) <= 2


# --- pathological ----------------------------------------------------------------------------------------------------


def test_pathological_walks_from_class_to_class() -> None:
    """4 clients, 4 classes, room for 2: ceil(4 / 4 * 2) = 2 clients per class, 100 rows, the first takes 10 to 49."""
    for seed in range(20):
        counts = counts_of(pathological(clients=4, classes=2, min_examples=4, seed=seed), balanced(4, 100))
        assert (counts > 0).tolist() == [[True, True, False, False]] * 2 + [[False, False, True, True]] * 2
        first = np.concatenate([counts[0, :2], counts[2, 2:]])
        assert first.min() >= 5  # 100 / (10 * 2)
        assert first.max() <= 49
        assert (counts.sum(axis=0) == 100).all()


@pytest.mark.parametrize(("min_examples", "least"), [(4, 5), (80, 20)])
def test_pathological_pieces_span_their_range(min_examples: int, least: int) -> None:
    """A piece has at least max(100 / 20, min_examples / 4) rows, and at most 49."""
    data = balanced(4, 100)
    config = pathological(clients=4, min_examples=min_examples)
    first = [counts_of(config.model_copy(update={"seed": seed}), data)[0, :2] for seed in range(150)]
    assert (np.min(first), np.max(first)) == (least, 49)


def test_pathological_leaves_less_where_the_walk_does_not_come_out_even() -> None:
    """5 clients, 3 classes, room for 2: 4 clients per class, so client 4 finds one class left.

    12 clients, 10 classes, room for 2: 3 clients per class fill up after 8 classes; the last two find no one.
    """
    counts = counts_of(pathological(clients=5, classes=2, min_examples=1), balanced(3, 40))
    assert np.count_nonzero(counts, axis=1).tolist() == [2, 2, 2, 2, 1]
    assert counts[4].tolist() == [0, 0, 40]
    counts = counts_of(pathological(clients=12, classes=2, min_examples=1), balanced(10, 40))
    assert np.count_nonzero(counts, axis=1).tolist() == [2] * 12
    assert counts.sum(axis=0).tolist() == [40] * 8 + [0, 0]


# --- dominant --------------------------------------------------------------------------------------------------------


def test_dominant_is_the_papers_table_for_ten_classes_of_5000() -> None:
    """4,950 rows of the main class, 5 or 6 of each other: 50 rows of a class over nine clients."""
    counts = counts_of(dominant(clients=10, share=0.99), balanced(10, 5000))
    assert (np.diag(counts) == 4950).all()
    assert set(counts[~np.eye(10, dtype=bool)]) == {5, 6}
    assert (counts.sum(axis=1) == 5000).all()
    assert (counts.sum(axis=0) == 5000).all()


def test_clients_with_one_main_class_share_it() -> None:
    """7 clients, 3 classes of 100: class 0 is the main one of clients 0, 3, 6, which get 80 of it: 27, 27, 26."""
    counts = counts_of(dominant(clients=7, share=0.8), balanced(3, 100))
    assert counts[0::3, 0].tolist() == [27, 27, 26]
    assert counts[1::3, 1].tolist() == [40, 40]
    assert counts[[1, 2, 4, 5], 0].tolist() == [5, 5, 5, 5]
    assert counts[[0, 2, 3, 5, 6], 1].tolist() == [4, 4, 4, 4, 4]
    only = counts_of(dominant(clients=6, share=1.0), balanced(3, 100))
    assert np.count_nonzero(only, axis=1).tolist() == [1] * 6


# --- what cannot be met ----------------------------------------------------------------------------------------------

ROWS = np.repeat([0, 1, 2], [30, 20, 5])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            shards(clients=10, shards=6),
            r"shards: 10 clients with 6 shards each need 60 .* 55; use at most 5 shards \(or at most 9 clients\)",
        ),
        (k_classes(classes=4), r"classes: 4 classes per client, but 'toy' has 3; use at most that"),
        (
            k_classes(clients=6, classes=3),
            r"clients: class 'class 2' of 'toy' has 5 examples for 6 clients; .* \(up to 5 always works\)",
        ),
        (
            lg_shards(clients=10, shards=2),
            r"clients: 10 clients \* 2 shards = 20 pieces .* 3 classes of 'toy'; use a multiple of 3 clients, .* 9$",
        ),
        (lg_shards(clients=1, shards=2), r"clients: 1 clients \* 2 shards = 2 pieces .* multiple of 3 clients, .* 3$"),
        (
            lg_shards(clients=9, shards=2),
            r"clients: class 'class 2' of 'toy' has 5 examples for 6 pieces; clients \* shards .* at most 15, it is 18",
        ),
        (pathological(classes=4), r"classes: 4 classes per client, but 'toy' has 3; use at most that"),
        (
            pathological(clients=6, classes=3, min_examples=3),
            r"clients: class 'class 2' of 'toy' has 5 examples for 6 clients, it needs at least 7; use fewer",
        ),
        (
            pathological(clients=3, classes=3, min_examples=9),
            r"min_examples: class 'class 2' of 'toy' has 5 examples for 3 clients, .* pieces of 3 .*; use at most 3$",
        ),
        (dominant(clients=2), r"clients: 2 clients leave classes of 'toy' without one .*; use at least 3$"),
        (
            dominant(clients=9, share=0.3),
            r"clients: class 'class 2' of 'toy' has 5 examples, 2 of them for the 3 clients .* a larger share",
        ),
    ],
    ids=lambda value: value.scheme if isinstance(value, Splits) else "",
)
def test_what_cannot_be_met_is_refused_with_what_would_work(config: Splits, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^partition\.{message}") as caught:
        partitions.make(config, toy_dataset(ROWS))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        shards(clients=10, shards=5),
        shards(clients=9, shards=6),
        k_classes(clients=5, classes=3),
        lg_shards(clients=9, shards=1),
        lg_shards(clients=3, shards=5),
        pathological(clients=3, classes=3, min_examples=3),
        dominant(clients=3),
        dominant(clients=9, share=0.6),
    ],
    ids=lambda config: config.scheme,
)
def test_the_advice_works(config: Splits) -> None:
    counts = counts_of(config, toy_dataset(ROWS))
    assert (counts.sum(axis=1) > 0).all()
