"""The user's own arrays in .npz files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.config import NpzData
from fedcore.data import sources
from fedcore.data.dataset import Dataset
from fedcore.data.sources import npz_blocks

VECTORS = {"inputs": np.array([[1.0, 4.0], [3.0, 4.0]]), "labels": np.array(["b", "a"])}
IMAGES = {"inputs": np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2), "labels": np.array([3, 1])}


def read(path: Path, arrays: dict[str, Any], **keys: Any) -> Dataset:
    np.savez(path, **arrays)
    return sources.read(NpzData(name="npz", files=[str(path)], **keys))


def test_feature_vectors_with_clients_and_protected_attributes(tmp_path: Path) -> None:
    extra = {"clients": np.array(["z", "y"]), "protected": np.array([[1, 0], [0, 0]])}
    data = read(tmp_path / "a.npz", {**VECTORS, **extra}, protected=["p", "q"])
    assert (data.inputs.dtype, data.inputs.tolist()) == (np.float32, [[1, 4], [3, 4]])
    assert (data.class_names, data.labels.tolist()) == (("a", "b"), [1, 0])
    assert (data.offset, data.scale) == ((2.0, 4.0), (1.0, 1.0))
    assert data.clients is not None
    assert data.clients.tolist() == [0, 1]
    assert data.protected is not None
    assert (data.protected_names, data.protected.tolist()) == (("p", "q"), [[1, 0], [0, 0]])


def test_images_stay_bytes_and_are_brought_to_one(tmp_path: Path) -> None:
    data = read(tmp_path / "a.npz", IMAGES, images=True)
    np.testing.assert_array_equal(data.inputs, IMAGES["inputs"])
    assert (data.offset, data.scale) == ((127.5,) * 3, (1 / 127.5,) * 3)
    assert (data.labels.tolist(), data.class_names, data.clients) == ([1, 0], ("1", "3"), None)


def test_test_files_follow_and_unnamed_attributes_get_names(tmp_path: Path) -> None:
    arrays = {**VECTORS, "protected": np.array([1, 0])}
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez(tmp_path / "b.npz", **{**arrays, "inputs": np.array([[9.0, 9.0], [8.0, 8.0]])})
    files = [str(tmp_path / name) for name in ("a.npz", "b.npz")]
    data = sources.read(NpzData(name="npz", files=files[:1], test_files=files[1:]))
    assert (len(data), data.num_train_rows, data.offset) == (4, 2, (2.0, 4.0))
    assert data.protected_names == ("protected_0",)


@pytest.mark.parametrize(
    ("arrays", "images", "message"),
    [
        ({**IMAGES, "inputs": IMAGES["inputs"] / 255}, True, "array 'inputs' must be images [n, C, H, W] uint8 with"),
        (
            IMAGES,
            False,
            "array 'inputs' must be feature vectors [n, F] of numbers, got uint8 [2, 3, 2, 2]; images need",
        ),
        ({"input": VECTORS["inputs"]}, False, "there is no array 'inputs'; did you mean 'input'?"),
        ({**VECTORS, "labels": np.array([0.0, np.nan])}, False, "array 'labels' must be [n] whole numbers or strings"),
        ({**VECTORS, "labels": np.arange(3)}, False, "array 'labels' must have 2 rows, one per input, got shape [3]"),
        (
            {**VECTORS, "inputs": np.array([[1, 2], [np.nan, 4]])},
            False,
            "array 'inputs' holds nan in row 1, column 0, expected a finite number",
        ),
        (
            {**VECTORS, "clients": np.array([0.0, np.nan])},
            False,
            "array 'clients' must be [n] whole numbers or strings, got float64 [2], NaN in row 1",
        ),
        ({**VECTORS, "protected": np.array([0, 2])}, False, "array 'protected' holds 2 in row 1, column 0, expected 0"),
        ({**VECTORS, "labels": np.array([1, None])}, False, "not readable as an .npz of plain arrays (Object arrays"),
    ],
)
def test_a_wrong_array_is_named(tmp_path: Path, arrays: dict[str, Any], images: bool, message: str) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {message}')}"):
        read(path, arrays, images=images)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **VECTORS)
    whole = path.read_bytes()
    single = tmp_path / "single.npy"
    np.save(single, VECTORS["inputs"])
    for content in (b"", whole[:-30], b"text", single.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.npz: not readable as an \.npz of plain arrays"):
            sources.read(NpzData(name="npz", files=[str(path)]))


@pytest.mark.parametrize("pack", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_inputs_are_read_block_by_block_into_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Any, order: Any
) -> None:
    monkeypatch.setattr(npz_blocks, "BLOCK_BYTES", 50)
    images = np.random.Generator(np.random.PCG64(1)).integers(0, 256, (11, 1, 4, 4)).astype(np.uint8)
    pack(tmp_path / "a.npz", inputs=np.asarray(images, order=order), labels=np.arange(11) % 2)
    data = sources.read(NpzData(name="npz", files=[str(tmp_path / "a.npz")], images=True), folder=tmp_path)
    assert isinstance(data.inputs, np.memmap)
    np.testing.assert_array_equal(data.inputs, images)


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int32, np.bool_])
def test_a_value_far_down_is_named_with_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(npz_blocks, "BLOCK_BYTES", 20)
    inputs = np.arange(20).reshape(10, 2).astype(kind)
    labels = np.arange(10)
    np.testing.assert_array_equal(read(tmp_path / "a.npz", {"inputs": inputs, "labels": labels}).inputs, inputs)
    if kind in (np.float64, np.float16):
        inputs[7, 1] = np.inf
        with pytest.raises(ValueError, match="array 'inputs' holds inf in row 7, column 1, expected a finite number"):
            read(tmp_path / "a.npz", {"inputs": inputs, "labels": labels})


def test_a_changed_byte_is_found_by_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, inputs=np.full((50, 4), 3.0, np.float32), labels=np.arange(50))
    content = bytearray(path.read_bytes())
    place = content.index(np.float32(3).tobytes() * 4) + 400
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz: not readable as an \.npz of plain arrays \(Bad CRC-32"):
        sources.read(NpzData(name="npz", files=[str(path)]))
