"""Growing data keep their past: over several nights no example changes its client or its split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.config import ConfigError, StablePartition, validate_section
from fedcore.data import accumulated, partitions, stable
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import TEST, TRAIN, UNUSED, VALIDATION, PartitionTable

CLASSES = ("no", "yes", "perhaps")


def scheme(**changes: object) -> StablePartition:
    return StablePartition(scheme="stable", **{"min_examples": 3, "validation": 0.3, **changes})


def rows(values: Sequence[float], labels: Sequence[int], clients: Sequence[str] | None = None) -> Dataset:
    """Return a data set with one feature; clients by name, numbered in order of appearance."""
    names = tuple(dict.fromkeys(clients or ()))
    numbers = None if clients is None else np.array([names.index(name) for name in clients], np.int32)
    inputs = np.array(values, np.float32)[:, None]
    ones = ((0.0,), (1.0,))
    return Dataset(
        "grown", inputs, np.array(labels, np.int64), CLASSES, *ones, len(inputs), numbers, client_names=names
    )


def night(first: int, size: int, clients: Sequence[str] | None = None) -> Dataset:
    """Return rows whose features are `first`, `first` + 1, ..."""
    holders = None if clients is None else [clients[i % len(clients)] for i in range(size)]
    return rows(np.arange(first, first + size), np.arange(first, first + size) % 3, holders)


def by_example(data: Dataset, table: PartitionTable) -> dict[float, tuple[int, int]]:
    """Return client and split of every used example, by its feature."""
    used = np.flatnonzero(table.client >= 0)
    return {float(data.inputs[row, 0]): (int(table.client[row]), int(table.split[row])) for row in used}


NIGHT = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 2), st.sampled_from(["ann", "bob", "cy", "dee"])),
    min_size=1,
    max_size=40,
)


@given(nights=st.lists(NIGHT, min_size=1, max_size=5), own=st.booleans(), skewed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_example_changes_its_client_or_split(
    nights: list[list[tuple[int, int, str]]], own: bool, skewed: bool
) -> None:
    """Examples may come again, with another label or client too; clients may be new any night."""
    holders = ["ann", "bob"] if own else None
    base = night(1000, 150, holders)
    config = scheme() if own else scheme(clients=5, alpha=0.7 if skewed else None)
    batches = [rows(*map(list, zip(*batch, strict=True))) for batch in nights] if own else None
    if batches is None:
        batches = [rows([x for x, _, _ in batch], [y for _, y, _ in batch]) for batch in nights]
    data, table = base, partitions.make(config, base)
    splits_of_inputs: dict[float, int] = {}
    for count in range(len(batches) + 1):
        later = accumulated.append(base, batches[:count])
        after = partitions.make(config, later)
        before = table.client >= 0
        np.testing.assert_array_equal(after.client[: len(data)][before], table.client[before])
        np.testing.assert_array_equal(after.split[: len(data)][before], table.split[before])
        # The same input is never in two splits, on no night, whatever its label or client.
        for row in np.flatnonzero(after.client >= 0):
            value = float(later.inputs[row, 0])
            assert splits_of_inputs.setdefault(value, int(after.split[row])) == after.split[row]
        data, table = later, after


def test_the_order_in_which_files_come_changes_no_split_and_no_owner() -> None:
    base, monday, tuesday = night(0, 90, ["ann", "bob"]), night(100, 60, ["cy"]), night(200, 60, ["dee", "ann"])
    one = accumulated.append(base, [monday, tuesday])
    other = accumulated.append(base, [tuesday, monday])
    found = []
    for data in (one, other):
        table = partitions.make(scheme(), data)
        # The client's name by its number in the partition: the first row it has.
        names = accumulated.names_of_clients(data)
        owner = {
            value: (names[data.clients[data.inputs[:, 0] == value][0]], split)
            for value, (_, split) in by_example(data, table).items()
        }
        found.append(owner)
    assert found[0] == found[1]
    assert {name for name, _ in found[0].values()} == {"ann", "bob", "cy", "dee"}


def test_new_clients_get_the_numbers_after_those_that_are_there() -> None:
    base = night(0, 80, ["bob", "dee"])
    before = by_example(base, partitions.make(scheme(), base))
    grown = accumulated.append(base, [night(100, 80, ["ann", "cy"])])
    after = by_example(grown, partitions.make(scheme(), grown))
    assert {client for client, _ in before.values()} == {0, 1}
    assert before.items() <= after.items()
    assert {client for value, (client, _) in after.items() if value >= 100} == {2, 3}


def test_a_client_that_waited_gets_a_number_after_those_that_did_not() -> None:
    base = night(0, 80, ["bob"])
    batches = [night(100, 3, ["ann"]), night(200, 80, ["cy"]), night(300, 80, ["ann"])]
    found = []
    for count in range(4):
        data = accumulated.append(base, batches[:count])
        table = partitions.make(scheme(min_examples=5), data)
        found.append([int(table.client[data.inputs[:, 0] == first][0]) for first in (0, 100, 200, 300)[: count + 1]])
    assert found == [[0], [0, UNUSED], [0, UNUSED, 1], [0, 2, 1, 2]]


def test_a_client_waits_until_it_has_enough_examples() -> None:
    base = night(0, 80, ["ann"])
    few = accumulated.append(base, [night(100, 4, ["bob"])])
    table = partitions.make(scheme(min_examples=5), few)
    assert table.num_clients == 1
    assert set(table.client[80:]) == {UNUSED}
    assert set(table.split[80:]) == {UNUSED}
    enough = accumulated.append(base, [night(100, 4, ["bob"]), night(104, 40, ["bob"])])
    table = partitions.make(scheme(min_examples=5), enough)
    assert set(table.client[80:]) == {1}


def test_every_client_has_a_row_in_every_split() -> None:
    data = night(0, 60, [f"client {i}" for i in range(12)])
    table = partitions.make(scheme(min_examples=1), data)
    assert table.num_clients < 12, "the case should have clients without some split"
    for client in range(table.num_clients):
        assert set(table.split[table.client == client]) == {TRAIN, TEST, VALIDATION}


def test_shares_are_those_asked_for() -> None:
    data = night(0, 20_000)
    table = partitions.make(scheme(clients=4, test=0.2, validation=0.25), data)
    # Of 20,000 rows a share of 0.2 has a deviation of 0.0028: five of them are 0.014.
    shares = np.bincount(table.split, minlength=3) / len(data)
    np.testing.assert_allclose(shares[[TRAIN, TEST, VALIDATION]], [0.6, 0.2, 0.2], atol=0.014)
    np.testing.assert_allclose(np.bincount(table.client) / len(data), 0.25, atol=0.016)
    # Split and client come from different words of the hash.
    for client in range(4):
        assert abs((table.split[table.client == client] == TEST).mean() - 0.2) < 0.03


def test_alpha_skews_the_labels() -> None:
    data = night(0, 6000)

    def skew(alpha: float | None) -> float:
        table = partitions.make(scheme(clients=5, alpha=alpha), data)
        counts = np.zeros((table.num_clients, 3))
        np.add.at(counts, (table.client[table.client >= 0], data.labels[table.client >= 0]), 1)
        return float(np.abs(counts / counts.sum(axis=1, keepdims=True) - 1 / 3).sum(axis=1).mean())

    assert skew(None) < 0.1 < 0.4 < skew(0.2)


def test_the_seed_deals_anew() -> None:
    data = night(0, 500)
    one, other = (partitions.make(scheme(clients=2, seed=seed), data) for seed in (0, 1))
    assert 0.4 < (one.client == other.client).mean() < 0.6
    assert (one.split != other.split).any()


def test_the_hash_is_that_of_the_documentation() -> None:
    """SHA-256 over the seed and the bytes, its first eight bytes as a little-endian number over 2**64."""
    import hashlib

    row = np.array([1.5, -2.0], np.float32)
    digest = hashlib.sha256(b"partition/stable 7 " + bytes.fromhex("0000c03f000000c0")).digest()
    expected = int.from_bytes(digest[:8], "little") / 2**64
    assert stable.fractions(row[None], 7)[0, 0] == pytest.approx(expected, abs=1e-15)


def test_negative_zero_is_zero() -> None:
    zeros = np.array([[0.0], [-0.0]], np.float32)
    first, second = stable.fractions(zeros, 0)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("changes", "clients", "message"),
    [
        ({"clients": 3}, ["ann"], r"^partition\.clients: data set 'grown' has clients of its own\. Valid: null"),
        ({"alpha": 0.1}, ["ann"], r"^partition\.alpha: data set 'grown' has clients of its own\. Valid: null"),
        ({}, None, r"^partition\.clients: data set 'grown' has no clients of its own; say how many"),
        ({"min_examples": 31}, ["ann", "bob"], r"^partition\.min_examples: no client has 31 examples .* has 30$"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], clients: list[str] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        partitions.make(scheme(**changes), night(0, 60, clients))


@pytest.mark.parametrize("changes", [{"unseen_clients": 1}, {"keep": 0.5}])
def test_what_depends_on_the_other_rows_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"Valid: [01]$"):
        validate_section(StablePartition, {"scheme": "stable", **changes}, ("partition",))


# --- batches ---------------------------------------------------------------------------------------------------------


def test_batches_come_after_the_base_and_leave_its_scaling() -> None:
    base = night(0, 6, ["bob", "ann"])
    grown = accumulated.append(base, [night(50, 2, ["ann", "cy"])])
    assert grown.inputs[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 50, 51]
    assert grown.client_names == ("bob", "ann", "cy")
    assert grown.clients is not None
    assert grown.clients.tolist() == [0, 1, 0, 1, 0, 1, 1, 2]
    assert (grown.offset, grown.scale, grown.num_train_rows) == (base.offset, base.scale, 6)


def test_a_client_without_a_name_is_known_by_its_number() -> None:
    base = Dataset(
        "b", np.zeros((2, 1), np.float32), np.zeros(2, np.int64), CLASSES, (0.0,), (1.0,), 2, np.int32([1, 0])
    )
    grown = accumulated.append(base, [rows([9.0, 8.0], [0, 0], ["1", "7"])])
    assert grown.clients is not None
    assert grown.clients.tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (night(0, 3, ["ann"]), "batch 1 does not fit data set 'grown': it names clients, the data set has none"),
        (
            Dataset("b", np.zeros((1, 2), np.float32), np.zeros(1, np.int64), CLASSES, (0.0,), (1.0,), 1),
            r"an example is float32 \[2\], expected float32 \[1\]",
        ),
        (
            Dataset("b", np.zeros((1, 1), np.float32), np.zeros(1, np.int64), ("no",), (0.0,), (1.0,), 1),
            "its classes are no, expected no, yes, perhaps",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(batch: Dataset, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        accumulated.append(night(0, 6), [night(6, 3), batch])


def test_examples_are_told_apart_by_input_class_and_client() -> None:
    data = rows([1, 1, 1, 2, 1], [0, 0, 1, 0, 0], ["ann", "ann", "ann", "ann", "bob"])
    keys = accumulated.example_keys(data)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
