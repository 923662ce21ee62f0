"""What every partition scheme must keep, on drawn settings and data: as many draws for each scheme."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.config import ConfigError, Splits, valid_schemes
from fedcore.data import partitions, statistics
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import TEST, TRAIN, UNUSED, VALIDATION, PartitionTable
from tests.data import partition_settings as make
from tests.data.conftest import toy_dataset

K = 5
OWN = 6  # clients of the data set's own
FLOORS = st.integers(1, 10)
# One draw of settings per scheme that these data can meet: five classes of at least 12 rows, at most 6 clients.
SETTINGS: dict[str, Callable[..., st.SearchStrategy[Splits]]] = {
    "iid": lambda **common: st.builds(make.iid, clients=st.integers(1, 6), **common),
    "quantity_power_law": lambda **common: st.builds(
        make.power_law,
        clients=st.integers(1, 6),
        exponent=st.sampled_from([0.0, 0.5, 1.0, 3.0, 20.0]),
        min_examples=FLOORS,
        **common,
    ),
    "quantity_log_normal": lambda **common: st.builds(
        make.log_normal,
        clients=st.integers(1, 6),
        sigma=st.sampled_from([0.0, 0.3, 1.0, 4.0, 20.0]),
        min_examples=FLOORS,
        **common,
    ),
    "dirichlet": lambda **common: st.builds(
        make.dirichlet,
        clients=st.integers(1, 6),
        alpha=st.sampled_from([0.05, 0.3, 2.0, 100.0]),
        min_examples=st.integers(1, 3),
        max_redraws=st.just(10_000),
        **common,
    ),
    "dir_client": lambda **common: st.builds(
        make.dir_client,
        clients=st.integers(1, 6),
        alpha=st.sampled_from([1e-9, 0.1, 1.0, 100.0]),
        prior=st.sampled_from(["remaining", "ones"]),
        **common,
    ),
    "shards": lambda **common: st.builds(make.shards, clients=st.integers(1, 6), shards=st.integers(1, 5), **common),
    "k_classes": lambda **common: st.builds(
        make.k_classes, clients=st.integers(1, 6), classes=st.integers(1, K), **common
    ),
    "lg_shards": lambda **common: st.builds(make.lg_shards, clients=st.just(K), shards=st.integers(1, 12), **common),
    "pathological": lambda **common: st.builds(
        make.pathological, clients=st.integers(1, 6), classes=st.integers(1, K), min_examples=st.just(K), **common
    ),
    "dominant": lambda **common: st.builds(
        make.dominant, clients=st.integers(K, 6), share=st.sampled_from([0.3, 0.8, 0.99, 1.0]), **common
    ),
    "natural": lambda **common: st.builds(make.natural, min_examples=FLOORS, **common),
}
# Schemes that may leave rows to nobody.
LEAVES_SOME = ("dir_client", "k_classes", "pathological")

each_scheme = pytest.mark.parametrize("scheme", SETTINGS)
drawn = settings(deadline=None, max_examples=40, derandomize=True)


def draw_case(data: st.DataObject, scheme: str) -> tuple[Splits, Dataset]:
    """Return settings of a scheme, and images of five classes for it; with clients of their own for `natural`."""
    sizes = data.draw(st.lists(st.integers(12, 30), min_size=K, max_size=K), "class sizes")
    order = np.random.Generator(np.random.PCG64(data.draw(st.integers(0, 9), "order")))
    labels = order.permutation(np.repeat(np.arange(K), sizes))
    own = (np.arange(len(labels)) * 7 % OWN).astype(np.int32) if scheme == "natural" else None
    config = data.draw(
        SETTINGS[scheme](
            test=st.sampled_from([0.1, 0.25, 0.9]),
            validation=st.sampled_from([0.0, 0.1, 0.9]),
            seed=st.integers(0, 5),
        ),
        "settings",
    )
    return config, toy_dataset(labels, K, own)


def draw_table(data: st.DataObject, scheme: str) -> tuple[Splits, Dataset, PartitionTable]:
    config, dataset = draw_case(data, scheme)
    return config, dataset, partitions.make(config, dataset)


def counts_of(table: PartitionTable, dataset: Dataset) -> np.ndarray:
    return statistics.label_counts(table, dataset.labels, dataset.num_classes)


def test_every_scheme_is_tried() -> None:
    # `stable` promises other things: tests/data/test_stable.py.
    assert set(SETTINGS) | {"file", "stable"} == set(valid_schemes(own_clients=False).split(", ")) | {"natural"}


@each_scheme
@drawn
@given(data=st.data(), unseen=st.integers(0, 5))
def test_every_row_has_one_client_and_one_split_every_time(scheme: str, data: st.DataObject, unseen: int) -> None:
    config, dataset = draw_case(data, scheme)
    clients = getattr(config, "clients", OWN)
    config = config.model_copy(update={"unseen_clients": min(unseen, clients - 1)})
    table = partitions.make(config, dataset)
    assert len(table.client) == len(table.split) == len(dataset)
    assert (table.client.dtype, table.split.dtype, table.rotation.dtype) == (np.int32, np.int8, np.float32)
    used = table.client != UNUSED
    assert set(table.client[used]) == set(range(clients))  # no client is empty
    assert set(table.split[used]) <= {TRAIN, TEST, VALIDATION}
    assert (table.split[~used] == UNUSED).all()
    assert set(table.client[table.split == TRAIN]) == set(range(clients))
    assert used.all() or scheme in LEAVES_SOME
    assert json.loads(table.scheme)["scheme"] == scheme
    assert (table.num_clients, table.num_unseen) == (clients - config.unseen_clients, config.unseen_clients)
    assert not table.rotation.any()
    assert not table.noise.any()
    again = partitions.make(config, dataset)
    make.assert_same(table, again)
    assert table.content_hash == again.content_hash


@each_scheme
@drawn
@given(data=st.data())
def test_another_seed_makes_another_partition(scheme: str, data: st.DataObject) -> None:
    config, dataset, table = draw_table(data, scheme)
    other = partitions.make(config.model_copy(update={"seed": config.seed + 1}), dataset)
    # A single client, and a set's own clients, are split alone.
    assert ((table.client != other.client) | (table.split != other.split)).any()
    assert table.content_hash != other.content_hash


@each_scheme
@drawn
@given(data=st.data())
def test_a_clients_splits_have_its_labels_in_proportion(scheme: str, data: st.DataObject) -> None:
    """Of a client's m rows of which t are tested, a label with g rows has the floor or the ceiling of g * t / m."""
    _, dataset, table = draw_table(data, scheme)
    counts = counts_of(table, dataset)
    for split, of in ((TEST, counts), (VALIDATION, counts - split_counts(table, dataset, TEST))):
        cut = split_counts(table, dataset, split)
        share = cut.sum(axis=1, keepdims=True) / of.sum(axis=1, keepdims=True)
        assert (np.abs(cut - of * share) < 1).all()


