"""The workloads: what is trained in a round, exactly.

`python -m benchmarks.workloads` prints what each one is.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from benchmarks import images
from benchmarks.images import Sources
from fedcore.config import DirClientPartition, DirichletPartition, FilePartition
from fedcore.config import Model as ModelConfig
from fedcore.data import partitions
from fedcore.data.dataset import Dataset
from fedcore.data.federation import Federation
from fedcore.data.partitions import TEST, TRAIN, UNUSED, PartitionTable
from fedcore.seeds import stream


@dataclass(frozen=True)
class Workload:
    """What is trained, on what, by which method.

    Attributes
    ----------
    name, title : str
    federation : Federation
    model : mapping
        The ``model`` section.
    train : mapping
        Keys of the ``train`` section that make the work; rounds, device and executor are the measurement's.
    method : mapping
        One line of ``methods``; empty is FedAvg.
    is_random : bool
        Whether the examples are random bytes in place of a data set's.
    per_class, pseudo_rows : int
        Size of the virtual and the pseudo data, where the method needs them.
    """

    name: str
    title: str
    federation: Federation
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    method: Mapping[str, Any] = field(default_factory=dict)
    is_random: bool = False
    per_class: int = 200
    pseudo_rows: int = 32

    @property
    def model_config(self) -> Any:
        """The checked ``model`` section."""
        return TypeAdapter(ModelConfig).validate_python(dict(self.model))


def build(name: str, sources: Sources, scale: float = 1.0) -> Workload:
    """Return a workload.

    Parameters
    ----------
    scale : float in (0, 1], default 1
        Share of every client's rows that is kept in each split (at least one), for smoke runs; of G2 and G3 also a
        narrower model, and of G2 fewer local steps.

    Raises
    ------
    ValueError
        If its data are not there or `scale` is out of range.
    """
    if not 0 < scale <= 1:
        raise ValueError(f"--scale: expected a number above 0 and at most 1, got {scale:g}")
    workload = BUILDERS[name](sources, scale)
    return replace(workload, is_random=sources.is_random and workload.federation.dataset.name != "synthetic")


def _w1(sources: Sources, scale: float) -> Workload:
    data = images.read("mnist", sources)
    section = FilePartition(scheme="file", path=str(sources.partition), validation=0.0)
    return Workload(
        "w1",
        "CNN on MNIST, 20 very skewed clients",
        _federation(data, partitions.make(section, data), scale),
        {"name": "cnn"},
        {"participation": 1.0, "local_epochs": 1, "batch_size": 10, "lr": 0.005},
    )


def _w2(sources: Sources, scale: float) -> Workload:
    data, table = _synthetic(clients=100, train_rows=300, test_rows=30)
    return Workload(
        "w2",
        "softmax regression on Synthetic(1, 1), 100 clients",
        _federation(data, table, scale),
        {"name": "softmax_regression"},
        {"participation": 0.1, "local_epochs": 20, "batch_size": 10, "lr": 0.01},
    )


def _w3(sources: Sources, scale: float) -> Workload:
    data = images.read("mnist", sources)
    return Workload(
        "w3",
        "MLP on MNIST, 1,000 clients of two label shards",
        _federation(data, _two_shards(data, clients=1000), scale),
        {"name": "mlp", "hidden": [200]},
        {"participation": 0.05, "local_epochs": 5, "batch_size": 20, "lr": 0.05},
    )


def _g1(sources: Sources, scale: float) -> Workload:
    data = images.read("fashion_mnist", sources)
    section = DirichletPartition(
        scheme="dirichlet", alpha=0.1, clients=20, min_examples=40, validation=0.0, test=0.25, seed=0
    )
    return Workload(
        "g1",
        "DBE, CNN on Fashion-MNIST, 20 very skewed clients",
        _federation(data, partitions.make(section, data), scale),
        {"name": "cnn"},
        {"participation": 1.0, "local_epochs": 1, "batch_size": 10, "lr": 0.005},
        {"method": "fedavg", "add": {"dbe": {"kappa": 50.0, "momentum": 1.0}}},
    )


def _g2(sources: Sources, scale: float) -> Workload:
    data = images.read("cifar10", sources)
    section = DirClientPartition(scheme="dir_client", alpha=0.1, clients=10, validation=0.0, test=0.25, seed=0)
    steps = max(1, round(50 * scale))
    return Workload(
        "g2",
        "FedBR, VGG-11 on CIFAR-10, 10 clients",
        _federation(data, partitions.make(section, data), scale),
        {"name": "vgg11", "width": _width(scale)},
        {"sampling": "replacement", "local_steps": steps, "batch_size": 32, "lr": 0.01, "weighting": "uniform"},
        {"method": "fedbr"},
    )


def _g3(sources: Sources, scale: float) -> Workload:
    data = images.read("cifar10", sources)
    section = DirichletPartition(
        scheme="dirichlet", alpha=0.1, clients=10, min_examples=10, validation=0.0, test=0.25, seed=0
    )
    learning = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
    return Workload(
        "g3",
        "VHL, ResNet-18 on CIFAR-10, 10 clients",
        _federation(data, partitions.make(section, data), scale),
        {"name": "resnet", "depth": 18, "width": _width(scale)},
        {"participation": 0.5, "local_epochs": 1, "batch_size": 128, "last_batch": "wrap", **learning},
        {"method": "fedavg", "add": {"vhl": {}}},
    )


BUILDERS: dict[str, Callable[[Sources, float], Workload]] = {
    "w1": _w1,
    "w2": _w2,
    "w3": _w3,
    "g1": _g1,
    "g2": _g2,
    "g3": _g3,
}
SIMULATORS = ("w1", "w2", "w3")  # those that other simulators were measured on


def _width(scale: float) -> int:
    """Return the channels of the first stage: work falls with their square."""
    return max(4, round(64 * math.sqrt(scale)))


def _synthetic(clients: int, train_rows: int, test_rows: int) -> tuple[Dataset, PartitionTable]:
    """Return Synthetic(1, 1) with clients of equal size.

    The source of the pipeline draws sizes from a power law, which would make seconds per round depend on the cohort.
    """
    features, classes, rows = 60, 10, train_rows + test_rows
    deviation = np.arange(1, features + 1) ** -0.6
    inputs, labels = [], []
    for client in range(clients):
        generator = stream(0, "benchmark/synthetic", client=client)
        weight = generator.normal(generator.normal(0.0, 1.0), 1.0, (features, classes))
        center = generator.normal(generator.normal(0.0, 1.0), 1.0, features)
        x = (center + deviation * generator.standard_normal((rows, features))).astype(np.float32)
        inputs.append(x)
        labels.append((x.astype(np.float64) @ weight).argmax(1))
    owner = np.repeat(np.arange(clients), rows)
    split = np.tile(np.repeat([TRAIN, TEST], [train_rows, test_rows]), clients)
    names = tuple(map(str, range(classes)))
    data = Dataset(
        "synthetic",
        np.concatenate(inputs),
        np.concatenate(labels),
        names,
        (0.0,),
        (1.0,),
        len(owner),
        owner.astype("i4"),
    )
    return data, _table(owner, split, clients, {"clients": clients, "train": train_rows, "test": test_rows})


def _two_shards(data: Dataset, clients: int) -> PartitionTable:
    """Deal two label shards of the train rows to each client, and the test rows at random."""
    generator = stream(0, "benchmark/shards")
    train = data.num_train_rows
    by_label = np.argsort(data.labels[:train], kind="stable").reshape(2 * clients, -1)
    owner, split = np.empty(len(data), np.int64), np.full(len(data), TEST)
    split[:train] = TRAIN
    for shard, client in zip(by_label, generator.permutation(2 * clients) // 2, strict=True):
        owner[shard] = client
    owner[train:] = generator.permutation(len(data) - train) % clients
    return _table(owner, split, clients, {"clients": clients, "shards": 2})


def _table(owner: np.ndarray, split: np.ndarray, clients: int, scheme: dict[str, int]) -> PartitionTable:
    return PartitionTable(owner, split, clients, 0, json.dumps({"scheme": "benchmark", **scheme}, sort_keys=True))


def _federation(data: Dataset, table: PartitionTable, scale: float) -> Federation:
    """Return the federation; below scale 1, of the first rows of every client and split alone."""
    if scale == 1:
        return Federation(data, table)
    cell = table.client.astype(np.int64) * 3 + table.split
    order = np.argsort(cell, kind="stable")
    _, begin, size = np.unique(cell[order], return_index=True, return_counts=True)
    rank = np.empty(len(cell), np.int64)
    rank[order] = np.arange(len(cell)) - np.repeat(begin, size)
    limit = np.empty(len(cell), np.int64)
    limit[order] = np.repeat(np.ceil(scale * size).astype(np.int64), size)
    rows = np.flatnonzero((table.client != UNUSED) & (rank < limit))
    return Federation(data.take(rows), replace(table, client=table.client[rows], split=table.split[rows]))


def main() -> None:
    """Print the workloads."""
    from benchmarks.engine import make_train
    from benchmarks.options import add_data_options, chosen_sources
    from benchmarks.work import count_work

    parser = argparse.ArgumentParser(description=__doc__)
    add_data_options(parser, default=list(BUILDERS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.workloads:
        workload = build(name, chosen_sources(arguments), arguments.scale)
        work = count_work(workload, make_train(workload))
        print(f"{name}  {workload.title}{' (RANDOM DATA)' if workload.is_random else ''}\n    {work.described()}")


if __name__ == "__main__":
    from benchmarks.options import run_command

    run_command(main)
