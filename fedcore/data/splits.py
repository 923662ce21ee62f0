"""Train, test and validation splits inside each client, stratified by label, for a million clients at once."""

from __future__ import annotations

import numpy as np

from fedcore import seeds

TRAIN, TEST, VALIDATION = 0, 1, 2
UNUSED = -1


def assign(
    client: np.ndarray, labels: np.ndarray, num_clients: int, test: float, validation: float, seed: int
) -> np.ndarray:
    """Split every client's examples.

    A client with m examples gets ``round(m * test)`` test examples and ``round(rest * validation)`` validation
    examples of the rest, spread over its labels in proportion. Every client keeps at least one train example; one
    with 2 examples or more has a test example; one with 3 or more has a validation example if `validation` > 0.

    Parameters
    ----------
    client : array [n] int, -1 (unused) or 0..num_clients-1
    labels : array [n] int, >= 0
    test : float in (0, 1), share of a client's examples
    validation : float in [0, 1), share of the examples left after the test split
    seed : int, >= 0

    Returns
    -------
    array [n] int8
        `TRAIN`, `TEST`, `VALIDATION`; `UNUSED` where `client` is -1.
    """
    split = np.where(client < 0, UNUSED, TRAIN).astype(np.int8)
    sizes = _sizes(client[client >= 0], num_clients)
    kept = 1 + ((sizes >= 3) & (validation > 0))
    num_test = np.minimum(np.maximum(_round(sizes * test), 1), np.maximum(sizes - kept, 0))
    rows = _grouped(client >= 0, client, labels, seed)
    split[_choose(rows, client, sizes, num_test, seed, "partition/test")] = TEST
    return _cut(rows, client, split, num_clients, validation, seed)


def cut_validation(
    client: np.ndarray, labels: np.ndarray, split: np.ndarray, num_clients: int, validation: float, seed: int
) -> np.ndarray:
    """Return `split` with `validation` of each client's train examples moved to the validation split.

    Stratified as in `assign`; at least one train example stays, and a client with 3 examples or more (all splits
    together) gets a validation example if it has two train examples and `validation` > 0.
    """
    return _cut(_grouped(client >= 0, client, labels, seed), client, split, num_clients, validation, seed)


def _cut(
    rows: np.ndarray, client: np.ndarray, split: np.ndarray, num_clients: int, validation: float, seed: int
) -> np.ndarray:
    """Cut the validation split out of `rows`, all that have a client, as `_grouped` orders them."""
    if validation == 0:
        return split
    totals = _sizes(client[rows], num_clients)
    # What is left of grouped rows is grouped: the sort, which takes most of the time, is done once.
    rows = rows[split[rows] == TRAIN]
    sizes = _sizes(client[rows], num_clients)
    floor = (totals >= 3).astype(np.int64)
    num_validation = np.minimum(np.maximum(_round(sizes * validation), floor), np.maximum(sizes - 1, 0))
    split = split.copy()
    split[_choose(rows, client, sizes, num_validation, seed, "partition/validation")] = VALIDATION
    return split


def _round(counts: np.ndarray) -> np.ndarray:
    return np.asarray(np.rint(counts), dtype=np.int64)


def _sizes(client: np.ndarray, num_clients: int) -> np.ndarray:
    return np.bincount(client, minlength=num_clients)


def _grouped(wanted: np.ndarray, client: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """Return the rows where `wanted` is true, ordered by client, then label, then at random."""
    # A permutation and a stable sort, not random floats: no ties, so the order is the same on every machine.
    shuffled = seeds.stream(seed, "partition/order").permutation(len(client))
    shuffled = shuffled[wanted[shuffled]]
    group = client[shuffled].astype(np.int64) * (int(labels.max()) + 1) + labels[shuffled]
    return np.asarray(shuffled[np.argsort(group, kind="stable")])


def _choose(
    rows: np.ndarray, client: np.ndarray, sizes: np.ndarray, counts: np.ndarray, seed: int, purpose: str
) -> np.ndarray:
    """Take ``counts[c]`` evenly spaced rows of each client's ``sizes[c]`` grouped rows, from a random offset.

    Even spacing over rows sorted by label gives a label with g of m rows either the floor or the ceiling of
    ``g * count / m``.
    """
    offset = np.floor(seeds.stream(seed, purpose).random(len(sizes)) * sizes).astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    owner = client[rows]
    size, count = sizes[owner], counts[owner]
    # Integer arithmetic: position * count + offset wraps past `size` exactly `count` times, whatever the offset.
    phase = ((np.arange(len(rows)) - starts[owner]) * count + offset[owner]) % size
    return np.asarray(rows[phase >= size - count])
