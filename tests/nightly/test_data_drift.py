"""Drift is large and no chance, per client; numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedcore.config import Drift, StablePartition
from fedcore.data import partitions
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import PartitionTable
from tasks import data_drift, data_statistics
from tasks.data_statistics import Statistics


def made(values: np.ndarray, labels: np.ndarray, clients: np.ndarray) -> tuple[Dataset, PartitionTable]:
    inputs = np.asarray(values, np.float32)
    scaling = ((0.0,), (1.0,))
    data = Dataset("toy", inputs, labels.astype(np.int64), ("a", "b"), *scaling, len(inputs), clients.astype(np.int32))
    config = StablePartition(scheme="stable", min_examples=1, validation=0.3)
    return data, partitions.make(config, data)


def rows(count: int, seed: int, shift: float = 0.0, ones: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Return two features, the second moved by `shift`, and labels with a share `ones` of the second class."""
    numbers = np.random.Generator(np.random.PCG64(seed))
    values = numbers.normal(size=(count, 2))
    values[:, 1] += shift
    return values, (numbers.random(count) < ones).astype(np.int64)


def grown(shift: float, ones: float, new: int = 200) -> data_drift.Report:
    """Return the drift after client 1 of two got new rows that differ, client 0 such that do not."""
    old_values, old_labels = rows(1200, seed=1)
    same_values, same_labels = rows(new, seed=2)
    other_values, other_labels = rows(new, seed=3, shift=shift, ones=ones)
    client = np.arange(1200) % 2
    before, table = made(old_values, old_labels, client)
    champion = data_statistics.count(before, table, bins=10)
    data, table = made(
        np.concatenate([old_values, same_values, other_values]),
        np.concatenate([old_labels, same_labels, other_labels]),
        np.concatenate([client, np.zeros(new, int), np.ones(new, int)]),
    )
    return data_drift.measure(data, table, champion, Drift())


def drifted(report: data_drift.Report) -> dict[str, list[str]]:
    return {change.client: change.drifted for change in report.changes}


def test_the_same_distribution_is_no_drift() -> None:
    report = grown(0.0, 0.5)
    assert drifted(report) == {"all clients": [], "0": [], "1": []}
    assert report.note == "400 new examples against the champion's 1,200"
    assert report.drifted == []


def test_labels_that_changed_are_found_where_they_changed() -> None:
    report = grown(0.0, 0.95)
    assert drifted(report)["1"] == ["labels"]
    assert drifted(report)["0"] == []
    assert report.changes[1].client == "1", "the worst client comes first"


def test_a_feature_that_moved_is_named() -> None:
    report = grown(1.5, 0.5)
    assert drifted(report)["1"] == ["feature 1"]
    assert drifted(report)["0"] == []
    assert next(change for change in report.changes if change.client == "1").feature == "feature 1"


def test_too_few_new_examples_are_not_judged() -> None:
    report = grown(5.0, 1.0, new=19)
    own = {change.client: change for change in report.changes}
    assert not own["1"].judged
    assert own["1"].drifted == []
    assert own["1"].label_distance > 0.2
    assert own["all clients"].judged


def test_chance_alone_is_no_drift() -> None:
    """Of 30 clients with 20 new examples each some are far off: by the distance alone they would be drift."""
    values, labels = rows(30 * 100, seed=5)
    client = np.arange(3000) % 30
    before, table = made(values, labels, client)
    champion = data_statistics.count(before, table, bins=10)
    new_values, new_labels = rows(600, seed=6)
    data, table = made(
        np.concatenate([values, new_values]),
        np.concatenate([labels, new_labels]),
        np.concatenate([client, np.arange(600) % 30]),
    )
    report = data_drift.measure(data, table, champion, Drift())
    assert max(change.label_distance for change in report.changes) > Drift().label_distance
    assert max(change.stability_index for change in report.changes) > Drift().stability_index
    assert report.drifted == []


def test_new_clients_are_named_not_judged() -> None:
    values, labels = rows(200, seed=1)
    before, table = made(values, labels, np.zeros(200))
    champion = data_statistics.count(before, table, bins=10)
    data, table = made(np.concatenate([values, values + 9]), np.concatenate([labels, labels]), np.repeat([0, 1], 200))
    report = data_drift.measure(data, table, champion, Drift())
    assert report.new_clients == ["1"]
    assert [change.client for change in report.changes] == ["all clients"]


def test_nothing_new_and_another_data_set() -> None:
    values, labels = rows(200, seed=1)
    data, table = made(values, labels, np.zeros(200))
    champion = data_statistics.count(data, table, bins=10)
    assert data_drift.measure(data, table, champion, Drift()).note == "no new examples since the champion's data"
    other, table = made(values[::-1] + 5, labels, np.zeros(200))
    report = data_drift.measure(other, table, champion, Drift())
    assert report.note == "all examples (its own are not among them) against the champion's 200"
    assert set(drifted(report)["0"]) == {"feature 0", "feature 1"}
    wider, table = made(np.concatenate([values, values], axis=1), labels, np.zeros(200))
    assert "another shape" in data_drift.measure(wider, table, champion, Drift()).note


