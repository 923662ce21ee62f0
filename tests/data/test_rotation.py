"""Feature shift: images turned by an angle of their client, from the settings to what a client trains on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fedcore.config import ConfigError, Splits
from fedcore.data import dataset as datasets
from fedcore.data import partitions, pseudo, rotation
from fedcore.data.dataset import Dataset
from fedcore.data.federation import Federation
from fedcore.data.partitions import PartitionTable
from tests.data.conftest import toy_dataset
from tests.data.partition_settings import assert_same, from_file, iid, natural, shards


def images(rows: int = 40, shape: tuple[int, int, int] = (1, 6, 6)) -> Dataset:
    pixels = np.random.Generator(np.random.PCG64(2)).integers(0, 256, (rows, *shape)).astype(np.uint8)
    labels = np.arange(rows) % 4
    names, channels = tuple("abcd"), shape[0]
    return Dataset("pictures", pixels, labels, names, (127.5,) * channels, (1 / 127.5,) * channels, rows)


def turned(data: Dataset, degrees: list[float]) -> Federation:
    """Return a federation with one client per angle; the last row belongs to nobody."""
    client = np.arange(len(data)) % len(degrees)
    client[-1] = -1
    split = np.where(client < 0, -1, 0)
    return Federation(data, PartitionTable(client, split, len(degrees), 0, "{}", np.array(degrees)))


# --- one image -------------------------------------------------------------------------------------------------------


def test_a_quarter_turn_is_counter_clockwise_and_exact() -> None:
    image = np.array([[[[1, 2], [3, 4]]]], np.uint8)
    assert rotation.rotate(image, 90).tolist() == [[[[2, 4], [1, 3]]]]
    assert rotation.rotate(image, 180).tolist() == [[[[4, 3], [2, 1]]]]
    assert rotation.rotate(image, -90).tolist() == rotation.rotate(image, 270).tolist() == [[[[3, 1], [4, 2]]]]
    for whole in (0, 360, -720):
        copy = rotation.rotate(image, whole)
        assert copy.tolist() == image.tolist()
        assert not np.shares_memory(copy, image)


@pytest.mark.parametrize("shape", [(1, 5, 5), (3, 8, 8)])
def test_four_quarter_turns_change_nothing(shape: tuple[int, int, int]) -> None:
    pixels = before = images(shape=shape).inputs
    for _ in range(4):
        pixels = rotation.rotate(pixels, 90)
        assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, before)


def test_interpolation_by_hand() -> None:
    """A white pixel 4 right of the centre of 9x9, turned by 45 degrees, lands 2.83 right and 2.83 above it.

    The pixel 3 right, 3 above comes from 4.243 right, 0 above: weight 1 - 0.243, 255 * 0.757 = 193. The pixel 2 right,
    3 above comes from 3.536 right, 0.707 above: weights 0.536 * 0.293, 255 * 0.157 = 40; likewise 3 right, 2 above.
    """
    image = np.zeros((1, 1, 9, 9), np.uint8)
    image[0, 0, 4, 8] = 255
    result = rotation.rotate(image, 45)[0, 0]
    assert (result[1, 7], result[1, 6], result[2, 7]) == (193, 40, 40)
    assert result[4:].max() == result[:, :6].max() == 0


def test_angles_are_true_on_images_that_are_not_square() -> None:
    """5 rows, 11 columns, white 2 above the centre, 30 degrees: lands 1 left and 1.73 above it.

    The pixel 1 left, 2 above comes from 0.134 right, 2.232 above: weights 0.866 * 0.768, 255 * 0.665 = 170.
    """
    image = np.zeros((1, 1, 5, 11), np.uint8)
    image[0, 0, 0, 5] = 255
    assert rotation.rotate(image, 30)[0, 0, 0, 4] == 170
    np.testing.assert_array_equal(rotation.rotate(image, 180)[0, 0], image[0, 0, ::-1, ::-1])


def test_what_comes_in_is_black_and_the_image_stays_as_it_was() -> None:
    image = np.full((2, 3, 8, 8), 255, np.uint8)
    result = rotation.rotate(image, 45)
    assert result[:, :, [0, 0, 7, 7], [0, 7, 0, 7]].max() == 0
    assert result[:, :, 2:6, 2:6].min() == 255
    assert image.min() == 255


def test_nearly_a_quarter_turn_is_nearly_exact() -> None:
    """The interpolated and the exact path turn the same way about the same centre."""
    pixels = images(shape=(2, 7, 7)).inputs
    for quarter in (90, 180, 270):
        near, exact = rotation.rotate(pixels, quarter + 1e-4), rotation.rotate(pixels, quarter)
        assert np.abs(near.astype(int) - exact).max() <= 1


def test_many_rows_are_turned_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = images(rows=11).inputs
    whole = rotation.rotate(pixels, 20)
    monkeypatch.setattr(rotation, "_CHUNK", 4)
    np.testing.assert_array_equal(rotation.rotate(pixels, 20), whole)
    np.testing.assert_array_equal(np.concatenate([rotation.rotate(p[None], 20) for p in pixels]), whole)


# --- a federation ----------------------------------------------------------------------------------------------------


def test_every_client_sees_its_own_angle() -> None:
    data = images()
    before = data.inputs.copy()
    federation = turned(data, [0.0, 90.0, 33.0])
    inputs = federation.inputs()
    assert (inputs.dtype, inputs.shape) == (np.uint8, data.inputs.shape)
    for client, degrees in enumerate([0.0, 90.0, 33.0]):
        rows = federation.rows(client, "train")
        np.testing.assert_array_equal(inputs[rows], rotation.rotate(data.inputs[rows], degrees))
    np.testing.assert_array_equal(inputs[-1], data.inputs[-1])  # nobody's
    np.testing.assert_array_equal(data.inputs, before)
    some = np.array([7, 1, 1, 39, 6])
    np.testing.assert_array_equal(federation.inputs(some), inputs[some])
    assert federation.rotation.tolist() == [0.0, 90.0, 33.0]


def test_without_rotation_the_inputs_stay_on_disk(tmp_path: Path) -> None:
    datasets.save(images(), tmp_path)
    data = datasets.load(tmp_path)
    federation = turned(data, [0.0, 0.0])
    assert federation.inputs() is data.inputs
    np.testing.assert_array_equal(federation.inputs(np.array([3, 2])), data.inputs[[3, 2]])
    assert turned(data, [0.0, 5.0]).inputs() is not data.inputs


def test_pseudo_data_are_means_of_turned_images() -> None:
    data = images()
    plain, _ = pseudo.rsm(turned(data, [0.0, 0.0]), 6, seed=0)
    half, _ = pseudo.rsm(turned(data, [180.0, 180.0]), 6, seed=0)
    assert not np.array_equal(plain, half)
    np.testing.assert_array_equal(half, plain[:, :, ::-1, ::-1])


def test_training_sees_turned_images() -> None:
    from tasks.train import make_training

    data = images(shape=(1, 8, 8))
    plan = {
        "label": "fedavg",
        "method": "fedavg",
        "add": {},
        "settings": {},
        "train": {"rounds": 1, "device": "cpu", "executor": "serial"},
        "model": {"name": "mlp", "hidden": [4]},
        "resources": {},
    }
    federation = turned(data, [0.0, 90.0])
    held = make_training(plan, 0, federation).examples.inputs.numpy()
    np.testing.assert_array_equal(held, federation.inputs())
    assert not np.array_equal(held, data.inputs)


# --- settings and files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [iid(clients=5), shards(clients=5)], ids=["iid", "shards"])
def test_client_i_is_turned_by_i_times_the_angle(tmp_path: Path, config: Splits) -> None:
    changed = config.model_copy(update={"rotation": 15.0, "unseen_clients": 2})
    table = partitions.make(changed, images())
    assert table.rotation.tolist() == [0, 15, 30, 45, 60]
    plain = partitions.make(config.model_copy(update={"unseen_clients": 2}), images())
    np.testing.assert_array_equal(table.client, plain.client)  # turning does not deal other rows
    np.testing.assert_array_equal(table.split, plain.split)
    assert dataclasses.replace(plain, scheme=table.scheme).content_hash != table.content_hash
    partitions.save(table, tmp_path / "p.npz")
    assert_same(partitions.load(tmp_path / "p.npz"), table)
    again = partitions.make(from_file(tmp_path / "p.npz", unseen_clients=2), images())
    assert_same(again, table)


def test_unseen_clients_have_an_angle_of_their_own() -> None:
    settings = iid(clients=5, unseen_clients=2, rotation=-10.0, unseen_rotation=90.0)
    assert partitions.make(settings, images()).rotation.tolist() == [0, -10, -20, 90, 90]
    only = iid(clients=5, unseen_clients=2, unseen_rotation=90.0)
    assert partitions.make(only, images()).rotation.tolist() == [0, 0, 0, 90, 90]
    none = iid(clients=5, unseen_clients=2, rotation=10.0, unseen_rotation=0.0)
    assert partitions.make(none, images()).rotation.tolist() == [0, 10, 20, 0, 0]


def test_whole_turns_are_left_out() -> None:
    table = partitions.make(iid(clients=9, rotation=90.0), images())
    assert table.rotation.tolist() == [0, 90, 180, 270, 0, 90, 180, 270, 0]


@pytest.mark.parametrize(
    ("config", "shape", "message"),
    [
        (iid(rotation=15.0), None, r"rotation: 'toy': only images can be turned; an input has shape \[1\]\. Valid: 0"),
        (natural(rotation=15.0, min_examples=1), None, r"rotation: 'toy': only images can be turned"),
        (
            iid(unseen_clients=1, unseen_rotation=90.0),
            (1, 6, 8),
            r"unseen_rotation: 'pictures': 6x8 images cannot be turned by 90 degrees; only square ones can\. Valid: 0",
        ),
        (iid(clients=7, rotation=45.0), (3, 8, 6), r"rotation: 'pictures': 8x6 images cannot be turned by 90 degrees"),
    ],
)
def test_inputs_that_cannot_be_turned_are_refused(
    config: Splits, shape: tuple[int, int, int] | None, message: str
) -> None:
    own = np.arange(40, dtype=np.int32) % 7
    data = toy_dataset(np.arange(40) % 4, clients=own) if shape is None else images(shape=shape)
    with pytest.raises(ConfigError, match=rf"^partition\.{message}") as caught:
        partitions.make(config, data)
    assert "\n" not in str(caught.value)


def test_images_that_are_not_square_turn_by_other_angles() -> None:
    data = images(shape=(1, 6, 8))
    assert partitions.make(iid(clients=4, rotation=180.0), data).rotation.tolist() == [0, 180, 0, 180]
    assert turned(data, [10.0, 20.0]).inputs().shape == data.inputs.shape
    with pytest.raises(ValueError, match="6x8 images cannot be turned by -90 degrees"):
        turned(data, [0.0, -90.0])


def test_a_federation_of_vectors_cannot_be_turned() -> None:
    table = PartitionTable(np.zeros(8), np.zeros(8), 1, 0, "{}", np.array([30.0]))
    with pytest.raises(ValueError, match="of data set 'toy' only images can be turned"):
        Federation(toy_dataset(np.zeros(8)), table)


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        (np.zeros(3), r"'rotation' must hold one number of degrees per client \(2\), got float32 \[3\]"),
        (np.array(["a", "b"]), r"'rotation' must hold one number of degrees per client \(2\), got <U1 \[2\]"),
        (np.array([0, np.nan]), r"rotation nan of client 1 is no finite number of degrees"),
        (np.array([1e300, 0]), r"rotation inf of client 0 is no finite number of degrees"),
    ],
)
def test_a_files_rotation_is_checked(tmp_path: Path, degrees: np.ndarray, message: str) -> None:
    client, split = np.arange(40) % 2, np.arange(40) // 2 % 2
    np.savez(tmp_path / "own.npz", client=client, split=split, rotation=degrees)
    with pytest.raises(ValueError, match=rf"own\.npz: {message}") as caught:
        partitions.make(from_file(tmp_path / "own.npz"), images())
    assert "\n" not in str(caught.value)


def test_a_file_may_bring_its_rotation(tmp_path: Path) -> None:
    client, split = np.arange(40) % 2, np.arange(40) // 2 % 2
    np.savez(tmp_path / "own.npz", client=client, split=split, rotation=np.array([0, 450]))
    table = partitions.make(from_file(tmp_path / "own.npz"), images())
    assert table.rotation.tolist() == [0, 450]
    rows = np.flatnonzero(client == 1)
    np.testing.assert_array_equal(
        Federation(images(), table).inputs(rows), rotation.rotate(images().inputs[rows], 90.0)
    )
    with pytest.raises(ValueError, match=r"own\.npz: 'rotation' cannot be applied to 'toy': only images"):
        partitions.make(from_file(tmp_path / "own.npz"), toy_dataset(np.arange(40) % 4))