def split_counts(table: PartitionTable, dataset: Dataset, split: int) -> np.ndarray:
    """Return examples of a split by client and class."""
    counts = np.zeros((table.num_total, K), np.int64)
    np.add.at(counts, (table.client[table.split == split], dataset.labels[table.split == split]), 1)
    return counts


@each_scheme
@drawn
@given(data=st.data())
def test_the_bounds_of_the_schemes(scheme: str, data: st.DataObject) -> None:
    """What each scheme promises about the table of clients and classes, [clients, K], floors among it."""
    config, dataset, table = draw_table(data, scheme)
    counts = counts_of(table, dataset)
    sizes, classes, n = counts.sum(axis=1), np.count_nonzero(counts, axis=1), len(dataset)
    assert sizes.min() >= (0 if scheme == "pathological" else getattr(config, "min_examples", 1))
    match scheme:
        case "iid":
            assert sizes.max() - sizes.min() <= 1
        case "quantity_power_law" if config.exponent == 0:
            assert sizes.max() - sizes.min() <= 1
        case "quantity_log_normal" if config.sigma == 0:
            assert sizes.max() - sizes.min() <= 1
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


@drawn
@given(data=st.data())
def test_a_sets_own_clients_are_never_mixed(data: st.DataObject) -> None:
    _, dataset, table = draw_table(data, "natural")
    assert dataset.clients is not None
    np.testing.assert_array_equal(table.client, dataset.clients)  # none is below the floor, so none is renumbered
    scheme = data.draw(st.sampled_from([name for name in SETTINGS if name not in ("iid", "natural")]))
    other = data.draw(SETTINGS[scheme]())
    with pytest.raises(ConfigError, match=rf"^partition\.scheme: '{scheme}' would mix the clients of 'toy'\. Valid: f"):
        partitions.make(other, dataset)


@each_scheme
@drawn
@given(data=st.data(), keep=st.sampled_from([0.2, 0.5, 0.95]))
def test_a_kept_share_is_the_same_of_every_class(scheme: str, data: st.DataObject, keep: float) -> None:
    config, dataset = draw_case(data, scheme)
    config = config.model_copy(update={"keep": keep})
    try:
        table = partitions.make(config, dataset)
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:  # too few are left for the scheme
        assert refusal.startswith("partition.")
        assert "\n" not in refusal
        return
    counts = counts_of(table, dataset).sum(axis=0)
    kept = np.maximum(np.rint(keep * np.bincount(dataset.labels)), 1)
    if scheme in (*LEAVES_SOME, "natural"):
        assert (counts <= kept).all()
    else:
        np.testing.assert_array_equal(counts, kept)


@each_scheme
@settings(deadline=None, max_examples=20, derandomize=True)
@given(data=st.data())
def test_a_saved_partition_is_read_as_it_was(scheme: str, data: st.DataObject) -> None:
    _, dataset, table = draw_table(data, scheme)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.npz"
        partitions.save(table, path)
        make.assert_same(partitions.load(path), table)
        # A file without validation rows gets new ones unless it is told not to.
        again = partitions.make(make.from_file(path, validation=0.0), dataset)
    make.assert_same(again, table)


@pytest.mark.parametrize(
    "config",
    [
        make.power_law(clients=500, exponent=20.0),
        make.log_normal(clients=500, sigma=20.0),
        make.dir_client(clients=500, alpha=0.05),
        make.dir_client(clients=500, alpha=0.05, prior="ones"),
        make.shards(clients=500),
        make.k_classes(clients=500),
        make.lg_shards(clients=500),
        make.pathological(clients=500, min_examples=10),
        make.dominant(clients=500, share=0.99),
        make.iid(clients=500),
    ],
    ids=lambda config: config.scheme,
)
def test_five_hundred_clients_finish(config: Splits) -> None:
    """Dirichlet at 0.05 is refused after its redraws: `test_schemes`."""
    dataset = toy_dataset(np.repeat(np.arange(10), 6000))
    start = time.perf_counter()
    table = partitions.make(config, dataset)
    assert np.bincount(table.client[table.client >= 0], minlength=500).min() >= 1
    assert time.perf_counter() - start < 10
