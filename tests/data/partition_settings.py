"""Short ways to write partition settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore import config
from fedcore.data.partitions import PartitionTable


def iid(**changes: object) -> config.IidPartition:
    return config.IidPartition(scheme="iid", **{"clients": 7, **changes})


def dirichlet(**changes: object) -> config.DirichletPartition:
    return config.DirichletPartition(scheme="dirichlet", **{"alpha": 0.5, "clients": 8, "min_examples": 5, **changes})


def dir_client(**changes: object) -> config.DirClientPartition:
    return config.DirClientPartition(scheme="dir_client", **{"alpha": 0.5, "clients": 7, **changes})


def power_law(**changes: object) -> config.PowerLawPartition:
    return config.PowerLawPartition(scheme="quantity_power_law", **{"clients": 8, **changes})


def log_normal(**changes: object) -> config.LogNormalPartition:
    return config.LogNormalPartition(scheme="quantity_log_normal", **{"clients": 8, **changes})


def shards(**changes: object) -> config.ShardsPartition:
    return config.ShardsPartition(scheme="shards", **{"clients": 6, **changes})


def k_classes(**changes: object) -> config.KClassesPartition:
    return config.KClassesPartition(scheme="k_classes", **{"clients": 8, **changes})


def lg_shards(**changes: object) -> config.LgShardsPartition:
    return config.LgShardsPartition(scheme="lg_shards", **{"clients": 9, **changes})


def pathological(**changes: object) -> config.PathologicalPartition:
    return config.PathologicalPartition(scheme="pathological", **{"clients": 6, **changes})


def dominant(**changes: object) -> config.DominantPartition:
    return config.DominantPartition(scheme="dominant", **{"clients": 8, "share": 0.9, **changes})


def natural(**changes: object) -> config.NaturalPartition:
    return config.NaturalPartition(scheme="natural", **changes)


def from_file(path: Path, **changes: object) -> config.FilePartition:
    return config.FilePartition(scheme="file", path=str(path), **changes)


def assert_same(left: PartitionTable, right: PartitionTable) -> None:
    np.testing.assert_array_equal(left.client, right.client)
    np.testing.assert_array_equal(left.split, right.split)
    np.testing.assert_array_equal(left.rotation, right.rotation)
    np.testing.assert_array_equal(left.noise, right.noise)
    assert (left.num_clients, left.num_unseen) == (right.num_clients, right.num_unseen)
