"""Quantity skew: unequal sizes, the same labels everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.config import ConfigError
from fedcore.data import partitions, statistics
from fedcore.data.dataset import Dataset
from fedcore.data.quantity_schemes import sizes
from tests.data.conftest import toy_dataset
from tests.data.partition_settings import log_normal, power_law


def client_sizes(config: object, data: Dataset) -> np.ndarray:
    return statistics.client_sizes(partitions.make(config, data))


def test_zipfs_law_by_hand() -> None:
    """600 rows as 1, 1/2, 1/3, 1/4: 288, 144, 96, 72. 410 rows as 1, 1/4, 1/9, 1/16: 288, 72, 32, 18."""
    assert sorted(client_sizes(power_law(clients=4), toy_dataset(np.zeros(600)))) == [72, 96, 144, 288]
    squared = power_law(clients=4, exponent=2.0)
    assert sorted(client_sizes(squared, toy_dataset(np.zeros(410)))) == [18, 32, 72, 288]


def test_the_largest_client_is_drawn() -> None:
    data = toy_dataset(np.zeros(600))
    largest = {int(client_sizes(power_law(clients=4, seed=seed), data).argmax()) for seed in range(20)}
    assert largest == {0, 1, 2, 3}


def test_logarithms_of_sizes_have_the_asked_deviation() -> None:
    data = toy_dataset(np.zeros(400_000))
    logarithms = np.log(client_sizes(log_normal(clients=2000, sigma=0.7, min_examples=1), data))
    assert logarithms.std() == pytest.approx(0.7, abs=0.04)  # its standard error is 0.7 / sqrt(2 * 2000) = 0.011
    assert np.mean(((logarithms - logarithms.mean()) / 0.7) ** 3) == pytest.approx(0, abs=0.25)  # symmetric


@pytest.mark.parametrize("config", [power_law(exponent=0.0, clients=7), log_normal(sigma=0.0, clients=7)])
def test_without_skew_sizes_are_equal(config: object, skewed: Dataset) -> None:
    assert set(client_sizes(config, skewed)) == {171, 172}  # 1200 = 7 * 171 + 3


def test_labels_are_alike_at_every_client(skewed: Dataset) -> None:
    table = partitions.make(power_law(clients=4, exponent=0.5), skewed)
    distance = statistics.label_distance(statistics.label_counts(table, skewed.labels, 6))
    assert distance.max() < 0.1
    assert (np.diff(table.client) != 0).mean() > 0.5  # dealt at random, not in runs


def test_the_floor_lifts_the_smallest_and_leaves_the_others_in_proportion() -> None:
    """Shares 8, 4, 2, 1 of 150 are 80, 40, 20, 10. At a floor of 30 two are lifted, 90 rows remain: 60 and 30."""
    assert sizes(np.array([8.0, 4.0, 2.0, 1.0]), 150, 0).tolist() == [80, 40, 20, 10]
    assert sizes(np.array([2.0, 8.0, 1.0, 4.0]), 150, 30).tolist() == [30, 60, 30, 30]
    assert sizes(np.array([8.0, 4.0, 2.0, 1.0]), 140, 35).tolist() == [35, 35, 35, 35]


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    logarithms=st.lists(st.floats(-300, 0), min_size=1, max_size=30),
    floor=st.integers(0, 20),
    extra=st.integers(0, 10_000),
)
def test_sizes_sum_up_and_keep_floor_and_order(logarithms: list[float], floor: int, extra: int) -> None:
    shares = np.exp(np.array(logarithms))
    total = floor * len(shares) + extra
    found = sizes(shares, total, floor)
    assert found.sum() == total
    assert found.min() >= floor
    assert (np.diff(found[np.argsort(shares, kind="stable")]) >= -1).all()  # a smaller share has at most a row more


@pytest.mark.parametrize("config", [power_law(min_examples=151), log_normal(min_examples=151)])
def test_a_floor_that_cannot_be_kept_is_refused(config: object, skewed: Dataset) -> None:
    with pytest.raises(
        ConfigError, match=r"^partition\.min_examples: 8 clients .* need 1208, 'toy' has 1200; use at most 150"
    ):
        partitions.make(config, skewed)
