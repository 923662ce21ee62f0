from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedcore.data.dataset import Dataset, load, save

IMAGES = np.arange(4 * 2 * 3 * 3, dtype=np.uint8).reshape(4, 2, 3, 3)
LABELS = np.array([0, 2, 1, 2])
PROTECTED = np.array([[0, 1], [1, 1], [0, 0], [1, 0]], dtype=np.uint8)


def images(**changes: object) -> Dataset:
    fields: dict = {
        "name": "toy",
        "inputs": IMAGES,
        "labels": LABELS,
        "class_names": ("a", "b", "c"),
        "offset": (8.0, 7.5),
        "scale": (0.125, 1 / 3),
        "num_train_rows": 3,
        "clients": np.array([0, 0, 1, 5], dtype=np.int32),
        "protected": PROTECTED,
        "protected_names": ("p", "q"),
    }
    return Dataset(**{**fields, **changes})


def test_a_saved_data_set_comes_back_whole_and_memory_mapped(tmp_path: Path) -> None:
    written = images()
    save(written, tmp_path / "new" / "toy")
    read = load(tmp_path / "new" / "toy")
    for field in ("inputs", "labels", "clients", "protected"):
        np.testing.assert_array_equal(getattr(read, field), getattr(written, field))
        assert getattr(read, field).dtype == getattr(written, field).dtype
    assert (read.name, read.class_names, read.offset, read.scale) == (
        "toy",
        ("a", "b", "c"),
        (8.0, 7.5),
        (0.125, 1 / 3),
    )
    assert (read.num_classes, read.input_shape, read.num_train_rows, len(read)) == (3, (2, 3, 3), 3, 4)
    assert read.protected_names == ("p", "q")
    assert isinstance(read.inputs.base, np.memmap)
    assert read.content_hash == written.content_hash


def test_a_set_without_clients_has_no_clients_file(tmp_path: Path) -> None:
    save(images(clients=None), tmp_path)
    assert not (tmp_path / "clients.npy").exists()
    assert load(tmp_path).clients is None


def test_a_set_without_protected_attributes_has_no_trace_of_them(tmp_path: Path) -> None:
    save(images(protected=None, protected_names=()), tmp_path)
    assert not (tmp_path / "protected.npy").exists()
    assert "protected" not in (tmp_path / "meta.json").read_text()
    assert (load(tmp_path).protected, load(tmp_path).protected_names) == (None, ())


def test_a_lost_file_of_protected_attributes_is_noticed(tmp_path: Path) -> None:
    save(images(), tmp_path)
    (tmp_path / "protected.npy").unlink()
    with pytest.raises(ValueError, match=r"protected\.npy: does not exist; run `dvc repro prepare`"):
        load(tmp_path)


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        save(images(), tmp_path / folder)
    for file in sorted((tmp_path / "one").iterdir()):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"inputs": IMAGES + 1},
        {"labels": LABELS[::-1]},
        {"class_names": ("a", "b", "d")},
        {"offset": (8.0, 7.0)},
        {"scale": (0.125, 0.5)},
        {"num_train_rows": 4},
        {"clients": None},
        {"clients": np.array([0, 0, 1, 4], dtype=np.int32)},
        {"protected": None, "protected_names": ()},
        {"protected": PROTECTED[::-1]},
        {"protected_names": ("p", "r")},
    ],
)
def test_the_content_hash_covers_everything(changes: dict) -> None:
    assert images(**changes).content_hash != images().content_hash


def test_arrays_are_read_only_but_the_callers_stay_writable() -> None:
    own = IMAGES.copy()
    dataset = images(inputs=own)
    with pytest.raises(ValueError, match="read-only"):
        dataset.inputs[0] = 0
    own[0, 0, 0, 0] = 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": IMAGES.astype(np.float32)}, r"inputs must be .* got float32 \[4, 2, 3, 3\]"),
        ({"inputs": IMAGES[:, 0]}, r"inputs must be .* got uint8 \[4, 3, 3\]"),
        ({"labels": LABELS.astype(np.int32)}, r"labels must be int64 \[4\], one per input, got int32 \[4\]"),
        ({"labels": LABELS[:3]}, r"labels must be int64 \[4\], one per input, got int64 \[3\]"),
        ({"labels": np.array([0, 1, 3, 0])}, r"label 3 in row 2 is outside 0\.\.2"),
        ({"labels": np.array([0, -1, 2, 0])}, r"label -1 in row 1 is outside 0\.\.2"),
        ({"inputs": IMAGES[:0], "labels": LABELS[:0], "clients": None, "protected": PROTECTED[:0]}, "inputs are empty"),
        ({"offset": (8.0,)}, r"offset must be 2 finite number\(s\), got \[8.0\]"),
        ({"scale": (1.0, float("nan"))}, r"scale must be 2 finite"),
        ({"num_train_rows": 5}, r"num_train_rows must be 1\.\.4, got 5"),
        ({"clients": np.array([0, 0, -1, 0], dtype=np.int32)}, r"clients must be int32 \[4\], >= 0"),
        ({"clients": np.array([0, 0, 1], dtype=np.int32)}, r"clients must be int32 \[4\], >= 0, got int32 \[3\]"),
        ({"protected": PROTECTED.astype(bool)}, r"protected must be uint8 \[4, 2\], .* got bool \[4, 2\]"),
        ({"protected": PROTECTED[:3]}, r"protected must be uint8 \[4, 2\], .* got uint8 \[3, 2\]"),
        ({"protected": PROTECTED[:, 0]}, r"protected must be uint8 \[4, 2\], .* got uint8 \[4\]"),
        ({"protected_names": ()}, r"protected must be uint8 \[4, 0\]"),
        ({"protected_names": ("p", "p")}, r"protected_names must differ, got \['p', 'p'\]"),
        ({"protected": None}, r"protected_names \['p', 'q'\] need the array protected, \[4, 2\] uint8"),
        ({"protected": PROTECTED + PROTECTED[::-1] * 2}, "protected value 2 of 'p' in row 0 is neither 0 nor 1"),
    ],
)
def test_a_wrong_array_is_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"^data set 'toy': {message}"):
        images(**changes)


