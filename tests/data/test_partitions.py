from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.config import ConfigError, DirichletPartition, FilePartition, IidPartition, NaturalPartition, Partition
from fedcore.data import partitions, schemes, splits
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import TEST, TRAIN, UNUSED, VALIDATION, PartitionTable
from tests.data.conftest import toy_dataset


def iid(**changes: object) -> IidPartition:
    return IidPartition(scheme="iid", **{"clients": 7, **changes})


def dirichlet(**changes: object) -> DirichletPartition:
    return DirichletPartition(scheme="dirichlet", **{"alpha": 0.5, "clients": 8, "min_examples": 5, **changes})


def natural(**changes: object) -> NaturalPartition:
    return NaturalPartition(scheme="natural", **changes)


def from_file(path: Path, **changes: object) -> FilePartition:
    return FilePartition(scheme="file", path=str(path), **changes)


def assert_same(left: PartitionTable, right: PartitionTable) -> None:
    np.testing.assert_array_equal(left.client, right.client)
    np.testing.assert_array_equal(left.split, right.split)
    assert (left.num_clients, left.num_unseen) == (right.num_clients, right.num_unseen)


# --- every scheme ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    labels=st.lists(st.integers(0, 4), min_size=40, max_size=120),
    clients=st.integers(1, 6),
    alpha=st.sampled_from([0.05, 0.3, 2.0, 100.0]),
    scheme=st.sampled_from(["iid", "dirichlet", "natural"]),
    test=st.sampled_from([0.1, 0.25, 0.9]),
    validation=st.sampled_from([0.0, 0.1, 0.9]),
    unseen=st.integers(0, 5),
    seed=st.integers(0, 5),
)
def test_every_row_has_one_client_and_one_split(
    labels: list[int],
    clients: int,
    alpha: float,
    scheme: str,
    test: float,
    validation: float,
    unseen: int,
    seed: int,
) -> None:
    own = (np.arange(len(labels)) * 7 % clients).astype(np.int32)
    data = toy_dataset(np.array(labels), num_classes=5, clients=own)
    common = {"test": test, "validation": validation, "unseen_clients": min(unseen, clients - 1), "seed": seed}
    config: Partition = {
        "iid": iid(clients=clients, **common),
        "dirichlet": dirichlet(clients=clients, alpha=alpha, min_examples=2, max_redraws=10_000, **common),
        "natural": natural(**common),
    }[scheme]
    table = partitions.make(config, data)
    assert len(table.client) == len(table.split) == len(labels)
    assert (table.client.dtype, table.split.dtype) == (np.int32, np.int8)
    assert set(table.client) == set(range(clients))  # all rows are used, no client is empty
    assert set(table.split) <= {TRAIN, TEST, VALIDATION}
    assert (table.num_clients, table.num_unseen) == (clients - common["unseen_clients"], common["unseen_clients"])
    sizes = np.bincount(table.client)
    assert sizes.min() >= 2
    assert scheme != "iid" or sizes.max() - sizes.min() <= 1
    assert scheme != "natural" or (table.client == own).all()
    assert_same(table, partitions.make(config, data))
    assert table.content_hash == partitions.make(config, data).content_hash


@pytest.mark.parametrize("config", [iid(), dirichlet()], ids=["iid", "dirichlet"])
def test_another_seed_deals_other_rows(skewed: Dataset, config: IidPartition | DirichletPartition) -> None:
    other = partitions.make(config.model_copy(update={"seed": 1}), skewed)
    table = partitions.make(config, skewed)
    assert (other.client != table.client).mean() > 0.3
    assert other.content_hash != table.content_hash


def test_the_scheme_is_recorded(skewed: Dataset) -> None:
    table = partitions.make(dirichlet(alpha=0.7, seed=3), skewed)
    recorded = json.loads(table.scheme)
    assert (recorded["scheme"], recorded["alpha"], recorded["seed"], recorded["clients"]) == ("dirichlet", 0.7, 3, 8)


@pytest.mark.parametrize("config", [iid(clients=3), dirichlet(clients=3)], ids=["iid", "dirichlet"])
def test_one_client_must_be_left_to_train(skewed: Dataset, config: IidPartition | DirichletPartition) -> None:
    table = partitions.make(config.model_copy(update={"unseen_clients": 2}), skewed)
    assert (table.num_clients, table.num_unseen, table.num_total) == (1, 2, 3)
    with pytest.raises(ConfigError, match=r"^partition\.unseen_clients: 3 of 3 clients unseen.*use at most 2$"):
        partitions.make(config.model_copy(update={"unseen_clients": 3}), skewed)


def test_more_clients_than_examples_is_refused(skewed: Dataset) -> None:
    assert np.bincount(partitions.make(iid(clients=1200), skewed).client).tolist() == [1] * 1200
    with pytest.raises(ConfigError, match=r"^partition\.clients: 1201 clients, but 'toy' has 1200 examples"):
        partitions.make(iid(clients=1201), skewed)


