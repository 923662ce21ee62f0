"""Feature shift by noise: every client's images at its own level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedcore.config import ConfigError, validate
from fedcore.data import noise, partitions, rotation
from fedcore.data.dataset import Dataset
from fedcore.data.federation import Federation
from fedcore.data.partitions import PartitionTable
from tests.data.conftest import toy_dataset
from tests.data.partition_settings import assert_same, from_file, iid

GREY = 128


def images(rows: int = 40, shape: tuple[int, int, int] = (1, 8, 8)) -> Dataset:
    labels = np.arange(rows, dtype=np.int64) % 4
    return Dataset("pictures", np.full((rows, *shape), GREY, np.uint8), labels, tuple("abcd"), (0.0,), (1.0,), rows)


def noisy(data: Dataset, levels: list[float], seed: int = 0) -> Federation:
    """Rows dealt in turn, the last one to nobody; no test rows."""
    client = np.arange(len(data)) % len(levels)
    client[-1] = -1
    table = PartitionTable(client, np.zeros(len(data)), len(levels), 0, "{}", noise=np.array(levels), noise_seed=seed)
    return Federation(data, table)


def test_client_i_of_n_has_level_i_over_n() -> None:
    table = partitions.make(iid(clients=5, noise=0.5, seed=3), images())
    np.testing.assert_allclose(table.noise, [0, 0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    assert table.noise_seed == 3
    unseen = partitions.make(iid(clients=5, unseen_clients=2, noise=0.5), images())
    np.testing.assert_allclose(unseen.noise, table.noise)


def test_the_deviation_is_the_level_in_units_of_the_pixels_range() -> None:
    """Level 0.1 is 25.5 of 255; 40 * 400 pixels tell it to 0.14, and rounding adds less than 0.01."""
    federation = noisy(images(80, (1, 20, 20)), [0.0, 0.1])
    changed = federation.inputs()[federation.rows(1, "train")].astype(float) - GREY
    assert changed.std() == pytest.approx(25.5, abs=0.6)
    assert changed.mean() == pytest.approx(0, abs=0.9)
    assert (federation.inputs()[federation.rows(0, "train")] == GREY).all()
    assert (federation.inputs()[-1] == GREY).all()  # nobody's


def test_pixels_stay_in_their_range() -> None:
    federation = noisy(images(), [10.0])
    values = federation.inputs()[:-1]
    assert values.dtype == np.uint8
    # The deviation is ten times the range, so about 4 % of the pixels stay inside; the others end at its ends.
    assert np.isin(values, (0, 255)).mean() > 0.9


def test_a_row_has_the_same_noise_whichever_rows_are_asked_for() -> None:
    federation = noisy(images(), [0.3, 0.1, 0.2])
    inputs = federation.inputs()
    np.testing.assert_array_equal(inputs, federation.inputs())
    rows = np.array([31, 4, 17, 39])
    np.testing.assert_array_equal(federation.inputs(rows), inputs[rows])
    assert len({image.tobytes() for image in inputs[:-1]}) == 39  # no two rows share it
    assert (noisy(images(), [0.3, 0.1, 0.2], seed=1).inputs()[:-1] != inputs[:-1]).mean() > 0.8


def test_the_data_set_stays_as_it_was() -> None:
    data = images()
    noisy(data, [0.5, 0.5]).inputs()
    assert (data.inputs == GREY).all()
    assert noisy(data, [0.0, 0.0]).inputs() is data.inputs


def test_images_are_turned_before_they_get_noise() -> None:
    data = images()
    data = Dataset("pictures", np.tril(data.inputs), data.labels, data.class_names, (0.0,), (1.0,), 40)
    levels, degrees = np.array([0.0, 0.2]), np.array([0.0, 90.0])
    table = PartitionTable(np.arange(40) % 2, np.zeros(40), 2, 0, "{}", degrees, levels, 7)
    rows = np.arange(1, 40, 2)
    turned = rotation.rotate(data.inputs[rows], 90.0)
    expected = noise.add_rows(turned, np.full(20, 0.2, np.float32), rows, 7)
    np.testing.assert_array_equal(Federation(data, table).inputs(rows), expected)


def test_a_partition_keeps_its_noise_on_disk(tmp_path: Path) -> None:
    table = partitions.make(iid(clients=4, noise=0.2, seed=5), images())
    partitions.save(table, tmp_path / "p.npz")
    read = partitions.load(tmp_path / "p.npz")
    assert_same(table, read)
    assert (read.noise_seed, read.content_hash) == (5, table.content_hash)
    again = partitions.make(from_file(tmp_path / "p.npz", seed=9), images())
    assert_same(table, again)
    np.testing.assert_array_equal(Federation(images(), table).inputs(), Federation(images(), again).inputs())


def test_the_noise_is_part_of_the_hash() -> None:
    client, split = np.zeros(4), np.zeros(4)
    tables = [
        PartitionTable(client, split, 1, 0, "{}"),
        PartitionTable(client, split, 1, 0, "{}", noise=np.array([0.1])),
        PartitionTable(client, split, 1, 0, "{}", noise=np.array([0.2])),
        PartitionTable(client, split, 1, 0, "{}", noise=np.array([0.1]), noise_seed=1),
    ]
    assert len({table.content_hash for table in tables}) == 4


def test_a_file_may_bring_its_noise(tmp_path: Path) -> None:
    own = {"client": np.arange(40) % 2, "split": np.arange(40) // 2 % 2}
    np.savez(tmp_path / "own.npz", **own, noise=np.array([0, 0.5]))
    table = partitions.make(from_file(tmp_path / "own.npz", seed=4), images())
    assert (table.noise.tolist(), table.noise_seed) == ([0, 0.5], 4)
    with pytest.raises(ValueError, match=r"own\.npz: 'noise' cannot be applied to 'toy': only images can get noise"):
        partitions.make(from_file(tmp_path / "own.npz"), toy_dataset(np.arange(40) % 4))
    for wrong, message in (
        (np.zeros(3), r"'noise' must hold one level per client \(2\), got float32 \[3\]"),
        (np.array([0, np.nan]), r"noise nan of client 1 is no finite level of 0 or more"),
        (np.array([-1, 0]), r"noise -1 of client 0 is no finite level of 0 or more"),
    ):
        np.savez(tmp_path / "own.npz", **own, noise=wrong)
        with pytest.raises(ValueError, match=rf"own\.npz: {message}"):
            partitions.make(from_file(tmp_path / "own.npz"), images())


def test_only_images_get_noise() -> None:
    with pytest.raises(ConfigError, match=r"^partition\.noise: 'toy': only images can get noise.* Valid: 0$"):
        partitions.make(iid(clients=3, noise=0.1), toy_dataset(np.arange(40) % 4))
    table = PartitionTable(np.zeros(8), np.zeros(8), 1, 0, "{}", noise=np.array([0.1]))
    with pytest.raises(ValueError, match="puts noise on images, but of data set 'toy' only images"):
        Federation(toy_dataset(np.zeros(8)), table)
    values = {
        "experiment": "trial",
        "dataset": {"name": "synthetic"},
        "partition": {"scheme": "natural", "noise": 0.1},
        "model": {"name": "mlp"},
        "train": {"rounds": 1},
        "methods": {"fedavg": {}},
        "compare": {},
    }
    with pytest.raises(ConfigError, match=r"partition\.noise is for images; 'synthetic' has feature vectors"):
        validate(values)