def test_total_variation() -> None:
    """Shares (1/2, 1/2, 0) and (1/4, 1/4, 1/2): (1/4 + 1/4 + 1/2) / 2 = 1/2."""
    assert data_drift.label_distance(np.array([5, 5, 0]), np.array([1, 1, 2])) == pytest.approx(0.5)
    assert data_drift.label_distance(np.array([5, 5]), np.array([0, 0])) == 0.0


def test_population_stability_index() -> None:
    """Counts (1, 3) and (3, 1) with half an example more: shares (0.3, 0.7) and (0.7, 0.3), so 2 * 0.4 * ln(7/3)."""
    found = data_drift.stability_index(np.array([1, 3]), np.array([3, 1]))
    assert found == pytest.approx(0.8 * math.log(7 / 3))
    assert math.isfinite(data_drift.stability_index(np.array([4, 0]), np.array([0, 4])))


def test_chi_squared() -> None:
    """(10, 20) against (20, 10): every expected count is 15, so 4 * 25 / 15 = 20/3 with one degree of freedom."""
    assert data_drift.chance(np.array([10, 20]), np.array([20, 10])) == pytest.approx(math.erfc(math.sqrt(20 / 3 / 2)))
    assert data_drift.chance(np.array([10, 0]), np.array([20, 0])) == 1.0


def test_rare_classes_raise_no_false_alarm() -> None:
    """Nights without drift, 20 clients with 100 classes each: nominally 1 in 100 has an alarm.

    With Pearson's test on all columns two in three of these nights had one.
    """
    numbers, alarms = np.random.Generator(np.random.PCG64(0)), 0
    nothing = np.zeros((20, 0, 2), np.int64)
    for _ in range(25):
        shares = numbers.dirichlet(np.full(100, 0.1), 20)
        sides = [
            Statistics(
                tuple(map(str, range(20))), numbers.multinomial(count, shares), (), np.zeros((0, 1)), nothing, 0, ""
            )
            for count in (2000, 50)
        ]
        changes, _ = data_drift.compare(*sides, Drift())
        assert min(change.label_distance for change in changes[1:]) > 0.1
        alarms += any(change.drifted for change in changes)
    assert alarms <= 1


def test_the_chance_of_a_rare_class_is_not_understated() -> None:
    """(4998, 1, 1) against (48, 1, 1): with these sums the probability is C(2, 1)^2 C(5046, 48) / C(5050, 50) = 4e-4.

    No p-value may be below that of the result itself. Pearson's is 5e-22.
    """
    alone = 4 * math.comb(5046, 48) / math.comb(5050, 50)
    assert alone < data_drift.chance(np.array([4998, 1, 1]), np.array([48, 1, 1])) < 0.05


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([1000, 1000, 0], [0, 25, 25]),
        ([1000, 1000, 0], [19, 19, 12]),
        ([500, *[15] * 100], [40, *[1] * 10, *[0] * 90]),
        ([200] * 20, [1, 9] * 10),
    ],
    ids=["one class takes another's place", "a new class", "a common class", "many classes"],
)
def test_true_changes_are_found_among_thin_columns(before: list[int], now: list[int]) -> None:
    """At the level of a night with 20 clients and the labels alone."""
    assert data_drift.chance(np.array(before), np.array(now)) < 0.01 / 21


def test_counts_by_client_and_bin() -> None:
    values = np.array([[0.0], [1.0], [2.0], [3.0]])
    data, _ = made(values, np.array([0, 1, 1, 1]), np.zeros(4))
    table = PartitionTable(np.array([0, 0, 1, -1]), np.array([0, 1, 0, -1]), 2, 0, "{}")
    found = data_statistics.count_rows(data, table, np.arange(4), np.array([[1.0]]))
    assert found.labels.tolist() == [[1, 1], [0, 1]]
    assert found.binned.tolist() == [[[1, 1]], [[0, 1]]]


def test_images_are_looked_at_by_channel() -> None:
    pixels = np.zeros((2, 2, 2, 2), np.uint8)
    pixels[0, 0] = [[0, 4], [0, 4]]
    pixels[1, 1] = 7
    images = Dataset("i", pixels, np.array([0, 1]), ("a", "b"), (0.0, 0.0), (1.0, 1.0), 2)
    names, values = data_statistics.features(images, np.arange(2))
    assert names == ("channel 0 mean", "channel 1 mean", "channel 0 deviation", "channel 1 deviation")
    assert values.tolist() == [[2, 0, 2, 0], [0, 7, 0, 0]]


def test_statistics_survive_the_file(tmp_path: Path) -> None:
    values, labels = rows(50, seed=1)
    data, table = made(values, labels, np.arange(50) % 2)
    before = data_statistics.count(data, table, bins=4)
    data_statistics.save(before, tmp_path / "s.npz")
    after = data_statistics.load(tmp_path / "s.npz")
    for name in Statistics.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    (tmp_path / "s.npz").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"s\.npz: not readable as statistics of a data set") as caught:
        data_statistics.load(tmp_path / "s.npz")
    assert "\n" not in str(caught.value)


def test_images_of_no_rows_have_features_too() -> None:
    """A night without new examples counts none of them."""
    data = Dataset("toy", np.zeros((3, 2, 4, 4), np.uint8), np.zeros(3, np.int64), ("a",), (0.0, 0.0), (1.0, 1.0), 3)
    names, values = data_statistics.features(data, np.empty(0, np.int64))
    assert len(names) == 4
    assert values.shape == (0, 4)
