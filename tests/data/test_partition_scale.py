"""Many clients: no Python loop over them, and bounded memory; a million of them in the slow test."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.config import Splits
from fedcore.data import partitions, statistics
from fedcore.data.dataset import Dataset
from fedcore.data.federation import Federation
from tasks.partition import write_clients
from tasks.partition_picture import draw
from tests.data import partition_settings as make
from tests.data.conftest import toy_dataset

PER_CLIENT = 10
SCHEMES: dict[str, Callable[[int], Splits]] = {
    "iid": lambda n: make.iid(clients=n),
    "quantity_power_law": lambda n: make.power_law(clients=n, min_examples=2),
    "quantity_log_normal": lambda n: make.log_normal(clients=n, min_examples=2),
    "dirichlet": lambda n: make.dirichlet(clients=n, alpha=1e6, min_examples=1),
    "shards": lambda n: make.shards(clients=n),
    "k_classes": lambda n: make.k_classes(clients=n),
    "lg_shards": lambda n: make.lg_shards(clients=n),
    "pathological": lambda n: make.pathological(clients=n, min_examples=1),
    "dominant": lambda n: make.dominant(clients=n),
    "natural": lambda _: make.natural(),
}


def examples(clients: int, own: bool) -> Dataset:
    """Return 10 rows for each of so many clients, of ten classes in turn."""
    rows = np.arange(clients * PER_CLIENT)
    mine = (rows // PER_CLIENT).astype(np.int32) if own else None
    labels = np.random.Generator(np.random.PCG64(0)).permutation(rows % 10)
    return toy_dataset(labels, 10, mine)


def use(config: Splits, data: Dataset, folder: Path) -> Federation:
    """Do what the stage and a training do with a partition."""
    table = partitions.make(config, data)
    counts = statistics.label_counts(table, data.labels, data.num_classes)
    statistics.summary(table, counts)
    write_clients(table, counts, folder / "p.csv")
    partitions.save(table, folder / "p.npz")
    federation = Federation(data, partitions.load(folder / "p.npz"))
    assert federation.class_counts.sum() == federation.num_examples.sum()
    assert len(federation.rows(federation.num_clients // 2, "train"))
    return federation


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, `work` calls."""
    count = 0

    def tally(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ten_times_the_clients_take_no_more_calls(scheme: str, tmp_path: Path) -> None:
    counts = []
    for clients in (2_000, 2_000, 20_000):  # the first also imports
        data, config = examples(clients, scheme == "natural"), SCHEMES[scheme](clients)
        counts.append(calls_of(lambda data=data, config=config: use(config, data, tmp_path)))
    assert counts[2] < 1.1 * counts[1]


def test_only_dir_client_goes_through_its_clients_one_by_one() -> None:
    """Each draws from what the ones before left: a bounded number of calls a client, not a growing one."""
    small, large = (
        calls_of(lambda n=n: partitions.make(make.dir_client(clients=n), examples(n, own=False))) for n in (300, 3_000)
    )
    assert large < 11 * small
    assert large < 60 * 3_000


@pytest.mark.parametrize("scheme", SCHEMES)
def test_memory_is_a_few_numbers_a_row(scheme: str, tmp_path: Path) -> None:
    """100 bytes for each of 10 million rows are 0.9 GiB; a Python object per row would take as much alone."""
    data, config = examples(20_000, scheme == "natural"), SCHEMES[scheme](20_000)
    partitions.make(config, data)  # imports
    tracemalloc.start()
    try:
        use(config, data, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * len(data)


def test_the_picture_of_many_clients_is_a_sample(tmp_path: Path) -> None:
    data = examples(20_000, own=True)
    table = partitions.make(make.natural(), data)
    counts = statistics.label_counts(table, data.labels, 10)
    draw(data, table, counts, tmp_path / "many.png")
    assert (tmp_path / "many.png").stat().st_size < 200_000


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["natural", "iid"])
def test_a_million_clients_take_less_than_a_minute_and_four_gigabytes(scheme: str, tmp_path: Path) -> None:
    data, config = examples(1_000_000, scheme == "natural"), SCHEMES[scheme](1_000_000)
    tracemalloc.start()
    began = time.process_time()
    try:
        federation = use(config, data, tmp_path)
        draw(data, partitions.load(tmp_path / "p.npz"), federation.class_counts, tmp_path / "p.png")
        seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert federation.num_clients == 1_000_000
    assert (federation.num_examples == 7).all()
    assert seconds < 60
    assert peak < 2 * 2**30
