"""The settings of partitions, and the table they make."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedcore.config import ConfigError, Partition, validate
from fedcore.data import partitions
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import TRAIN, PartitionTable
from tests.data import partition_settings as make

EVERY = [
    make.iid(),
    make.power_law(),
    make.log_normal(),
    make.dirichlet(),
    make.dir_client(),
    make.shards(),
    make.k_classes(),
    make.lg_shards(clients=9, shards=2),
    make.pathological(),
    make.dominant(),
]


@pytest.mark.parametrize("config", EVERY, ids=lambda config: config.scheme)
def test_another_seed_deals_other_rows(skewed: Dataset, config: Partition) -> None:
    other = partitions.make(config.model_copy(update={"seed": 1}), skewed)
    table = partitions.make(config, skewed)
    assert (other.client != table.client).mean() > 0.1
    assert other.content_hash != table.content_hash


def test_the_scheme_is_recorded(skewed: Dataset) -> None:
    table = partitions.make(make.dirichlet(alpha=0.7, seed=3), skewed)
    recorded = json.loads(table.scheme)
    assert (recorded["scheme"], recorded["alpha"], recorded["seed"], recorded["clients"]) == ("dirichlet", 0.7, 3, 8)


@pytest.mark.parametrize(
    "config", [make.iid(clients=3), make.dirichlet(clients=3), make.shards(clients=3)], ids=lambda c: c.scheme
)
def test_one_client_must_be_left_to_train(skewed: Dataset, config: Partition) -> None:
    table = partitions.make(config.model_copy(update={"unseen_clients": 2}), skewed)
    assert (table.num_clients, table.num_unseen, table.num_total) == (1, 2, 3)
    with pytest.raises(ConfigError, match=r"^partition\.unseen_clients: 3 of 3 clients unseen.*use at most 2$"):
        partitions.make(config.model_copy(update={"unseen_clients": 3}), skewed)


# --- params.yaml -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "partition", "message"),
    [
        ("synthetic", {"scheme": "dirichlet"}, "'dirichlet' would mix the clients .* Valid: .*natural"),
        ("synthetic", {"scheme": "lg_shards"}, "'lg_shards' would mix the clients of 'synthetic'"),
        ("synthetic", {"scheme": "dir_client"}, "'dir_client' would mix the clients of 'synthetic'"),
        ("digits", {"scheme": "natural"}, "'digits' has none. Valid: dir_client, dirichlet, dominant, file, iid, k_cl"),
        ("digits", {"scheme": "shard"}, "'shard' does not exist; did you mean 'shards'?"),
        ("digits", {"scheme": "shards", "shards": 0}, r"partition\.shards: input should be greater than or equal to 1"),
        ("digits", {"scheme": "dominant", "share": 1.5}, r"partition\.share: input should be less than or equal to 1"),
        (
            "digits",
            {"scheme": "dir_client", "prior": "one"},
            r"partition\.prior: 'one' is not valid; did you mean 'ones",
        ),
        ("digits", {"scheme": "dir_client", "min_examples": 3}, r"partition\.min_examples: unknown key"),
        (
            "synthetic",
            {"scheme": "natural", "rotation": 15.0},
            "rotation turns images; 'synthetic' has feature vectors",
        ),
        (
            "digits",
            {"scheme": "iid", "rotation": 400},
            r"partition\.rotation: input should be less than or equal to 360",
        ),
        (
            "digits",
            {"scheme": "iid", "unseen_rotation": 90.0},
            "unseen_rotation turns .* set unseen_clients to at least 1",
        ),
    ],
)
def test_wrong_settings_are_refused_by_name(dataset: str, partition: dict[str, object], message: str) -> None:
    values = {
        "experiment": "trial",
        "dataset": {"name": dataset},
        "partition": partition,
        "model": {"name": "mlp"},
        "train": {"rounds": 1},
        "methods": {"fedavg": {}},
        "compare": {"seeds": [0]},
    }
    with pytest.raises(ConfigError, match=message) as caught:
        validate(values)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)
    validate({**values, "dataset": {"name": "digits"}, "partition": {"scheme": "iid"}})


# --- the table -------------------------------------------------------------------------------------------------------


def test_a_table_checks_itself() -> None:
    with pytest.raises(ValueError, match=r"client 2 in row 1; valid: -1 \(unused\) to 1"):
        PartitionTable(np.array([0, 2]), np.array([0, 0]), 1, 1, "{}")
    with pytest.raises(ValueError, match="split -1 in row 0"):
        PartitionTable(np.array([0, 0]), np.array([-1, 0]), 1, 0, "{}")
    with pytest.raises(ValueError, match=r"must be equal \[n\]"):
        PartitionTable(np.array([0, 0]), np.array([0]), 1, 0, "{}")
    with pytest.raises(ValueError, match="num_clients 0"):
        PartitionTable(np.array([0]), np.array([0]), 0, 1, "{}")
    with pytest.raises(ValueError, match=r"one number of degrees per client \(2\), got float32 \[3\]"):
        PartitionTable(np.array([0, 1]), np.array([0, 0]), 1, 1, "{}", np.zeros(3))
    with pytest.raises(ValueError, match="rotation nan of client 1 is no finite number"):
        PartitionTable(np.array([0, 1]), np.array([0, 0]), 1, 1, "{}", np.array([0, np.nan]))
    table = PartitionTable(np.array([0, -1]), np.array([TRAIN, -1]), 1, 0, "{}")
    for array in (table.client, table.rotation):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_kept_share_is_the_same_of_every_class_and_dealt_as_if_it_were_all(skewed: Dataset) -> None:
    whole, part = (partitions.make(make.dirichlet(keep=keep, min_examples=1), skewed) for keep in (1.0, 0.25))
    sizes = np.bincount(skewed.labels)
    assert (np.bincount(skewed.labels[whole.client >= 0]) == sizes).all()
    kept = part.client >= 0
    assert np.bincount(skewed.labels[kept]).tolist() == [max(round(0.25 * size), 1) for size in sizes.tolist()]
    small = partitions.make(make.dirichlet(min_examples=1), skewed.take(np.flatnonzero(kept)))
    assert (part.client[kept] == small.client).all()
    assert (part.split[~kept] == -1).all()
