"""The scheme for growing data: client and split of an example follow from the example alone.

Every row is hashed (SHA-256 over the seed and the bytes of its input). One word of the hash says the split, another
the client where the data set has none of its own. So rows that arrive later move none that are there.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from fedcore import seeds
from fedcore.config import ConfigError, Problem, StablePartition
from fedcore.data.dataset import Dataset
from fedcore.data.splits import TEST, TRAIN, UNUSED, VALIDATION

_SPLIT, _CLIENT = 0, 1  # which word of a row's hash decides what


def deal(config: StablePartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32, -1 while its client has too few.

    Clients are numbered in the order in which they came to have ``min_examples`` rows and one in every split, row after
    row. When rows are only ever added at the end, no client's number changes.

    Raises
    ------
    ConfigError
        When ``clients`` is missing, or given for a data set that has its own, or no client has enough.
    """
    draws = fractions(dataset.inputs, config.seed)
    holder = _holders(config, dataset, draws[:, _CLIENT])
    split = _splits(config, draws[:, _SPLIT])
    needed = (TRAIN, TEST, VALIDATION) if config.validation else (TRAIN, TEST)
    ready = np.max([_nth_row(holder, split == code, 1) for code in needed], axis=0)
    ready = np.maximum(ready, _nth_row(holder, np.ones(len(holder), bool), config.min_examples))
    there = ready < len(holder)
    if not there.any():
        largest = int(np.bincount(holder).max())
        message = f"no client has {config.min_examples} examples and one in every split; the largest has {largest}"
        raise ConfigError([Problem(("partition", "min_examples"), message)])
    number = np.full(len(ready), UNUSED, np.int32)
    number[np.argsort(ready, kind="stable")[: there.sum()]] = np.arange(there.sum())
    return np.asarray(number[holder])


def split(config: StablePartition, dataset: Dataset, client: np.ndarray) -> np.ndarray:
    """Return the split of each row [n] int8, -1 for an unused one; `client` is what `deal` returned."""
    found = _splits(config, fractions(dataset.inputs, config.seed)[:, _SPLIT])
    return np.asarray(np.where(client < 0, UNUSED, found).astype(np.int8))


def fractions(inputs: np.ndarray, seed: int) -> np.ndarray:
    """Return four numbers [n, 4] in [0, 1) per row, each a function of `seed` and the row's bytes alone."""
    words = np.empty((len(inputs), 4), np.uint64)
    salt = hashlib.sha256(f"partition/stable {seed} ".encode())
    for number, row in enumerate(inputs):
        digest = salt.copy()
        digest.update(row_bytes(row))
        words[number] = np.frombuffer(digest.digest(), "<u8")
    return np.asarray((words >> np.uint64(11)) * 2.0**-53)


def row_bytes(row: np.ndarray) -> Any:
    """Return an example's bytes, the same for equal examples on every machine: little-endian, 0.0 for -0.0."""
    if row.dtype.kind == "f":
        row = row + 0.0
    return np.ascontiguousarray(row, row.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


def _holders(config: StablePartition, dataset: Dataset, draws: np.ndarray) -> np.ndarray:
    """Return who holds each row, [n] int >= 0: the data set's own client, or the one that its hash says."""
    if dataset.clients is not None:
        if config.clients is not None or config.alpha is not None:
            key = "clients" if config.clients is not None else "alpha"
            message = f"data set '{dataset.name}' has clients of its own. Valid: null"
            raise ConfigError([Problem(("partition", key), message)])
        return np.asarray(dataset.clients)
    if config.clients is None:
        message = f"data set '{dataset.name}' has no clients of its own; say how many there are to be"
        raise ConfigError([Problem(("partition", "clients"), message)])
    if config.alpha is None:
        return np.asarray((draws * config.clients).astype(np.int64))
    random = seeds.stream(config.seed, "partition/stable")
    shares = random.dirichlet(np.repeat(config.alpha, config.clients), dataset.num_classes)
    holder = np.empty(len(draws), np.int64)
    for label, bounds in enumerate(np.cumsum(shares, axis=1)):
        mine = dataset.labels == label
        holder[mine] = np.searchsorted(bounds[:-1], draws[mine], side="right")
    return holder


def _splits(config: StablePartition, draws: np.ndarray) -> np.ndarray:
    validation = config.test + (1 - config.test) * config.validation
    return np.where(draws < config.test, TEST, np.where(draws < validation, VALIDATION, TRAIN))


def _nth_row(holder: np.ndarray, wanted: np.ndarray, nth: int) -> np.ndarray:
    """Return the row at which each holder has its nth wanted row; the number of rows where it never has."""
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(holder[rows], kind="stable")]
    counts = np.bincount(holder[rows], minlength=int(holder.max()) + 1)
    starts = np.cumsum(counts) - counts
    found = np.full(len(counts), len(holder))
    enough = counts >= nth
    found[enough] = rows[starts[enough] + nth - 1]
    return found
