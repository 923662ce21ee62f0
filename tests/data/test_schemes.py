"""Schemes by chance, by Dirichlet shares, and by the data set's own clients."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fedcore import seeds
from fedcore.config import ConfigError, DirClientPartition
from fedcore.data import partitions, schemes, statistics
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import UNUSED
from tests.data.conftest import toy_dataset
from tests.data.partition_settings import assert_same, dir_client, dirichlet, iid, natural


def test_more_clients_than_examples_is_refused(skewed: Dataset) -> None:
    assert np.bincount(partitions.make(iid(clients=1200), skewed).client).tolist() == [1] * 1200
    with pytest.raises(ConfigError, match=r"^partition\.clients: 1201 clients, but 'toy' has 1200 examples"):
        partitions.make(iid(clients=1201), skewed)


# --- dirichlet -------------------------------------------------------------------------------------------------------


def test_dirichlet_cuts_every_class_as_the_plain_loop_does(skewed: Dataset) -> None:
    """NIID-Bench's loop over Python lists, fed with the same shares."""
    config = dirichlet(alpha=0.2, clients=5, min_examples=120)
    table = partitions.make(config, skewed)
    for redraw in range(100):
        draw = seeds.stream(config.seed, "partition/dirichlet", round=redraw)
        held: list[list[int]] = [[] for _ in range(5)]
        for label in range(6):
            rows = np.flatnonzero(skewed.labels == label)
            shares = draw.dirichlet(np.repeat(0.2, 5))
            shares = np.array([share * (len(mine) < 1200 / 5) for share, mine in zip(shares, held, strict=True)])
            shares = shares / shares.sum()
            cuts = (np.cumsum(shares) * len(rows)).astype(int)[:-1]
            held = [mine + part.tolist() for mine, part in zip(held, np.split(rows, cuts), strict=True)]
        if min(map(len, held)) >= 120:
            break
    assert redraw > 0, "the case should need a redraw"
    for client, mine in enumerate(held):
        expected = np.bincount(skewed.labels[mine], minlength=6)
        np.testing.assert_array_equal(np.bincount(skewed.labels[table.client == client], minlength=6), expected)


def test_dirichlet_mixes_the_rows_of_a_class(skewed: Dataset) -> None:
    table = partitions.make(dirichlet(alpha=100.0, clients=2), skewed)
    largest = table.client[np.flatnonzero(skewed.labels == 0)]
    assert 120 < np.count_nonzero(np.diff(largest)) < 280  # about half of 399 neighbours differ


def test_smaller_alpha_means_more_skew(skewed: Dataset) -> None:
    skew = [
        statistics.label_distance(
            statistics.label_counts(partitions.make(dirichlet(alpha=alpha), skewed), skewed.labels, 6)
        ).mean()
        for alpha in (0.1, 1.0, 1000.0)
    ]
    assert skew[0] > skew[1] + 0.1
    assert skew[1] > skew[2] + 0.1
    assert skew[2] < 0.05


@pytest.mark.parametrize("floor", [1, 10, 60])
def test_dirichlet_keeps_the_floor(skewed: Dataset, floor: int) -> None:
    sizes = [
        np.bincount(partitions.make(dirichlet(alpha=0.2, min_examples=floor, seed=seed), skewed).client).min()
        for seed in range(10)
    ]
    assert min(sizes) >= floor


def test_a_floor_that_cannot_be_kept_is_refused_before_drawing(
    skewed: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemes, "_dirichlet_cuts", lambda *_: pytest.fail("drew"))
    with pytest.raises(
        ConfigError, match=r"^partition\.min_examples: 8 clients .* need 1208, 'toy' has 1200; use at most 150"
    ):
        partitions.make(dirichlet(min_examples=151), skewed)


def test_a_floor_that_no_draw_keeps_is_refused_with_what_was_reached(skewed: Dataset) -> None:
    with pytest.raises(ConfigError) as caught:
        partitions.make(dirichlet(alpha=0.05, min_examples=140, max_redraws=20), skewed)
    message = str(caught.value)
    assert message.startswith("partition.min_examples: none of 20 draws gave each of 8 clients 140 examples (closest: ")
    assert 0 <= int(message.split("closest: ")[1].split(")")[0]) < 140
    assert "alpha 0.05" in message
    assert "\n" not in message


def test_five_hundred_clients_at_alpha_0_05_take_bounded_time() -> None:
    data = toy_dataset(np.repeat(np.arange(10), 6000))
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=r"none of 1000 draws"):
        partitions.make(dirichlet(alpha=0.05, clients=500, min_examples=10, max_redraws=1000), data)
    assert time.perf_counter() - start < 10


def test_shares_that_all_fall_to_full_clients_are_redrawn(skewed: Dataset) -> None:
    """At alpha 1e-6 a class goes to one client; the next class may find that client full."""
    config = dirichlet(alpha=1e-6, clients=3, min_examples=1, max_redraws=5000)
    sizes = np.bincount(skewed.labels)
    assert any(schemes._dirichlet_cuts(config, sizes, redraw) is None for redraw in range(50))
    assert np.bincount(partitions.make(config, skewed).client).min() >= 1


# --- dir_client -------------------------------------------------------------------------------------------------------


def counts_of(config: DirClientPartition, data: Dataset) -> np.ndarray:
    return statistics.label_counts(partitions.make(config, data), data.labels, data.num_classes)