# --- dirichlet -------------------------------------------------------------------------------------------------------


def test_dirichlet_cuts_every_class_as_the_plain_loop_does(skewed: Dataset) -> None:
    """NIID-Bench's loop over Python lists, fed with the same shares."""
    from fedcore import seeds

    config = dirichlet(alpha=0.2, clients=5, min_examples=120)
    table = partitions.make(config, skewed)
    for redraw in range(100):
        draw = seeds.stream(config.seed, "partition/dirichlet", round=redraw)
        held: list[list[int]] = [[] for _ in range(5)]
        for label in range(6):
            rows = np.flatnonzero(skewed.labels == label)
            shares = draw.dirichlet(np.repeat(0.2, 5))
            shares = np.array([share * (len(mine) < 1200 / 5) for share, mine in zip(shares, held, strict=True)])
            shares = shares / shares.sum()
            cuts = (np.cumsum(shares) * len(rows)).astype(int)[:-1]
            held = [mine + part.tolist() for mine, part in zip(held, np.split(rows, cuts), strict=True)]
        if min(map(len, held)) >= 120:
            break
    assert redraw > 0, "the case should need a redraw"
    for client, mine in enumerate(held):
        expected = np.bincount(skewed.labels[mine], minlength=6)
        np.testing.assert_array_equal(np.bincount(skewed.labels[table.client == client], minlength=6), expected)


def test_dirichlet_mixes_the_rows_of_a_class(skewed: Dataset) -> None:
    table = partitions.make(dirichlet(alpha=100.0, clients=2), skewed)
    largest = table.client[np.flatnonzero(skewed.labels == 0)]
    assert 120 < np.count_nonzero(np.diff(largest)) < 280  # about half of 399 neighbours differ


def test_smaller_alpha_means_more_skew(skewed: Dataset) -> None:
    from fedcore.data import statistics

    skew = [
        statistics.label_distance(
            statistics.label_counts(partitions.make(dirichlet(alpha=alpha), skewed), skewed.labels, 6)
        ).mean()
        for alpha in (0.1, 1.0, 1000.0)
    ]
    assert skew[0] > skew[1] + 0.1
    assert skew[1] > skew[2] + 0.1
    assert skew[2] < 0.05


@pytest.mark.parametrize("floor", [1, 10, 60])
def test_dirichlet_keeps_the_floor(skewed: Dataset, floor: int) -> None:
    sizes = [
        np.bincount(partitions.make(dirichlet(alpha=0.2, min_examples=floor, seed=seed), skewed).client).min()
        for seed in range(10)
    ]
    assert min(sizes) >= floor


def test_a_floor_that_cannot_be_kept_is_refused_before_drawing(
    skewed: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemes, "_dirichlet_cuts", lambda *_: pytest.fail("drew"))
    with pytest.raises(
        ConfigError, match=r"^partition\.min_examples: 8 clients .* need 1208, 'toy' has 1200; use at most 150"
    ):
        partitions.make(dirichlet(min_examples=151), skewed)


def test_a_floor_that_no_draw_keeps_is_refused_with_what_was_reached(skewed: Dataset) -> None:
    with pytest.raises(ConfigError) as caught:
        partitions.make(dirichlet(alpha=0.05, min_examples=140, max_redraws=20), skewed)
    message = str(caught.value)
    assert message.startswith("partition.min_examples: none of 20 draws gave each of 8 clients 140 examples (closest: ")
    assert 0 <= int(message.split("closest: ")[1].split(")")[0]) < 140
    assert "alpha 0.05" in message
    assert "\n" not in message


def test_five_hundred_clients_at_alpha_0_05_take_bounded_time() -> None:
    data = toy_dataset(np.repeat(np.arange(10), 6000))
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=r"none of 1000 draws"):
        partitions.make(dirichlet(alpha=0.05, clients=500, min_examples=10, max_redraws=1000), data)
    assert time.perf_counter() - start < 10


def test_shares_that_all_fall_to_full_clients_are_redrawn(skewed: Dataset) -> None:
    """At alpha 1e-6 a class goes to one client; the next class may find that client full."""
    config = dirichlet(alpha=1e-6, clients=3, min_examples=1, max_redraws=5000)
    sizes = np.bincount(skewed.labels)
    assert any(schemes._dirichlet_cuts(config, sizes, redraw) is None for redraw in range(50))
    assert np.bincount(partitions.make(config, skewed).client).min() >= 1


# --- natural ---------------------------------------------------------------------------------------------------------


