"""SVHN in its official MATLAB files and FEMNIST in LEAF's layout, as small files made here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.config import ConfigError, FemnistData, SvhnData
from fedcore.data import sources
from fedcore.data.dataset import Dataset

PIXELS = np.random.Generator(np.random.PCG64(2)).integers(0, 256, (32, 32, 3, 3)).astype(np.uint8)
LABELS = np.array([[10], [1], [9]], np.uint8)


def write_svhn(root: Path, part: str, pixels: np.ndarray = PIXELS, labels: np.ndarray = LABELS) -> Path:
    from scipy.io import savemat

    path = root / "svhn" / f"{part}_32x32.mat"
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": pixels, "y": labels}, do_compression=True)
    return path


def svhn(root: Path) -> Dataset:
    return sources.read(SvhnData(name="svhn", root=str(root), download=False, normalise="official"))


def test_svhn_images_come_first_and_ten_is_the_digit_zero(tmp_path: Path) -> None:
    write_svhn(tmp_path, "train")
    write_svhn(tmp_path, "test", 255 - PIXELS[..., :2], LABELS[:2])
    data = svhn(tmp_path)
    assert (data.inputs.shape, data.num_train_rows) == ((5, 3, 32, 32), 3)
    assert data.inputs[2, 1, 7, 30] == PIXELS[7, 30, 1, 2]
    assert data.inputs[3, 2, 0, 5] == 255 - PIXELS[0, 5, 2, 0]
    assert (data.labels.tolist(), data.class_names[0]) == ([0, 1, 9, 0, 1], "0")
    np.testing.assert_allclose(data.offset, [111.6135, 113.169, 120.564])


@pytest.mark.parametrize(
    ("pixels", "labels", "message"),
    [
        (PIXELS / 255, LABELS, "X must be uint8 [32, 32, 3, n], got float64 [32, 32, 3, 3]"),
        (PIXELS, LABELS[:2], "y must be 3 whole numbers, got uint8 [2]"),
        (PIXELS, LABELS - 1, "label 0 in row 1 is outside 1..10"),
    ],
)
def test_a_wrong_svhn_array_is_named(tmp_path: Path, pixels: np.ndarray, labels: np.ndarray, message: str) -> None:
    write_svhn(tmp_path, "train")
    path = write_svhn(tmp_path, "test", pixels, labels)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {message}')}"):
        svhn(tmp_path)


def test_a_missing_or_damaged_svhn_file_is_named(tmp_path: Path) -> None:
    path = write_svhn(tmp_path, "train")
    with pytest.raises(ConfigError, match=r"dataset\.download is false; put test_32x32\.mat into .*svhn, or point"):
        svhn(tmp_path)
    write_svhn(tmp_path, "test")
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    for content in (b"", b"<html>", whole[:500], bytes(changed)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"train_32x32\.mat: damaged or not a MATLAB 5 file") as caught:
            svhn(tmp_path)
        assert "\n" not in str(caught.value)


def write_leaf(root: Path, name: str, writers: dict[str, tuple[list[Any], list[Any]]]) -> Path:
    path = root / "femnist" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": images, "y": labels} for user, (images, labels) in writers.items()}
    path.write_text(json.dumps({"users": list(data), "num_samples": [], "user_data": data}))
    return path


def image(level: float) -> list[float]:
    return [0.0, 1.0, level] + [1.0] * 781


def femnist(root: Path) -> Dataset:
    return sources.read(FemnistData(name="femnist", root=str(root)))


def test_writers_are_clients_and_keep_their_number_in_the_test_part(tmp_path: Path) -> None:
    write_leaf(tmp_path, "train/b.json", {"f9": ([image(0.2)], [61])})
    write_leaf(tmp_path, "train/a.json", {"f2": ([image(0.5), image(0.0)], [0, 10]), "f1": ([image(1.0)], [36])})
    write_leaf(tmp_path, "test/a.json", {"f1": ([image(0.25)], [9])})
    data = femnist(tmp_path)
    assert (data.inputs.shape, data.num_train_rows, data.num_classes) == ((5, 1, 28, 28), 4, 62)
    assert data.labels.tolist() == [0, 10, 36, 61, 9]
    assert [data.class_names[k] for k in (9, 10, 36, 61)] == ["9", "A", "a", "z"]
    assert data.clients is not None
    assert data.clients.tolist() == [0, 0, 1, 2, 1]
    # 0.5 * 255 = 127.5 is rounded to the even 128; paper is 255, ink 0.
    assert data.inputs[:, 0, 0, :3].tolist() == [[0, 255, 128], [0, 255, 0], [0, 255, 255], [0, 255, 51], [0, 255, 64]]
    assert data.inputs[0, 0, 27, 27] == 255


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([image(0.5), image(1.5)], [0, 1], "row 1 must be a list of 784 numbers 0..1"),
        ([image(0.5)[:-1]], [0], "row 0 must be a list of 784 numbers 0..1"),
        ([image(float("nan"))], [0], "row 0 must be a list of 784 numbers 0..1"),
        ([["x"] * 784], [0], "row 0 must be a list of 784 numbers 0..1"),
        ([image(0.5)], [62], "label 62 in row 0 is no whole number in 0..61"),
        ([image(0.5)], [1.0], "label 1.0 in row 0 is no whole number in 0..61"),
        ([image(0.5)], [1, 2], "has 1 images and 2 labels"),
    ],
)
def test_a_wrong_example_is_named_with_its_writer(
    tmp_path: Path, images: list[Any], labels: list[Any], message: str
) -> None:
    path = write_leaf(tmp_path, "train/a.json", {"f1": ([image(0.5)], [1]), "f2": (images, labels)})
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}: writer 'f2'") + ":? " + re.escape(message)):
        femnist(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"users": ["a"]}', '{"users": ["a"], "user_data": {"b": {}}}'])
def test_another_layout_is_refused(tmp_path: Path, content: str) -> None:
    path = write_leaf(tmp_path, "train/a.json", {})
    path.write_text(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: ") as caught:
        femnist(tmp_path)
    assert "\n" not in str(caught.value)


def test_without_files_or_images_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.root: files are missing; put LEAF's json files into .*train"):
        femnist(tmp_path)
    write_leaf(tmp_path, "train/a.json", {})
    with pytest.raises(ValueError, match="its files hold no images"):
        femnist(tmp_path)