@pytest.mark.parametrize("clients", [1, 7, 11, 1200])
@pytest.mark.parametrize("prior", ["remaining", "ones"])
def test_dir_client_gives_every_client_the_same_number(skewed: Dataset, clients: int, prior: str) -> None:
    table = partitions.make(dir_client(clients=clients, prior=prior, alpha=0.1), skewed)
    assert (np.bincount(table.client[table.client >= 0]) == 1200 // clients).all()
    assert np.count_nonzero(table.client == UNUSED) == 1200 % clients


def test_dir_client_with_one_hot_shares_deals_one_class_after_the_other() -> None:
    """Alpha 1e-300 puts all of a client's share on one class; three classes of 4 rows just fill three clients."""
    data = toy_dataset([2, 0, 1, 1, 2, 0, 0, 1, 2, 2, 0, 1])
    for seed in range(5):
        counts = counts_of(dir_client(alpha=1e-300, clients=3, seed=seed), data)
        assert sorted(counts.tolist()) == [[0, 0, 4], [0, 4, 0], [4, 0, 0]]


def test_the_prior_is_what_remains_or_one_for_every_class() -> None:
    """At a huge alpha the shares are the prior's: 90 of 100 rows are class 0, or half of them.

    Of 900 and 100 rows, each of ten clients takes 100; three standard deviations of a share are 9 and 15 rows. With
    equal shares class 1 is used up after about two clients.
    """
    data = toy_dataset(np.repeat([0, 1], [900, 100]))
    remaining = counts_of(dir_client(alpha=1e9, clients=10, prior="remaining"), data)
    ones = counts_of(dir_client(alpha=1e9, clients=10, prior="ones"), data)
    assert abs(remaining[0, 0] - 90) <= 9
    assert abs(ones[0, 0] - 50) <= 15
    assert remaining[:, 1].max() < 30
    assert ones[:3, 1].sum() == 100
    assert (ones[3:, 0] == 100).all()


def test_remaining_is_far_more_skewed_than_ones_at_the_same_alpha() -> None:
    """0.1 times the class's share is about 0.01 per class of ten: nearly one class per client."""
    data = toy_dataset(np.repeat(np.arange(10), 600))

    def largest_share(prior: str) -> float:
        # The last clients take what is left; the first five show the prior.
        tables = [counts_of(dir_client(alpha=0.1, clients=10, prior=prior, seed=seed), data) for seed in range(8)]
        return float(np.mean([counts[:5].max(axis=1) / 600 for counts in tables]))

    assert largest_share("remaining") > 0.85
    assert largest_share("ones") < 0.75


def test_an_exhausted_class_leaves_its_share_to_the_others() -> None:
    """Equal shares, 1 row of class 0 and 3 of class 1, two rows to take: both of class 1 with probability 1/4.

    The first row is of class 1 with 1/2 and the second again; any other order takes class 0 once, and then it is gone.
    The standard deviation of the mean of 4,000 draws is 0.007.
    """
    random = seeds.stream(0, "test")
    taken = [schemes._fill(random, np.full(2, 1e9), np.array([1, 3]), 2).tolist() for _ in range(4000)]
    assert {tuple(one) for one in taken} == {(1, 1), (0, 2)}
    assert abs(np.mean([one == [0, 2] for one in taken]) - 0.25) < 0.03


@pytest.mark.parametrize("alpha", [1e-9, 0.1, 100.0])
def test_dir_client_is_fast(alpha: float) -> None:
    data = toy_dataset(np.repeat(np.arange(10), 6000))
    start = time.perf_counter()
    partitions.make(dir_client(clients=1000, alpha=alpha), data)
    assert time.perf_counter() - start < 5


def test_dir_client_with_more_clients_than_examples_is_refused(skewed: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"^partition\.clients: 1201 clients, but 'toy' has 1200 .* at most 1200"):
        partitions.make(dir_client(clients=1201), skewed)


# --- natural ---------------------------------------------------------------------------------------------------------


def test_natural_drops_small_clients_and_numbers_the_rest_without_gaps() -> None:
    own = np.array([3, 0, 3, 5, 0, 3, 5, 1], dtype=np.int32)
    table = partitions.make(natural(min_examples=2), toy_dataset(np.zeros(8), clients=own))
    assert table.client.tolist() == [1, 0, 1, 2, 0, 1, 2, UNUSED]
    assert table.split[7] == UNUSED
    assert table.num_clients == 3


def test_natural_needs_clients_of_its_own_and_one_large_enough() -> None:
    with pytest.raises(ConfigError, match=r"^partition\.scheme: 'natural' needs .* 'toy' has none"):
        partitions.make(natural(), toy_dataset(np.zeros(8)))
    own = np.array([0, 0, 1, 1, 1], dtype=np.int32)
    with pytest.raises(ConfigError, match=r"^partition\.min_examples: no client has 4 examples; the largest has 3"):
        partitions.make(natural(min_examples=4), toy_dataset(np.zeros(5), clients=own))


# --- the splits do not depend on how the clients came about ----------------------------------------------------------


def test_the_splits_do_not_depend_on_the_redraws(skewed: Dataset) -> None:
    """The same assignment, reached with and without redraws, is split the same way."""
    config = dirichlet(alpha=0.2, min_examples=90)
    first = schemes._dirichlet_cuts(config, np.bincount(skewed.labels), 0)
    assert first is not None
    assert np.diff(first).sum(axis=0).min() < 90, "the case should need a redraw"
    table = partitions.make(config, skewed)
    own = toy_dataset(skewed.labels, clients=table.client)
    assert_same(table, partitions.make(natural(min_examples=1), own))
