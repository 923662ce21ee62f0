"""Partitions: which client holds which row, and in which split; made from a scheme."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from fedcore import config as settings
from fedcore import seeds
from fedcore.config import ConfigError, FilePartition, Problem, Splits, StablePartition, valid_schemes
from fedcore.data import class_schemes, noise, quantity_schemes, rotation, schemes, splits, stable
from fedcore.data.dataset import Dataset
from fedcore.data.partition_files import load, read_own, save
from fedcore.data.partition_table import PartitionTable
from fedcore.data.splits import TEST, TRAIN, UNUSED, VALIDATION

__all__ = ["TEST", "TRAIN", "UNUSED", "VALIDATION", "PartitionTable", "load", "make", "save"]

_SCHEMES: dict[type[Splits], Callable[[Any, Dataset], np.ndarray]] = {
    settings.IidPartition: schemes.iid,
    settings.PowerLawPartition: quantity_schemes.power_law,
    settings.LogNormalPartition: quantity_schemes.log_normal,
    settings.DirichletPartition: schemes.dirichlet,
    settings.DirClientPartition: schemes.dir_client,
    settings.ShardsPartition: class_schemes.shards,
    settings.KClassesPartition: class_schemes.k_classes,
    settings.LgShardsPartition: class_schemes.lg_shards,
    settings.PathologicalPartition: class_schemes.pathological,
    settings.DominantPartition: class_schemes.dominant,
    settings.NaturalPartition: schemes.natural,
    settings.StablePartition: stable.deal,
}


def make(config: settings.Partition, dataset: Dataset) -> PartitionTable:
    """Deal the rows of `dataset` to clients and split each client's share.

    Every draw comes from a stream of its own (`fedcore.seeds`), so the splits do not depend on how often the
    assignment was redrawn.

    Raises
    ------
    ConfigError
        When the scheme cannot be met; names the key, what was reached and what would work.
    ValueError
        When a partition file is missing or wrong; names the file, the array and the row.
    """
    if isinstance(config, FilePartition):
        client, split, degrees, levels, noise_seed = read_own(config, dataset)
    else:
        client = _deal(config, dataset)
        total = int(client.max()) + 1
        split = _split(config, dataset, client, total)
        degrees, levels, noise_seed = _rotation(config, dataset, total), _noise(config, dataset, total), config.seed
    total = len(degrees)
    if config.unseen_clients >= total:
        message = f"{config.unseen_clients} of {total} clients unseen leaves none to train; use at most {total - 1}"
        raise ConfigError([Problem(("partition", "unseen_clients"), message)])
    scheme = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    unseen = config.unseen_clients
    return PartitionTable(client, split, total - unseen, unseen, scheme, degrees, levels, noise_seed)


def _deal(config: Splits, dataset: Dataset) -> np.ndarray:
    """Return the client of each row, of the kept share of every class; the other rows are unused."""
    if config.mixes_clients and dataset.clients is not None:
        name = config.model_dump()["scheme"]
        message = f"'{name}' would mix the clients of '{dataset.name}'. Valid: {valid_schemes(own_clients=True)}"
        raise ConfigError([Problem(("partition", "scheme"), message)])
    scheme = _SCHEMES[type(config)]
    if config.keep == 1:
        return scheme(config, dataset)
    shuffled = seeds.stream(config.seed, "partition/keep").permutation(len(dataset))
    by_class = shuffled[np.argsort(dataset.labels[shuffled], kind="stable")]
    sizes = np.bincount(dataset.labels, minlength=dataset.num_classes)
    place = np.arange(len(dataset)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.maximum(np.rint(config.keep * sizes), 1).astype(np.int64)
    rows = np.sort(by_class[place < np.repeat(wanted, sizes)])
    client = np.full(len(dataset), UNUSED, np.int32)
    client[rows] = scheme(config, dataset.take(rows))
    return client


def _split(config: Splits, dataset: Dataset, client: np.ndarray, total: int) -> np.ndarray:
    if isinstance(config, StablePartition):
        return stable.split(config, dataset, client)
    return splits.assign(client, dataset.labels, total, config.test, config.validation, config.seed)


def _rotation(config: Splits, dataset: Dataset, total: int) -> np.ndarray:
    # Below a full turn, so that a float32 is exact enough however many clients there are.
    degrees = np.fmod(np.arange(total) * config.rotation, 360)
    if config.unseen_rotation is not None:
        degrees[max(total - config.unseen_clients, 0) :] = config.unseen_rotation
    wrong = rotation.problem(degrees, dataset.input_shape)
    if wrong is not None:
        key = "rotation" if config.rotation else "unseen_rotation"
        raise ConfigError([Problem(("partition", key), f"'{dataset.name}': {wrong}. Valid: 0")])
    return np.asarray(degrees, np.float32)


def _noise(config: Splits, dataset: Dataset, total: int) -> np.ndarray:
    levels = np.asarray(config.noise * np.arange(total) / total, np.float32)
    wrong = noise.problem(levels, dataset.input_shape)
    if wrong is not None:
        raise ConfigError([Problem(("partition", "noise"), f"'{dataset.name}': {wrong}. Valid: 0")])
    return levels