def test_a_vector_that_is_not_finite_is_found_by_its_row() -> None:
    inputs = np.zeros((70_000, 2), np.float32)
    inputs[69_999, 1] = np.nan
    with pytest.raises(ValueError, match="inputs in row 69999 are not finite"):
        Dataset("toy", inputs, np.zeros(70_000, np.int64), ("a",), (0.0,), (1.0,), 1)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"meta\.json: does not exist; run `dvc repro prepare`"):
        load(tmp_path)
    save(images(), tmp_path)
    whole = (tmp_path / "inputs.npy").read_bytes()
    (tmp_path / "inputs.npy").write_bytes(whole[:-5])
    with pytest.raises(ValueError, match=r"inputs\.npy: not readable"):
        load(tmp_path)
    (tmp_path / "inputs.npy").unlink()
    with pytest.raises(ValueError, match=r"inputs\.npy: does not exist"):
        load(tmp_path)
    (tmp_path / "inputs.npy").write_bytes(whole)
    np.save(tmp_path / "labels.npy", np.array([object()] * 4), allow_pickle=True)
    with pytest.raises(ValueError, match=r"labels\.npy: not readable as a plain \.npy array"):
        load(tmp_path)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    save(images(), tmp_path)
    np.save(tmp_path / "labels.npy", LABELS[::-1])
    with pytest.raises(ValueError, match=f"{tmp_path.name}: its files differ from the content hash"):
        load(tmp_path)


def test_a_meta_file_without_a_key_is_refused(tmp_path: Path) -> None:
    save(images(), tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    del meta["scale"]
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match=r"meta\.json: key 'scale' is missing"):
        load(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "scale": 3}))
    with pytest.raises(ValueError, match=f"{tmp_path.name}: 'int' object is not iterable"):
        load(tmp_path)
    (tmp_path / "meta.json").write_text("[]")
    with pytest.raises(ValueError, match=r"meta\.json: expected a JSON mapping, got list"):
        load(tmp_path)


def tokens(**changes: object) -> Dataset:
    fields: dict = {"inputs": np.array([[1, 0], [4, 2], [3, 0], [0, 0]], np.int32), "num_tokens": 5}
    return images(**{**fields, "offset": (0.0,), "scale": (1.0,), **changes})


def test_token_ids_come_back_with_their_vocabulary(tmp_path: Path) -> None:
    save(tokens(), tmp_path)
    read = load(tmp_path)
    assert (read.num_tokens, read.inputs.dtype, read.input_shape) == (5, np.int32, (2,))
    assert json.loads((tmp_path / "meta.json").read_text())["num_tokens"] == 5
    assert tokens(num_tokens=6).content_hash != tokens().content_hash


def test_signals_have_a_scale_per_channel_and_vectors_one_or_one_per_feature() -> None:
    signals = images(inputs=np.zeros((4, 2, 7), np.float32))
    assert signals.input_shape == (2, 7)
    vectors = np.zeros((4, 3), np.float32)
    for values in ((1.0,), (1.0, 2.0, 3.0)):
        assert images(inputs=vectors, offset=values, scale=values).scale == values
    with pytest.raises(ValueError, match=r"offset must be 1 or 3 finite number\(s\), got \[8.0, 7.5\]"):
        images(inputs=vectors)
    with pytest.raises(ValueError, match=r"inputs in row 2 are not finite"):
        images(inputs=np.where(np.arange(56).reshape(4, 2, 7) == 30, np.nan, 0).astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tokens": 4}, r"inputs in row 1 are outside 0\.\.3, the vocabulary"),
        ({"inputs": np.array([[0], [0], [0], [-1]], np.int32)}, "inputs in row 3 are outside"),
        ({"num_tokens": None}, "num_tokens goes with token ids"),
        ({"inputs": np.zeros((4, 2), np.float32)}, "num_tokens goes with token ids .* got 5 with float32 inputs"),
        ({"scale": (0.5,)}, "token ids have offset"),
        ({"offset": (0.0, 0.0)}, r"offset must be 1 finite number\(s\)"),
        ({"inputs": np.zeros((4, 2), np.int64)}, "inputs must be .* got int64"),
    ],
)
def test_wrong_token_ids_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokens(**changes)
