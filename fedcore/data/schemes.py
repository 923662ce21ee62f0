"""Partition schemes by chance and by Dirichlet shares: parameters and labels -> the client that holds each row."""

from __future__ import annotations

import numpy as np

from fedcore import seeds
from fedcore.config import (
    ConfigError,
    DirClientPartition,
    DirichletPartition,
    IidPartition,
    NaturalPartition,
    Problem,
    valid_schemes,
)
from fedcore.data.dataset import Dataset
from fedcore.data.splits import UNUSED

_TINY = float(np.finfo(float).tiny)


def iid(config: IidPartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32: rows dealt at random, sizes differ by one at most."""
    n = len(dataset)
    if config.clients > n:
        message = f"{config.clients} clients, but '{dataset.name}' has {n} examples; use at most {n} clients"
        raise ConfigError([Problem(("partition", "clients"), message)])
    client = np.empty(n, np.int32)
    client[seeds.stream(config.seed, "partition/iid").permutation(n)] = np.arange(n) % config.clients
    return client


def dirichlet(config: DirichletPartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32: every class cut by Dirichlet shares, redrawn until the floor is kept.

    A client that already holds its fair share (n / clients) gets nothing of the classes that follow. This is the
    partition of NIID-Bench, over train and test rows together.

    Raises
    ------
    ConfigError
        When the floor cannot be kept, at once or after ``max_redraws`` draws.
    """
    n, clients, floor = len(dataset), config.clients, config.min_examples
    if clients * floor > n:
        message = (
            f"{clients} clients with at least {floor} examples each need {clients * floor}, '{dataset.name}' has {n};"
            f" use at most {n // clients} (or at most {n // floor} clients)"
        )
        raise ConfigError([Problem(("partition", "min_examples"), message)])
    class_sizes = np.bincount(dataset.labels, minlength=dataset.num_classes)
    best = 0
    for redraw in range(config.max_redraws):
        cuts = _dirichlet_cuts(config, class_sizes, redraw)
        if cuts is None:
            continue
        smallest = int(np.diff(cuts, axis=1).sum(axis=0).min())
        if smallest >= floor:
            return deal(np.diff(cuts, axis=1), dataset.labels, config.seed)
        best = max(best, smallest)
    message = (
        f"none of {config.max_redraws} draws gave each of {clients} clients {floor} examples (closest: {best}) with"
        f" alpha {config.alpha}; lower partition.min_examples or partition.clients, or raise partition.alpha"
    )
    raise ConfigError([Problem(("partition", "min_examples"), message)])


def _dirichlet_cuts(config: DirichletPartition, class_sizes: np.ndarray, redraw: int) -> np.ndarray | None:
    """Return where each class is cut, [K, clients + 1]; None when every share of a class falls to full clients.

    Only sizes matter for the floor, so rows are shuffled once, after a draw is accepted.
    """
    random = seeds.stream(config.seed, "partition/dirichlet", round=redraw)
    fair = class_sizes.sum() / config.clients
    held = np.zeros(config.clients, np.int64)
    cuts = np.zeros((len(class_sizes), config.clients + 1), np.int64)
    for label, size in enumerate(class_sizes):
        shares = random.dirichlet(np.full(config.clients, config.alpha)) * (held < fair)
        total = shares.sum()
        if not total > 0:
            return None
        cuts[label, 1:] = np.cumsum(shares / total) * size  # truncated to whole rows
        cuts[label, -1] = size
        held += np.diff(cuts[label])
    return cuts


def dir_client(config: DirClientPartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32: client after client fills up with floor(n / clients) rows.

    A client draws its class shares from a Dirichlet distribution, then a class at a time from these shares until it is
    full; a class without rows left drops out and the other shares grow in proportion. The n modulo `clients` rows that
    nobody takes are unused (-1).

    Differs from the code of FedBR: the shares are drawn over the classes that have rows left, which is the same
    distribution as dropping the others afterwards and needs no floor on their concentration (it would be 0).

    References
    ----------
    Guo et al., ICML 2023. https://arxiv.org/abs/2205.13462
    """
    n = len(dataset)
    if config.clients > n:
        message = f"{config.clients} clients, but '{dataset.name}' has {n} examples; use at most {n} clients"
        raise ConfigError([Problem(("partition", "clients"), message)])
    random = seeds.stream(config.seed, "partition/dir_client")
    left = np.bincount(dataset.labels, minlength=dataset.num_classes)
    counts = np.zeros((dataset.num_classes, config.clients), np.int64)
    for client in range(config.clients):
        prior = left / left.sum() if config.prior == "remaining" else np.ones(len(left))
        counts[:, client] = _fill(random, config.alpha * prior, left, n // config.clients)
        left = left - counts[:, client]
    return deal(counts, dataset.labels, config.seed)


def _fill(random: np.random.Generator, concentration: np.ndarray, left: np.ndarray, size: int) -> np.ndarray:
    """Return how many rows of each class [K] one client takes, `size` together and at most `left` of each."""
    taken = np.zeros_like(left)
    shares = np.zeros(len(left))
    while (missing := size - int(taken.sum())) > 0:
        live = taken < left
        shares[~live] = 0
        if not shares.sum() > 0:
            # Nothing drawn yet, or the shares of all classes that are left were too small for a float. Relative to each
            # other the shares of some classes are Dirichlet again, so these are drawn anew.
            shares[live] = random.dirichlet(np.maximum(concentration[live], _TINY))
        # By hand what Generator.choice does with probabilities: its checks take longer than a client's few draws.
        bounds = np.cumsum(shares / shares.sum())
        drawn = np.searchsorted(bounds / bounds[-1], random.random(missing), side="right")
        counts = np.bincount(drawn, minlength=len(left))
        excess = np.flatnonzero(counts > left - taken)
        if len(excess):
            end = _first_excess(drawn, excess, left - taken)
            counts = np.bincount(drawn[:end], minlength=len(left))
        taken += counts
    return taken


def _first_excess(drawn: np.ndarray, excess: np.ndarray, left: np.ndarray) -> int:
    """Return the first position at which one of the classes `excess` is drawn more often than it has rows left."""
    return min(int(np.flatnonzero(drawn == label)[left[label]]) for label in excess)


def deal(counts: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """Give each client random rows of each class.

    Parameters
    ----------
    counts : array [K, clients] int
        Rows of each class for each client; at most as many together as the class has.
    labels : array [n] int
    seed : int, >= 0

    Returns
    -------
    array [n] int32
        Client of each row; -1 for the rows that nobody gets.
    """
    client = np.full(len(labels), UNUSED, np.int32)
    random = seeds.stream(seed, "partition/rows")
    for label, shares in enumerate(counts):
        rows = random.permutation(np.flatnonzero(labels == label))
        client[rows[: shares.sum()]] = np.repeat(np.arange(len(shares)), shares)
    return client


def natural(config: NaturalPartition, dataset: Dataset) -> np.ndarray:
    """Return the set's own clients [n] int32, numbered without gaps; those below the floor are left out (-1)."""
    if dataset.clients is None:
        message = f"'natural' needs a data set with clients of its own; '{dataset.name}' has none."
        valid = valid_schemes(own_clients=False)
        raise ConfigError([Problem(("partition", "scheme"), f"{message} Valid: {valid}")])
    sizes = np.bincount(dataset.clients)
    kept = sizes >= config.min_examples
    if not kept.any():
        message = f"no client has {config.min_examples} examples; the largest has {sizes.max()}"
        raise ConfigError([Problem(("partition", "min_examples"), message)])
    number = np.where(kept, np.cumsum(kept) - 1, UNUSED).astype(np.int32)
    return np.asarray(number[dataset.clients])