def test_natural_drops_small_clients_and_numbers_the_rest_without_gaps() -> None:
    own = np.array([3, 0, 3, 5, 0, 3, 5, 1], dtype=np.int32)
    table = partitions.make(natural(min_examples=2), toy_dataset(np.zeros(8), clients=own))
    assert table.client.tolist() == [1, 0, 1, 2, 0, 1, 2, UNUSED]
    assert table.split[7] == UNUSED
    assert table.num_clients == 3


def test_natural_needs_clients_of_its_own_and_one_large_enough() -> None:
    with pytest.raises(ConfigError, match=r"^partition\.scheme: 'natural' needs .* 'toy' has none"):
        partitions.make(natural(), toy_dataset(np.zeros(8)))
    own = np.array([0, 0, 1, 1, 1], dtype=np.int32)
    with pytest.raises(ConfigError, match=r"^partition\.min_examples: no client has 4 examples; the largest has 3"):
        partitions.make(natural(min_examples=4), toy_dataset(np.zeros(5), clients=own))


# --- the splits do not depend on how the clients came about ----------------------------------------------------------


def test_the_splits_do_not_depend_on_the_redraws(skewed: Dataset) -> None:
    """The same assignment, reached with and without redraws, is split the same way."""
    config = dirichlet(alpha=0.2, min_examples=90)
    first = schemes._dirichlet_cuts(config, np.bincount(skewed.labels), 0)
    assert first is not None
    assert np.diff(first).sum(axis=0).min() < 90, "the case should need a redraw"
    table = partitions.make(config, skewed)
    own = toy_dataset(skewed.labels, clients=table.client)
    assert_same(table, partitions.make(natural(min_examples=1), own))


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_saved_partition_comes_back_whole(tmp_path: Path, skewed: Dataset) -> None:
    table = partitions.make(dirichlet(unseen_clients=2), skewed)
    partitions.save(table, tmp_path / "new" / "p.npz")
    read = partitions.load(tmp_path / "new" / "p.npz")
    assert_same(table, read)
    assert (read.scheme, read.content_hash) == (table.scheme, table.content_hash)


def test_saving_twice_gives_the_same_bytes_and_no_pickle(tmp_path: Path, skewed: Dataset) -> None:
    table = partitions.make(dirichlet(), skewed)
    partitions.save(table, tmp_path / "a.npz")
    partitions.save(partitions.make(dirichlet(), skewed), tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert {name: archive[name].dtype.kind for name in archive.files} == {
            "client": "i",
            "split": "i",
            "num_clients": "i",
            "num_unseen": "i",
            "scheme": "U",
            "content_hash": "U",
        }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, skewed: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.npz"
    partitions.save(partitions.make(dirichlet(), skewed), path)
    before = path.read_bytes()

    def broken(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np.lib.format, "write_array", broken)
    with pytest.raises(OSError, match="disk full"):
        partitions.save(partitions.make(dirichlet(seed=1), skewed), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["p.npz"]


@pytest.mark.parametrize("field", ["client", "split", "num_clients", "scheme"])
def test_a_changed_partition_is_refused(tmp_path: Path, skewed: Dataset, field: str) -> None:
    path = tmp_path / "p.npz"
    partitions.save(partitions.make(dirichlet(unseen_clients=1), skewed), path)
    with np.load(path) as archive:
        arrays = dict(archive)
    if field in ("client", "split"):
        row = int(np.flatnonzero(arrays["split"] == 0)[0])
        arrays[field][row] = 1 - arrays[field][row] if field == "split" else (arrays[field][row] + 1) % 8
    else:
        arrays[field] = {"num_clients": arrays["num_clients"] + 1, "scheme": np.array('{"scheme": "iid"}')}[field]
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"p\.npz: was changed after it was written"):
        partitions.load(path)
    with pytest.raises(ValueError, match=r"p\.npz: was changed after it was written"):
        partitions.make(from_file(path), skewed)


def test_a_broken_file_is_named(tmp_path: Path, skewed: Dataset) -> None:
    path = tmp_path / "p.npz"
    with pytest.raises(ValueError, match=r"p\.npz: does not exist"):
        partitions.load(path)
    partitions.save(partitions.make(dirichlet(), skewed), path)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:200] + b"xxxx" + whole[204:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"p\.npz: not readable") as caught:
            partitions.load(path)
        assert "\n" not in str(caught.value)
    np.savez(path, client=np.array([0], dtype=object), split=np.zeros(1, int))
    with pytest.raises(ValueError, match=r"p\.npz: not readable as \.npz of plain arrays"):
        partitions.load(path)
    np.savez(path, client=np.zeros(3, int), split=np.zeros(3, int))
    with pytest.raises(ValueError, match=r"p\.npz: lacks num_clients, num_unseen, scheme, content_hash"):
        partitions.load(path)
    with (tmp_path / "one.npy").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"one\.npy: not readable"):
        partitions.load(tmp_path / "one.npy")


