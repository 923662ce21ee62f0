"""CIFAR in parquet files, and with it what all tables of encoded images have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedcore.config import Cifar10Data, ConfigError
from fedcore.data import sources
from fedcore.data.sources import Progress, pixels
from tests.data.cifar import NAMES, TEN, cifar10, cifar100, tables
from tests.data.conftest import one_line
from tests.data.images import COLOURS, PLANES, PNGS, encoded, write_table


@pytest.mark.parametrize("options", [{}, {"image": "img"}, {"plain": True}])
def test_cifar_rows_are_train_then_test_with_names_from_the_metadata(tmp_path: Path, options: dict[str, Any]) -> None:
    data = cifar10(tables(tmp_path, **options))
    np.testing.assert_array_equal(data.inputs, PLANES)
    assert (data.inputs.dtype, data.labels.dtype) == (np.uint8, np.int64)
    assert data.labels.tolist() == [3, 0, 9, 1, 2, 7, 8]
    assert (data.name, data.num_train_rows, data.class_names) == ("cifar10", 5, TEN)
    assert (data.offset, data.scale) == ((127.5,) * 3, (1 / 127.5,) * 3)


def test_the_official_normalisation_is_per_channel(tmp_path: Path) -> None:
    data = cifar10(tables(tmp_path), normalise="official")
    # A pixel at the mean is 0; one a deviation above it is 1 (means and deviations of pixels in 0..1).
    means, above = np.array([0.4914, 0.4822, 0.4465]), np.array([0.4914 + 0.2470, 0.4822 + 0.2435, 0.4465 + 0.2616])
    np.testing.assert_allclose((255 * means - data.offset) * data.scale, 0, atol=1e-12)
    np.testing.assert_allclose((255 * above - data.offset) * data.scale, 1, rtol=1e-12)
    assert data.content_hash != cifar10(tmp_path).content_hash


def test_lossy_and_grey_images_are_decoded_as_rgb(tmp_path: Path) -> None:
    flat = np.full((32, 32), 90, np.uint8)
    images = [encoded(flat, "JPEG"), encoded(COLOURS[1]), encoded(np.stack([flat] * 3, 2), "WEBP")]
    write_table(tmp_path / "cifar10" / "train.parquet", images, NAMES, label=[0, 1, 2])
    write_table(tmp_path / "cifar10" / "test.parquet", PNGS[5:], NAMES, label=[7, 8])
    data = cifar10(tmp_path)
    assert np.abs(data.inputs[[0, 2]].astype(int) - 90).max() <= 2
    np.testing.assert_array_equal(data.inputs[1], PLANES[1])


def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    fine, coarse = [f"fine {k}" for k in range(100)], [f"coarse {k}" for k in range(20)]
    metadata = {"class_names": json.dumps(fine), "coarse_class_names": json.dumps(coarse)}
    folder = tmp_path / "cifar100"
    write_table(folder / "train.parquet", PNGS[:5], metadata, label=[99, 0, 50, 1, 2], coarse_label=[19, 0, 3, 4, 4])
    write_table(folder / "test.parquet", PNGS[5:], metadata, label=[7, 8], coarse_label=[6, 5])
    assert cifar100(tmp_path).labels.tolist() == [99, 0, 50, 1, 2, 7, 8]
    assert cifar100(tmp_path).class_names == tuple(fine)
    data = cifar100(tmp_path, labels="coarse")
    assert (data.labels.tolist(), data.class_names) == ([19, 0, 3, 4, 4, 6, 5], tuple(coarse))


def test_names_come_from_a_class_label_feature_or_are_numbers(tmp_path: Path) -> None:
    features = {"fine_label": {"names": [f"n{k}" for k in range(100)]}, "coarse_label": {"_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for part, rows in (("train", slice(0, 5)), ("test", slice(5, 7))):
        columns = {"fine_label": [9, 8, 7, 6, 5, 4, 3][rows], "coarse_label": [1, 2, 3, 4, 5, 6, 7][rows]}
        write_table(tmp_path / "cifar100" / f"{part}.parquet", PNGS[rows], metadata, "img", **columns)
    assert cifar100(tmp_path).class_names[99] == "n99"
    assert cifar100(tmp_path, labels="coarse").class_names == tuple(map(str, range(20)))


def test_progress_is_reported_every_so_many_rows_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "PROGRESS_ROWS", 3)
    seen: list[Progress] = []
    config = Cifar10Data(name="cifar10", root=str(tables(tmp_path)), download=False)
    sources.read(config, seen.append)
    assert seen == [Progress("decode", "images", done, 7) for done in (3, 6, 7)]


def test_decoded_images_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "_BLOCK", 3)
    config = Cifar10Data(name="cifar10", root=str(tables(tmp_path)), download=False)
    data = sources.read(config, folder=tmp_path)
    np.save(tmp_path / "expected.npy", PLANES)
    assert (tmp_path / "inputs.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert isinstance(data.inputs, np.memmap)
    assert data.content_hash == cifar10(tmp_path).content_hash


def test_a_label_out_of_range_is_found_before_any_image_is_decoded(tmp_path: Path) -> None:
    tables(tmp_path)
    path = write_table(tmp_path / "cifar10" / "test.parquet", [b"broken", b"too"], NAMES, label=[9, 10])
    one_line(lambda: cifar10(tmp_path), f"{path}: label 10 in row 1 is outside 0..9")
    write_table(path, [b"broken", b"too"], NAMES, label=[-1, 3])
    one_line(lambda: cifar10(tmp_path), f"{path}: label -1 in row 0 is outside 0..9")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (PNGS[0][: len(PNGS[0]) // 2], "row 4: not readable as an image (image file is truncated"),
        (b"no image", "row 4: not readable as an image (cannot identify image file"),
        (PNGS[0][:16] + b"\0\0\0\0" + PNGS[0][20:], "row 4: not readable as an image ("),
        (b"", "row 4: there is no image"),
        (None, "row 4: there is no image"),
        (
            encoded(COLOURS[0][:, :16]),
            "row 4: the image is 32 x 16 pixels (height x width), the first one 32 x 32 pixels",
        ),
        (encoded(np.full((32, 32), 999, np.uint16)), "row 4: the image has more than 8 bits per channel (mode I;16)"),
    ],
    ids=["truncated", "text", "damaged", "empty", "null", "size", "depth"],
)
def test_a_broken_image_is_named_by_file_and_row(tmp_path: Path, content: bytes | None, message: str) -> None:
    tables(tmp_path)
    path = write_table(tmp_path / "cifar10" / "train.parquet", [*PNGS[:4], content], NAMES, label=[0, 1, 2, 3, 4])
    one_line(lambda: cifar10(tmp_path), f"{path}: {message}")


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    path = tables(tmp_path) / "cifar10" / "test.parquet"
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:-20], whole[: len(whole) // 2], b"<html></html>"):
        path.write_bytes(content)
        one_line(lambda: cifar10(tmp_path), f"{path}: damaged or not a parquet file (")
    middle = bytearray(whole)
    middle[4:200] = bytes(196)  # the header of the first page
    path.write_bytes(middle)
    one_line(lambda: cifar10(tmp_path), f"{path}: damaged or not a parquet file (")


@pytest.mark.parametrize(
    ("columns", "metadata", "message"),
    [
        ({"labels": [1, 2]}, NAMES, "there is no column 'label'; did you mean 'labels'? Valid: image, labels"),
        ({"label": [1, None]}, NAMES, "row 1 has no label (column 'label')"),
        ({"label": [1.0, 2.0]}, NAMES, "column 'label' must hold whole numbers or strings, got double"),
        ({"label": pa.array([], pa.int64())}, NAMES, "there are no rows"),
        ({"label": [1, 2]}, {"class_names": '["a", "b"]'}, "its class names differ from those of"),
        ({"label": [1, 2]}, {"class_names": "[1, 2]"}, "the class names in the schema's metadata must be a list of"),
        ({"label": [1, 2]}, {"class_names": "[1"}, "the class names in the schema's metadata are not readable"),
        ({"label": [1, 2]}, {"huggingface": "[]"}, "the class names in the schema's metadata are not readable"),
        ({"image": [1, 2], "label": [1, 2]}, NAMES, "column 'image' must hold encoded images"),
    ],
)
def test_a_table_of_another_shape_is_named(
    tmp_path: Path, columns: dict[str, Any], metadata: dict[str, str], message: str
) -> None:
    path = tables(tmp_path) / "cifar10" / "test.parquet"
    if "image" in columns:
        pq.write_table(pa.table(columns), path)
    else:
        write_table(path, PNGS[5:] if len(next(iter(columns.values()))) else [], metadata, **columns)
    one_line(lambda: cifar10(tmp_path), f"{path}: {message}")


def test_the_wrong_number_of_class_names_is_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        metadata = {"class_names": '["a", "b"]'}
        path = write_table(tmp_path / "cifar10" / f"{part}.parquet", PNGS[:1], metadata, label=[0])
    one_line(lambda: cifar10(tmp_path), f"{path.with_stem('train')}: its metadata name 2 classes, expected 10")


def test_one_table_without_the_other_is_refused(tmp_path: Path) -> None:
    (tables(tmp_path) / "cifar10" / "test.parquet").unlink()
    one_line(
        lambda: cifar10(tmp_path),
        f"dataset.root: files are missing; put test.parquet into {tmp_path / 'cifar10'}",
        error=ConfigError,
    )
