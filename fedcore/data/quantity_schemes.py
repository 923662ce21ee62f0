"""Quantity skew: clients of unequal size whose labels are alike; parameters and labels -> the client of each row."""

from __future__ import annotations

import numpy as np

from fedcore import seeds
from fedcore.config import ConfigError, LogNormalPartition, PowerLawPartition, Problem
from fedcore.data.dataset import Dataset


def power_law(config: PowerLawPartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32: the r-th largest client has a share in proportion to r ** -exponent.

    Which client is the r-th largest is drawn. Exponent 0 makes equal sizes, 1 is Zipf's law.
    """
    ranks = 1 + seeds.stream(config.seed, "partition/quantity").permutation(config.clients)
    return _by_shares(np.exp(-config.exponent * np.log(ranks)), config.min_examples, dataset, config.seed)


def log_normal(config: LogNormalPartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32: shares in proportion to exp(sigma * z), z standard normal.

    Sigma 0 makes equal sizes; at sigma 2 the largest of a hundred clients has over a hundred times the median.
    """
    normal = seeds.stream(config.seed, "partition/quantity").standard_normal(config.clients)
    return _by_shares(np.exp(config.sigma * (normal - normal.max())), config.min_examples, dataset, config.seed)


def _by_shares(shares: np.ndarray, floor: int, dataset: Dataset, seed: int) -> np.ndarray:
    """Deal every row at random, so many to each client as `sizes` says."""
    n, clients = len(dataset), len(shares)
    if clients * floor > n:
        message = (
            f"{clients} clients with at least {floor} examples each need {clients * floor}, '{dataset.name}' has {n};"
            f" use at most {n // clients} (or at most {n // floor} clients)"
        )
        raise ConfigError([Problem(("partition", "min_examples"), message)])
    client = np.empty(n, np.int32)
    client[seeds.stream(seed, "partition/rows").permutation(n)] = np.repeat(np.arange(clients), sizes(shares, n, floor))
    return client


def sizes(shares: np.ndarray, total: int, floor: int) -> np.ndarray:
    """Return sizes [N] int64 that sum to `total`, none below `floor`, and above it in proportion to `shares`.

    Parameters
    ----------
    shares : array [N] float, >= 0, not all 0
    total : int, >= N * floor
    floor : int, >= 0
    """
    order = np.argsort(shares, kind="stable")
    ascending = shares[order]
    # The clients lifted to the floor are the smallest ones: with j of them lifted, the others share what is left.
    lifted = np.arange(len(shares))
    rest = np.cumsum(ascending[::-1])[::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        enough = ascending * ((total - lifted * floor) / rest) >= floor
    first = int(np.argmax(enough)) if enough.any() else len(shares)
    exact = np.full(len(shares), float(floor))
    if first < len(shares):
        exact[first:] = ascending[first:] * ((total - first * floor) / rest[first])
    # Whole rows: rounded down, then one more for those that lost the most.
    whole = np.maximum(np.floor(exact), floor).astype(np.int64)
    lost = np.argsort(whole - exact, kind="stable")
    np.add.at(whole, np.resize(lost, max(total - int(whole.sum()), 0)), 1)
    found = np.empty(len(shares), np.int64)
    found[order] = whole
    return found
