"""What every partition scheme must keep, and the table it makes."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.config import ConfigError, Partition, Splits, valid_schemes, validate
from fedcore.data import partitions, statistics
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import TEST, TRAIN, UNUSED, VALIDATION, PartitionTable
from tests.data.conftest import toy_dataset
from tests.data.partition_settings import (
    assert_same,
    dir_client,
    dirichlet,
    dominant,
    iid,
    k_classes,
    lg_shards,
    natural,
    pathological,
    shards,
)

K = 5
# One draw of settings per scheme that these data can meet: five classes of at least 12 rows, at most 6 clients.
SETTINGS: dict[str, Callable[..., st.SearchStrategy[Splits]]] = {
    "iid": lambda **common: st.builds(iid, clients=st.integers(1, 6), **common),
    "dirichlet": lambda **common: st.builds(
        dirichlet,
        clients=st.integers(1, 6),
        alpha=st.sampled_from([0.05, 0.3, 2.0, 100.0]),
        min_examples=st.just(2),
        max_redraws=st.just(10_000),
        **common,
    ),
    "dir_client": lambda **common: st.builds(
        dir_client,
        clients=st.integers(1, 6),
        alpha=st.sampled_from([1e-9, 0.1, 1.0, 100.0]),
        prior=st.sampled_from(["remaining", "ones"]),
        **common,
    ),
    "shards": lambda **common: st.builds(shards, clients=st.integers(1, 6), shards=st.integers(1, 5), **common),
    "k_classes": lambda **common: st.builds(k_classes, clients=st.integers(1, 6), classes=st.integers(1, K), **common),
    "lg_shards": lambda **common: st.builds(lg_shards, clients=st.just(K), shards=st.integers(1, 12), **common),
    "pathological": lambda **common: st.builds(
        pathological, clients=st.integers(1, 6), classes=st.integers(1, K), min_examples=st.just(K), **common
    ),
    "dominant": lambda **common: st.builds(
        dominant, clients=st.integers(K, 6), share=st.sampled_from([0.3, 0.8, 0.99, 1.0]), **common
    ),
    "natural": lambda **common: st.builds(natural, **common),
}


@st.composite
def cases(draw: st.DrawFn, schemes: tuple[str, ...] = tuple(SETTINGS)) -> tuple[Splits, Dataset]:
    sizes = draw(st.lists(st.integers(12, 30), min_size=K, max_size=K))
    labels = np.random.Generator(np.random.PCG64(draw(st.integers(0, 9)))).permutation(np.repeat(np.arange(K), sizes))
    own = (np.arange(len(labels)) * 7 % 6).astype(np.int32)
    common = {
        "test": st.sampled_from([0.1, 0.25, 0.9]),
        "validation": st.sampled_from([0.0, 0.1, 0.9]),
        "seed": st.integers(0, 5),
    }
    config = draw(SETTINGS[draw(st.sampled_from(schemes))](**common))
    return config, toy_dataset(labels, K, own)


def counts_of(config: Splits, data: Dataset) -> np.ndarray:
    return statistics.label_counts(partitions.make(config, data), data.labels, data.num_classes)


def test_every_scheme_is_tried() -> None:
    assert set(SETTINGS) | {"file"} == set(valid_schemes(own_clients=False).split(", ")) | {"natural"}


@settings(deadline=None, max_examples=200, derandomize=True)
@given(case=cases(), unseen=st.integers(0, 5))
def test_every_row_has_at_most_one_client_and_one_split(case: tuple[Splits, Dataset], unseen: int) -> None:
    config, data = case
    clients = getattr(config, "clients", 6)
    config = config.model_copy(update={"unseen_clients": min(unseen, clients - 1)})
    table = partitions.make(config, data)
    assert len(table.client) == len(table.split) == len(data)
    assert (table.client.dtype, table.split.dtype, table.rotation.dtype) == (np.int32, np.int8, np.float32)
    used = table.client != UNUSED
    assert set(table.client[used]) == set(range(clients))  # no client is empty
    assert set(table.split[used]) <= {TRAIN, TEST, VALIDATION}
    assert (table.split[~used] == UNUSED).all()
    assert set(table.client[table.split == TRAIN]) == set(range(clients))
    scheme = json.loads(table.scheme)["scheme"]
    assert used.all() or scheme in ("dir_client", "k_classes", "pathological")
    assert (table.num_clients, table.num_unseen) == (clients - config.unseen_clients, config.unseen_clients)
    assert not table.rotation.any()
    assert_same(table, partitions.make(config, data))
    assert table.content_hash == partitions.make(config, data).content_hash


@settings(deadline=None, max_examples=200, derandomize=True)
@given(case=cases())
def test_the_bounds_of_the_schemes(case: tuple[Splits, Dataset]) -> None:
    """What each scheme promises about the table of clients and classes, [clients, K]."""
    config, data = case
    counts = counts_of(config, data)
    sizes, classes, n = counts.sum(axis=1), np.count_nonzero(counts, axis=1), len(data)
    recorded = config.model_dump()
    match recorded["scheme"]:
        case "iid":
            assert sizes.max() - sizes.min() <= 1
        case "dirichlet":
            assert sizes.min() >= 2
        case "dir_client":
            assert (sizes == n // config.clients).all()
        case "shards":
            # A set is no larger than a class here or, with few sets, may cover several classes.
            per_set = -(-n // (config.clients * config.shards))
            across = 1 + -(-(per_set - 1) // 12)
            assert classes.max() <= min(K, across * config.shards)
            assert sizes.max() - sizes.min() <= config.shards
        case "k_classes":
            assert (classes == config.classes).all()
            assert all(counts[i, i % K] > 0 for i in range(config.clients))
            assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T if column.any())
        case "lg_shards":
            assert classes.max() <= config.shards
        case "pathological":
            assert 1 <= classes.max() <= config.classes
            assert classes.min() >= 1
            if K % config.classes == 0:
                assert (classes == config.classes).all()
        case "dominant":
            for label, total in enumerate(counts.sum(axis=0)):
                assert abs(counts[label::K, label].sum() - config.share * total) <= 0.5
        case "natural":
            np.testing.assert_array_equal(counts.sum(axis=1), np.bincount(data.clients))


EVERY = [
    iid(),
    dirichlet(),
    dir_client(),
    shards(),
    k_classes(),
    lg_shards(clients=9, shards=2),
    pathological(),
    dominant(),
]


@pytest.mark.parametrize("config", EVERY, ids=lambda config: config.scheme)
def test_another_seed_deals_other_rows(skewed: Dataset, config: Partition) -> None:
    other = partitions.make(config.model_copy(update={"seed": 1}), skewed)
    table = partitions.make(config, skewed)
    assert (other.client != table.client).mean() > 0.1
    assert other.content_hash != table.content_hash


def test_the_scheme_is_recorded(skewed: Dataset) -> None:
    table = partitions.make(dirichlet(alpha=0.7, seed=3), skewed)
    recorded = json.loads(table.scheme)
    assert (recorded["scheme"], recorded["alpha"], recorded["seed"], recorded["clients"]) == ("dirichlet", 0.7, 3, 8)


@pytest.mark.parametrize("config", [iid(clients=3), dirichlet(clients=3), shards(clients=3)], ids=lambda c: c.scheme)
def test_one_client_must_be_left_to_train(skewed: Dataset, config: Partition) -> None:
    table = partitions.make(config.model_copy(update={"unseen_clients": 2}), skewed)
    assert (table.num_clients, table.num_unseen, table.num_total) == (1, 2, 3)
    with pytest.raises(ConfigError, match=r"^partition\.unseen_clients: 3 of 3 clients unseen.*use at most 2$"):
        partitions.make(config.model_copy(update={"unseen_clients": 3}), skewed)


# --- params.yaml -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "partition", "message"),
    [
        ("synthetic", {"scheme": "dirichlet"}, "'dirichlet' would mix the clients .* Valid: file, iid, natural$"),
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
    whole, part = (partitions.make(dirichlet(keep=keep, min_examples=1), skewed) for keep in (1.0, 0.25))
    sizes = np.bincount(skewed.labels)
    assert (np.bincount(skewed.labels[whole.client >= 0]) == sizes).all()
    kept = part.client >= 0
    assert np.bincount(skewed.labels[kept]).tolist() == [max(round(0.25 * size), 1) for size in sizes.tolist()]
    small = partitions.make(dirichlet(min_examples=1), skewed.take(np.flatnonzero(kept)))
    assert (part.client[kept] == small.client).all()
    assert (part.split[~kept] == -1).all()
