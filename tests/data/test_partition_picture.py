"""The picture of a partition, for every scheme and for clients of very different sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedcore.config import Splits
from fedcore.data import partitions, statistics
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import PartitionTable
from tasks.partition_picture import draw, title
from tests.data import partition_settings as make
from tests.data.conftest import toy_dataset


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (make.power_law(exponent=1.5), "quantity_power_law, exponent 1.5, seed 0 ("),
        (make.log_normal(sigma=0.5), "quantity_log_normal, sigma 0.5, seed 0 ("),
        (make.dir_client(alpha=0.1), "dir_client, alpha 0.1, seed 0 ("),
        (make.shards(shards=3), "shards, shards 3, seed 0 ("),
        (make.k_classes(classes=2, seed=4), "k_classes, classes 2, seed 4 ("),
        (make.lg_shards(shards=2), "lg_shards, shards 2, seed 0 ("),
        (make.pathological(classes=2), "pathological, classes 2, seed 0 ("),
        (make.dominant(share=0.99), "dominant, share 0.99, seed 0 ("),
    ],
    ids=lambda value: value.scheme if isinstance(value, Splits) else "",
)
def test_every_scheme_has_its_picture(tmp_path: Path, skewed: Dataset, config: Splits, expected: str) -> None:
    table = partitions.make(config, skewed)
    assert title(table) == expected + table.content_hash[:12] + ")"
    counts = statistics.label_counts(table, skewed.labels, 6)
    for name in ("a.png", "b.png"):
        draw(skewed, table, counts, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_the_title_tells_the_rotation(skewed: Dataset) -> None:
    scheme = (
        '{"scheme": "iid", "seed": 0, "rotation": 15.0, "unseen_rotation": 90.0, "unseen_clients": 1, "noise": 0.1}'
    )
    table = PartitionTable(np.zeros(2), np.zeros(2), 1, 1, scheme, np.array([0.0, 90.0]))
    assert title(table).startswith("iid, rotation 15.0, unseen_rotation 90.0, noise 0.1, seed 0 (")


def test_one_large_client_among_single_rows(tmp_path: Path) -> None:
    data = toy_dataset(np.arange(5000) % 3)
    client = np.concatenate([np.zeros(4970, int), np.arange(30)])
    table = PartitionTable(client, np.zeros(5000), 30, 0, '{"scheme": "file", "path": "own.npz", "seed": 0}')
    draw(data, table, statistics.label_counts(table, data.labels, 3), tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 5000
