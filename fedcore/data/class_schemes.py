"""Partition schemes that limit the classes of a client: parameters and labels -> the client that holds each row.

All of them deal train and test rows together; `fedcore.data.splits` then cuts each client's share by label, so a client
has the same classes in train and test whatever the scheme.
"""

from __future__ import annotations

import math

import numpy as np

from fedcore import seeds
from fedcore.config import (
    ConfigError,
    DominantPartition,
    KClassesPartition,
    LgShardsPartition,
    PathologicalPartition,
    Problem,
    ShardsPartition,
)
from fedcore.data.dataset import Dataset
from fedcore.data.schemes import deal


def shards(config: ShardsPartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32: rows sorted by label, cut into equal sets, `shards` sets each.

    The sets differ by one row where clients * shards does not divide n; every row is used. A set holds one class, or
    two where it lies across their border (more if a class is smaller than a set), so a client has at most `shards`
    classes if the size of a set divides every class, and at most 2 * shards otherwise.

    References
    ----------
    Zhang et al., ICML 2022, section 5.1, "Q(alpha)". https://arxiv.org/abs/2209.00189
    """
    n, sets = len(dataset), config.clients * config.shards
    if sets > n:
        message = (
            f"{config.clients} clients with {config.shards} shards each need {sets} examples, '{dataset.name}' has {n};"
            f" use at most {n // config.clients} shards (or at most {n // config.shards} clients)"
        )
        raise _refusal("shards", message)
    # Shuffled before the stable sort, so that which rows of a class lie together does not follow the file's order.
    rows = seeds.stream(config.seed, "partition/rows").permutation(n)
    rows = rows[np.argsort(dataset.labels[rows], kind="stable")]
    owner = seeds.stream(config.seed, "partition/shards").permutation(sets) // config.shards
    client = np.empty(n, np.int32)
    client[rows] = np.repeat(owner, _even(n, sets))
    return client


def k_classes(config: KClassesPartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32: exactly `classes` classes each, every class split evenly.

    Client i has class i mod K and ``classes - 1`` others at random. The rows of a class that no client has are unused
    (-1), which only happens with fewer clients than classes. This is the label-quantity skew of NIID-Bench.

    References
    ----------
    Li et al., ICDE 2022, "#C=k". https://arxiv.org/abs/2102.02079
    """
    num_classes, clients = dataset.num_classes, config.clients
    if config.classes > num_classes:
        message = f"{config.classes} classes per client, but '{dataset.name}' has {num_classes}; use at most that"
        raise _refusal("classes", message)
    order = seeds.stream(config.seed, "partition/k_classes").random((clients, num_classes))
    order[np.arange(clients), np.arange(clients) % num_classes] = -1  # its own class comes first
    chosen = np.argsort(order, axis=1, kind="stable")[:, : config.classes]
    has = np.zeros((num_classes, clients), bool)
    has[chosen.T, np.arange(clients)] = True
    sizes = _class_sizes(dataset)
    counts = np.zeros((num_classes, clients), np.int64)
    for label, owners in enumerate(has):
        holders = int(owners.sum())
        if holders > sizes[label]:
            message = f"{_examples_of(dataset, label)} for {holders} clients"
            raise _refusal(
                "clients", f"{message}; use fewer clients (up to {sizes.min()} always works) or fewer classes"
            )
        if holders:
            counts[label, owners] = _even(sizes[label], holders)
    return deal(counts, dataset.labels, config.seed)


def lg_shards(config: LgShardsPartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32: every class cut into shards * clients / K pieces, `shards` pieces each.

    The pieces are dealt at random, and a client may get several of one class, so it has at most `shards` classes. The
    pieces of a class differ by one row at most; every row is used. In the published code the same table of users and
    classes cuts the test set; here train and test are dealt together and split inside the client by label, so they
    have the same classes by construction.

    References
    ----------
    Liang et al., 2020, section 5.1. https://arxiv.org/abs/2001.01523
    """
    num_classes, clients = dataset.num_classes, config.clients
    total = clients * config.shards
    if total % num_classes:
        step = num_classes // math.gcd(num_classes, config.shards)
        near = max(step, round(clients / step) * step)
        message = (
            f"{clients} clients * {config.shards} shards = {total} pieces cannot be shared evenly by the {num_classes}"
            f" classes of '{dataset.name}'; use a multiple of {step} clients, for example {near}"
        )
        raise _refusal("clients", message)
    sizes, pieces = _class_sizes(dataset), total // num_classes
    if pieces > sizes.min():
        most = int(sizes.min()) * num_classes
        message = f"{_examples_of(dataset, int(sizes.argmin()))} for {pieces} pieces"
        raise _refusal("clients", f"{message}; clients * shards may be at most {most}, it is {total}")
    # Piece j of the pieces sorted by class goes to client owner[j].
    owner = seeds.stream(config.seed, "partition/lg_shards").permutation(total) // config.shards
    counts = np.zeros((num_classes, clients), np.int64)
    for label in range(num_classes):
        # A client may appear more than once, which `counts[label, owner] += ...` would count once.
        np.add.at(counts[label], owner[label * pieces : (label + 1) * pieces], _even(sizes[label], pieces))
    return deal(counts, dataset.labels, config.seed)


def pathological(config: PathologicalPartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32: class after class goes to the first clients that have room for one.

    A class goes to at most ceil(clients * classes / K) clients that have fewer than `classes` so far. Each but the last
    takes a random number of its rows, uniform from max(rows / (10 * owners), min_examples / K) to below rows / owners;
    the last takes the rest. Every client ends with `classes` classes if K is a multiple of `classes`; otherwise the
    last clients may get fewer. Classes that find no client with room stay unused (-1). This is the walk of PFLlib.

    References
    ----------
    Zhang et al., NeurIPS 2023 (DBE), through PFLlib. https://arxiv.org/abs/2311.14975
    """
    num_classes, clients = dataset.num_classes, config.clients
    if config.classes > num_classes:
        message = f"{config.classes} classes per client, but '{dataset.name}' has {num_classes}; use at most that"
        raise _refusal("classes", message)
    random = seeds.stream(config.seed, "partition/pathological")
    most = -(-clients * config.classes // num_classes)
    room = np.full(clients, config.classes)
    counts = np.zeros((num_classes, clients), np.int64)
    for label in range(num_classes):
        owners = np.flatnonzero(room)[:most]
        if len(owners):
            counts[label, owners] = _uneven(random, config, dataset, label, len(owners))
            room[owners] -= 1
    return deal(counts, dataset.labels, config.seed)


def _uneven(
    random: np.random.Generator, config: PathologicalPartition, dataset: Dataset, label: int, owners: int
) -> np.ndarray:
    """Return the sizes of the pieces [owners] of one class."""
    size = int(_class_sizes(dataset)[label])
    if owners == 1 and size:
        return np.array([size])
    if size <= owners:
        message = f"{_examples_of(dataset, label)} for {owners} clients, it needs at least {owners + 1}"
        raise _refusal("clients", f"{message}; use fewer clients or fewer classes")
    even = size / owners
    least, below = math.ceil(max(even / 10, config.min_examples / dataset.num_classes)), math.ceil(even)
    if least >= below:
        message = f"{_examples_of(dataset, label)} for {owners} clients, too few for pieces of {least} and more"
        raise _refusal("min_examples", f"{message}; use at most {(below - 1) * dataset.num_classes}")
    pieces = random.integers(least, below, owners - 1)
    return np.append(pieces, size - pieces.sum())


def dominant(config: DominantPartition, dataset: Dataset) -> np.ndarray:
    """Return the client of each row [n] int32: `share` of class k to the clients i with i mod K = k, all rows used.

    The clients with the same main class share it evenly, and the rest of the class goes evenly to the other clients.
    With one client per class, or equally many, and classes of equal size a client's main class also makes up `share` of
    the client's rows: 4,950 of 5,000 for CIFAR-10 and ten clients. This is the partition "subset" of VHL.

    References
    ----------
    Tang et al., ICML 2022 (VHL), Table 3. https://arxiv.org/abs/2206.02465
    """
    num_classes, clients = dataset.num_classes, config.clients
    if clients < num_classes:
        message = f"{clients} clients leave classes of '{dataset.name}' without one that has them as the main class"
        raise _refusal("clients", f"{message}; use at least {num_classes}")
    counts = np.zeros((num_classes, clients), np.int64)
    for label, size in enumerate(_class_sizes(dataset)):
        owners = np.arange(label, clients, num_classes)
        # The others in a circle from the class on: the odd rows of all classes then do not pile up at the same clients.
        others = np.roll(np.setdiff1d(np.arange(clients), owners), -label)
        main = round(size * config.share) if len(others) else int(size)
        if main < len(owners):
            message = (
                f"{_examples_of(dataset, label)}, {main} of them for the {len(owners)} clients it is the main class of"
            )
            raise _refusal("clients", f"{message}; use fewer clients or a larger share")
        counts[label, owners] = _even(main, len(owners))
        if len(others):
            counts[label, others] = _even(size - main, len(others))
    return deal(counts, dataset.labels, config.seed)


def _even(rows: int, parts: int) -> np.ndarray:
    """Return sizes [parts] that differ by one at most and sum to `rows`, the larger ones first."""
    return np.full(parts, rows // parts) + (np.arange(parts) < rows % parts)


def _class_sizes(dataset: Dataset) -> np.ndarray:
    return np.bincount(dataset.labels, minlength=dataset.num_classes)


def _examples_of(dataset: Dataset, label: int) -> str:
    size = _class_sizes(dataset)[label]
    return f"class '{dataset.class_names[label]}' of '{dataset.name}' has {size} examples"


def _refusal(key: str, message: str) -> ConfigError:
    return ConfigError([Problem(("partition", key), message)])
