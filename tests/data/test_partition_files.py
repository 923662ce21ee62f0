"""Partitions on disk: what `save` wrote, and files of one's own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from fedcore.config import DirichletPartition, IidPartition
from fedcore.data import partitions
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import TEST, TRAIN, UNUSED, VALIDATION
from tests.data.conftest import toy_dataset
from tests.data.partition_settings import assert_same, dirichlet, from_file, iid

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
            "rotation": "f",
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


@pytest.mark.parametrize("field", ["client", "split", "num_clients", "scheme", "rotation"])
def test_a_changed_partition_is_refused(tmp_path: Path, skewed: Dataset, field: str) -> None:
    path = tmp_path / "p.npz"
    partitions.save(partitions.make(dirichlet(unseen_clients=1), skewed), path)
    with np.load(path) as archive:
        arrays = dict(archive)
    if field in ("client", "split"):
        row = int(np.flatnonzero(arrays["split"] == 0)[0])
        arrays[field][row] = 1 - arrays[field][row] if field == "split" else (arrays[field][row] + 1) % 8
    else:
        changed = {"num_clients": arrays["num_clients"] + 1, "scheme": np.array('{"scheme": "iid"}')}
        arrays[field] = {**changed, "rotation": np.full(8, 15.0, np.float32)}[field]
        arrays["num_unseen"] -= field == "num_clients"
    np.savez(path, **arrays)
    skewed = dataclasses.replace(skewed, inputs=np.zeros((1200, 1, 2, 2), np.uint8))
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
    with pytest.raises(ValueError, match=r"p\.npz: lacks num_clients, num_unseen, scheme, rotation, content_hash"):
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


def test_a_partition_without_rotation_is_too_old(tmp_path: Path, skewed: Dataset) -> None:
    partitions.save(partitions.make(dirichlet(), skewed), tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as archive:
        np.savez(tmp_path / "old.npz", **{name: archive[name] for name in archive.files if name != "rotation"})
    with pytest.raises(ValueError, match=r"old\.npz: lacks rotation; not made by `dvc repro partition`"):
        partitions.load(tmp_path / "old.npz")


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