# --- the file scheme -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [iid(unseen_clients=2), dirichlet(unseen_clients=2)], ids=["iid", "dirichlet"])
def test_a_saved_partition_used_as_a_file_is_the_same_assignment(
    tmp_path: Path, skewed: Dataset, config: IidPartition | DirichletPartition
) -> None:
    table = partitions.make(config, skewed)
    partitions.save(table, tmp_path / "p.npz")
    again = partitions.make(from_file(tmp_path / "p.npz", unseen_clients=2, seed=9), skewed)
    assert_same(table, again)
    assert json.loads(again.scheme)["scheme"] == "file"


def write(path: Path, client: object, split: object, **more: object) -> Path:
    np.savez(path, client=np.asarray(client), split=np.asarray(split), **more)
    return path


def test_validation_is_cut_from_train_and_test_is_kept(tmp_path: Path) -> None:
    data = toy_dataset(np.tile([0, 0, 0, 1], 25))
    client = np.repeat([0, 1, -1], [60, 36, 4]).astype(np.int8)
    split = np.where(np.arange(100) % 3 == 2, 1, 0)
    split[96:] = -1  # what an unused row's split says does not matter
    table = partitions.make(from_file(write(tmp_path / "p.npz", client, split), validation=0.25), data)
    assert table.client.tolist() == client.tolist()
    np.testing.assert_array_equal(table.split == TEST, split == 1)
    assert [np.count_nonzero((table.client == c) & (table.split == VALIDATION)) for c in (0, 1)] == [10, 6]
    assert (table.split[96:] == UNUSED).all()
    for c, train in ((0, 40), (1, 24)):
        ones = np.count_nonzero((table.client == c) & (table.split == VALIDATION) & (data.labels == 1))
        assert abs(ones - train * 0.25 / 4) < 1
    none = partitions.make(from_file(tmp_path / "p.npz", validation=0.0), data)
    np.testing.assert_array_equal(none.split == TRAIN, (split == 0) & (client >= 0))


def test_a_files_own_validation_rows_are_used(tmp_path: Path) -> None:
    split = [0, 0, 2, 1, 0, 1, 0, 0]
    path = write(tmp_path / "p.npz", [0, 0, 0, 0, 1, 1, 1, 1], split)
    assert partitions.make(from_file(path, validation=0.5), toy_dataset(np.zeros(8))).split.tolist() == split


@pytest.mark.parametrize(
    ("client", "split", "message"),
    [
        ([0, 0, 1], [0, 1, 0], r"'client' must hold one integer per row of 'toy' \(4: .*got int64 \[3\]"),
        ([0, 0, 1, 1], [0, 1, 0], r"'split' must hold one integer .*got int64 \[3\]"),
        ([0.0, 0.0, 1.0, 1.0], [0, 1, 0, 1], r"'client' must hold one integer .*got float64 \[4\]"),
        ([[0, 0, 1, 1]], [0, 1, 0, 1], r"'client' must hold .*got int64 \[1, 4\]"),
        ([0, 0, -2, 1], [0, 1, 0, 1], r"client -2 in row 2; valid: -1 \(unused\) to 1"),
        ([0, 0, 1, 1], [0, 3, 0, 1], r"split 3 in row 1; valid: 0 \(train\), 1 \(test\), 2 \(validation\)"),
        ([0, 0, 1, 1], [0, 1, 0, -1], r"split -1 in row 3"),
        ([0, 0, 2, 2], [0, 1, 0, 1], r"client ids must be 0\.\.2 without gaps; client 1 has no row"),
        ([1, 1, 1, 1], [0, 1, 0, 1], r"client ids must be 0\.\.1 without gaps; client 0 has no row"),
        ([0, 0, 10**15, 0], [0, 1, 0, 1], r"client ids must be 0\.\.1000000000000000 without gaps; client 1 has"),
        ([-1, -1, -1, -1], [0, 1, 0, 1], r"every row is unused"),
        ([0, 0, 1, 1], [0, 1, 1, 1], r"client 1 has no train row"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, client: object, split: object, message: str) -> None:
    path = write(tmp_path / "own.npz", client, split)
    with pytest.raises(ValueError, match=rf"own\.npz: {message}") as caught:
        partitions.make(from_file(path), toy_dataset(np.zeros(4)))
    assert "\n" not in str(caught.value)


def test_a_file_without_the_arrays_is_refused_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", client=np.zeros(4, int), splits=np.zeros(4, int))
    with pytest.raises(ValueError, match=r"own\.npz: array 'split' is missing; found client, splits"):
        partitions.make(from_file(tmp_path / "own.npz"), toy_dataset(np.zeros(4)))


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
    table = PartitionTable(np.array([0, -1]), np.array([splits.TRAIN, -1]), 1, 0, "{}")
    with pytest.raises(ValueError, match="read-only"):
        table.client[0] = 0
