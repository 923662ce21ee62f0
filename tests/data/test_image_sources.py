"""Sources of encoded images: CIFAR, Tiny-ImageNet, the user's own."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedcore.config import (
    Cifar10Data,
    Cifar100Data,
    ConfigError,
    ImageFolderData,
    MnistData,
    ParquetData,
    TinyImagenetData,
)
from fedcore.data import sources
from fedcore.data.dataset import Dataset
from fedcore.data.sources import Progress, cifar, pixels
from tests.data.conftest import FileServer, IdxFiles

COLOURS = np.arange(7 * 32 * 32 * 3, dtype=np.int64).reshape(7, 32, 32, 3) * 37 % 251
COLOURS = COLOURS.astype(np.uint8)  # [7, H, W, 3]
PLANES = COLOURS.transpose(0, 3, 1, 2)


def encoded(array: np.ndarray, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, kind)
    return stream.getvalue()


def write_table(
    path: Path,
    images: Sequence[bytes | None],
    metadata: dict[str, str] | None = None,
    image: str = "image",
    plain: bool = False,
    **labels: Any,
) -> Path:
    """Write a parquet file as hubs do: a struct of bytes and path, columns of labels, names in the metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [None if content is None else {"bytes": content, "path": "x.png"} for content in images]
    column = pa.array(list(images), pa.binary()) if plain else pa.array(rows, kind)
    columns = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in labels.items()}
    table = pa.table({image: column, **columns})
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=3)
    return path


def one_line(call: Callable[[], object], start: str, *parts: str, error: type[ValueError] = ValueError) -> str:
    with pytest.raises(error, match=f"^{re.escape(start)}") as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in parts if part not in message] == []
    return message


PNGS = [encoded(array) for array in COLOURS]
TEN = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NAMES = {"class_names": json.dumps(TEN)}


def cifar10(root: Path, **options: Any) -> Dataset:
    return sources.read(Cifar10Data(name="cifar10", root=str(root), **{"download": False, **options}))


def cifar100(root: Path, **options: Any) -> Dataset:
    return sources.read(Cifar100Data(name="cifar100", root=str(root), download=False, **options))


def tables(root: Path, labels: Sequence[int] = (3, 0, 9, 1, 2), **options: Any) -> Path:
    write_table(root / "cifar10" / "train.parquet", PNGS[:5], NAMES, label=list(labels), **options)
    write_table(root / "cifar10" / "test.parquet", PNGS[5:], NAMES, label=[7, 8], **options)
    return root


# --- CIFAR, parquet --------------------------------------------------------------------------------------------------


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


def test_mnist_can_be_normalised_officially_too(tmp_path: Path, idx_files: IdxFiles) -> None:
    idx_files.write(tmp_path / "MNIST" / "raw")
    data = sources.read(MnistData(name="mnist", root=str(tmp_path), download=False, normalise="official"))
    assert (255 * 0.4388 - data.offset[0]) * data.scale[0] == pytest.approx(1)  # 0.1307 + 0.3081


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


# --- CIFAR, the official binary version ------------------------------------------------------------------------------


def records(labels: Sequence[Sequence[int]], planes: np.ndarray) -> bytes:
    return b"".join(bytes(label) + plane.tobytes() for label, plane in zip(labels, planes, strict=True))


def binary10() -> dict[str, bytes]:
    labels = {f"data_batch_{k + 1}.bin": k for k in range(5)}
    files = {name: records([[9 - k]], PLANES[k : k + 1]) for name, k in labels.items()}
    names = "\n".join(TEN).encode() + b"\n\n"
    return {**files, "test_batch.bin": records([[4], [0]], PLANES[5:]), "batches.meta.txt": names}


def write_all(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in reversed(files.items()):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An archive of few rows, and its checksum where the official one stood."""
    content = packed(binary10())
    _pretend(monkeypatch, content)
    return content


def _pretend(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    from dataclasses import replace

    binary = replace(cifar.CIFAR_10.binary, md5=hashlib.md5(content).hexdigest())
    monkeypatch.setattr(cifar, "CIFAR_10", replace(cifar.CIFAR_10, binary=binary))


def assert_is_binary10(data: Dataset) -> None:
    np.testing.assert_array_equal(data.inputs, PLANES)
    assert data.labels.tolist() == [9, 8, 7, 6, 5, 4, 0]
    assert (data.num_train_rows, data.class_names) == (5, TEN)


def test_the_unpacked_binary_version_is_read(tmp_path: Path) -> None:
    write_all(tmp_path / "cifar-10-batches-bin", binary10())
    assert_is_binary10(cifar10(tmp_path))


def test_the_archive_is_read_where_it_lies(tmp_path: Path, archive: bytes) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(archive)
    tmp_path.chmod(0o555)
    assert_is_binary10(cifar10(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-binary.tar.gz"]


def test_parquet_files_come_first(tmp_path: Path) -> None:
    write_all(tmp_path / "cifar-10-batches-bin", binary10())
    assert cifar10(tables(tmp_path)).labels.tolist() == [3, 0, 9, 1, 2, 7, 8]


def test_binary_cifar100_has_the_coarse_label_first(tmp_path: Path) -> None:
    files = {
        "train.bin": records([[19, 99], [0, 1], [5, 50]], PLANES[:3]),
        "test.bin": records([[2, 3]], PLANES[3:4]),
        "fine_label_names.txt": "\n".join(f"f{k}" for k in range(100)).encode(),
        "coarse_label_names.txt": "\n".join(f"c{k}" for k in range(20)).encode(),
    }
    write_all(tmp_path / "cifar-100-binary", files)
    fine, coarse = cifar100(tmp_path), cifar100(tmp_path, labels="coarse")
    assert (fine.labels.tolist(), fine.class_names[99], fine.num_train_rows) == ([99, 1, 50, 3], "f99", 3)
    assert (coarse.labels.tolist(), coarse.class_names[19]) == ([19, 0, 5, 2], "c19")
    np.testing.assert_array_equal(fine.inputs, PLANES[:4])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("data_batch_3.bin", lambda b: b[:-1], "damaged, 3,072 bytes are not whole records of 3,073"),
        ("data_batch_3.bin", lambda b: b"", "damaged, 0 bytes"),
        ("test_batch.bin", lambda b: b[:3073] + b"\x0a" + b[3074:], "label 10 in row 1 is outside 0..9"),
        ("batches.meta.txt", lambda b: b"plane\n", "1 class names, expected 10"),
    ],
)
def test_a_damaged_binary_file_is_named(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    files = binary10()
    folder = write_all(tmp_path / "cifar-10-batches-bin", {**files, name: change(files[name])})
    one_line(lambda: cifar10(tmp_path), f"{folder / name}: {message}")


def test_missing_binary_files_are_named(tmp_path: Path) -> None:
    files = binary10()
    del files["data_batch_2.bin"], files["test_batch.bin"]
    folder = write_all(tmp_path / "cifar-10-batches-bin", files)
    start = f"dataset.root: files are missing; put data_batch_2.bin, test_batch.bin into {folder}"
    one_line(lambda: cifar10(tmp_path), start, error=ConfigError)


def test_an_archive_with_another_checksum_is_refused(tmp_path: Path, archive: bytes) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(archive[:-1])
    one_line(lambda: cifar10(tmp_path), f"{path}: damaged or not the official file", "official MD5")


def test_an_archive_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    for content, message in ((packed({"a": b"b"}), "does not hold data_batch_1.bin"), (b"<html>", "not readable")):
        path.write_bytes(content)
        _pretend(monkeypatch, content)
        one_line(lambda: cifar10(tmp_path), f"{path}: {message}")


def test_without_files_and_download_one_line_says_what_goes_where(tmp_path: Path) -> None:
    one_line(
        lambda: cifar10(tmp_path),
        "dataset.root: files are missing and dataset.download is false; put cifar-10-binary.tar.gz into"
        f" {tmp_path}, or point dataset.root at a folder with cifar10/train.parquet and cifar10/test.parquet",
        error=ConfigError,
    )


def test_the_archive_is_downloaded_into_root(
    tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    monkeypatch.setattr(cifar, "URL", server.url)
    server.files["cifar-10-binary.tar.gz"] = archive
    root = tmp_path / "new"
    assert_is_binary10(cifar10(root, download=True))
    assert_is_binary10(cifar10(root, download=True))
    assert server.requests == [("cifar-10-binary.tar.gz", "")]
    assert {path.name: path.read_bytes() for path in root.iterdir()} == {"cifar-10-binary.tar.gz": archive}


def test_a_failed_download_leaves_nothing_behind(
    tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch, server: FileServer, nowhere: str
) -> None:
    server.files["cifar-10-binary.tar.gz"] = archive[:-1]
    start = "dataset.root: files are missing and the download failed; put cifar-10-binary.tar.gz into"
    for url, reason in ((server.url, "came with MD5"), (nowhere, "Connection refused")):
        monkeypatch.setattr(cifar, "URL", url)
        one_line(lambda: cifar10(tmp_path, download=True), start, reason, error=ConfigError)
        assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_written_is_said_before_the_download(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file, not a folder")
    start = f"dataset.root: files are missing and {tmp_path / 'root'} cannot be written"
    one_line(lambda: cifar10(tmp_path / "root", download=True), start, error=ConfigError)


# --- Tiny-ImageNet ---------------------------------------------------------------------------------------------------


def test_tiny_imagenet_has_the_classes_that_its_files_name(tmp_path: Path) -> None:
    metadata = {"class_names": '["n1", "n2", "n3"]'}
    write_table(tmp_path / "some" / "train.parquet", PNGS[:4], metadata, label=[0, 1, 2, 0])
    write_table(tmp_path / "some" / "val.parquet", PNGS[4:], metadata, label=[1, 0, 0])
    data = sources.read(TinyImagenetData(name="tiny_imagenet", root=str(tmp_path), folder="some"))
    assert (data.class_names, data.num_train_rows, data.name) == (("n1", "n2", "n3"), 4, "tiny_imagenet")
    np.testing.assert_array_equal(data.inputs, PLANES)


def test_missing_tiny_imagenet_says_what_goes_where(tmp_path: Path) -> None:
    start = f"dataset.root: files are missing; put train.parquet and val.parquet into {tmp_path / 'tinyimagenet20'}"
    config = TinyImagenetData(name="tiny_imagenet", root=str(tmp_path))
    one_line(lambda: sources.read(config), start, error=ConfigError)


# --- the user's own images -------------------------------------------------------------------------------------------


def save(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


def folder(root: Path, **options: Any) -> Dataset:
    return sources.read(ImageFolderData(name="image_folder", root=str(root), **options))


def test_a_folder_per_class(tmp_path: Path) -> None:
    for name, row in (("dog/2.png", 0), ("dog/10.PNG", 1), ("cat/b.png", 2), ("cat/a.bmp", 3)):
        save(tmp_path / name, COLOURS[row])
    (tmp_path / "README.md").write_text("passed over")
    (tmp_path / "cat" / ".DS_Store").write_text("passed over")
    (tmp_path / ".cache").mkdir()
    data = folder(tmp_path)
    assert (data.class_names, data.labels.tolist(), data.num_train_rows) == (("cat", "dog"), [0, 0, 1, 1], 4)
    np.testing.assert_array_equal(data.inputs, PLANES[[3, 2, 1, 0]])
    grey = folder(tmp_path, channels=1)
    assert (grey.input_shape, grey.offset) == ((1, 32, 32), (127.5,))
    # ITU-R 601-2: a weighted sum of red, green and blue.
    expected = PLANES[[3, 2, 1, 0]].astype(float).transpose(0, 2, 3, 1) @ [0.299, 0.587, 0.114]
    assert np.abs(grey.inputs[:, 0] - expected).max() <= 1


def test_images_are_resized_on_request_only(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", np.full((20, 10, 3), 7, np.uint8))
    path = save(tmp_path / "a" / "2.png", np.repeat(np.array([[0], [100]], np.uint8), 6, axis=0))
    one_line(lambda: folder(tmp_path), f"{path}: the image is 12 x 1 pixels (height x width), the first one 20 x 10")
    data = folder(tmp_path, size=4)
    assert data.input_shape == (3, 4, 4)
    assert (data.inputs[0] == 7).all()
    # Twelve rows in four: each new row is a triangle-weighted mean of old ones, so the edge is soft.
    assert [int(row[0]) for row in data.inputs[1, 0]][::3] == [0, 100]
    assert 0 < data.inputs[1, 0, 1, 0] < 50 < data.inputs[1, 0, 2, 0] < 100


def test_a_folder_that_is_none_or_empty_is_refused(tmp_path: Path) -> None:
    start = f"dataset.root: {tmp_path / 'no'} is no folder; expected <root>/<class>/<image>"
    one_line(lambda: folder(tmp_path / "no"), start, error=ConfigError)
    one_line(lambda: folder(tmp_path), f"{tmp_path}: has no class folders")
    save(tmp_path / "a" / "1.png", COLOURS[0])
    (tmp_path / "b").mkdir()
    one_line(lambda: folder(tmp_path), f"{tmp_path / 'b'}: a class without images")


def test_a_folder_per_client_around_the_classes(tmp_path: Path) -> None:
    for name, row in (
        ("b/cat/1.png", 0),
        ("b/dog/1.png", 1),
        ("a/dog/1.png", 2),
        ("a/dog/2.png", 3),
        ("c/ant/1.png", 4),
    ):
        save(tmp_path / name, COLOURS[row])
    data = folder(tmp_path, clients=True)
    assert data.clients is not None
    assert (data.clients.tolist(), data.labels.tolist()) == ([0, 0, 1, 1, 2], [2, 2, 1, 2, 0])
    assert data.class_names == ("ant", "cat", "dog")
    np.testing.assert_array_equal(data.inputs, PLANES[[2, 3, 0, 1, 4]])
    (tmp_path / "d").mkdir()
    one_line(
        lambda: folder(tmp_path, clients=True), f"{tmp_path / 'd'}: has no class folders; expected <root>/<client>"
    )


def test_stray_files_are_named(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", COLOURS[0])
    for name in ("a/notes.txt", "a/inner.png/x.png", "stray.jpg"):
        path = save(tmp_path / name, COLOURS[1]) if name.endswith("g") else tmp_path / name
        if name == "a/notes.txt":
            path.write_text("")
        named = path.parent if "inner" in name else path
        reason = "lies in no class folder" if name == "stray.jpg" else "not an image; expected files ending in .bmp,"
        one_line(lambda named=named, reason=reason: folder(tmp_path), f"{named}: {reason}")
        path.unlink()
        if "inner" in name:
            path.parent.rmdir()
    (tmp_path / "a" / "2.png").write_bytes(PNGS[0][: len(PNGS[0]) // 2])
    one_line(lambda: folder(tmp_path), f"{tmp_path / 'a' / '2.png'}: not readable as an image (")


def parquet(*files: Path, **options: Any) -> Dataset:
    return sources.read(ParquetData(name="parquet", files=list(map(str, files)), **options))


def test_own_tables_with_other_column_names_and_string_labels(tmp_path: Path) -> None:
    one = write_table(tmp_path / "1.parquet", PNGS[:2], None, "photo", kind=["dog", "cat"])
    two = write_table(
        tmp_path / "2.parquet", PNGS[2:4], None, "photo", kind=pa.array(["ant", "dog"]).dictionary_encode()
    )
    test = write_table(tmp_path / "3.parquet", PNGS[4:], None, "photo", kind=["cat", "dog", "bee"])
    data = parquet(one, two, test_files=[str(test)], image="photo", label="kind")
    assert data.class_names == ("ant", "bee", "cat", "dog")
    assert (data.labels.tolist(), data.num_train_rows) == ([3, 2, 0, 3, 2, 3, 1], 4)
    np.testing.assert_array_equal(data.inputs, PLANES)
    assert parquet(one, image="photo", label="kind", size=8, channels=1).input_shape == (1, 8, 8)


def test_own_tables_with_numbers_have_as_many_classes_as_the_highest(tmp_path: Path) -> None:
    path = write_table(tmp_path / "1.parquet", PNGS[:4], label=pa.array([0, 3, 1, 2], pa.uint8()))
    assert parquet(path).class_names == ("0", "1", "2", "3")
    write_table(path, PNGS[:4], label=[0, 3, 1, 2**40])
    one_line(lambda: parquet(path), f"{path}: label {2**40} in row 3 is outside 0..3")


def test_a_class_without_rows_is_named(tmp_path: Path) -> None:
    one = write_table(tmp_path / "1.parquet", PNGS[:4], label=[0, 3, 1, 1])
    one_line(lambda: parquet(one), f"{one}: class 2 ('2') has no rows; labels are 0..3 without gaps")
    names = {"class_names": '["ant", "bee", "cat", "dog", "eel"]'}
    for number, labels in ((1, [0, 3]), (2, [1, 4])):
        write_table(tmp_path / f"{number}.parquet", PNGS[:2], names, label=labels)
    one_line(lambda: parquet(one, tmp_path / "2.parquet"), f"{one} and 1 more: class 2 ('cat') has no rows")


def test_images_of_clients_with_protected_attributes(tmp_path: Path) -> None:
    columns = {"label": [0, 1, 0, 1], "clinic": ["north", "south", "north", "east"], "sex": ["f", "m", "m", "f"]}
    path = write_table(tmp_path / "1.parquet", PNGS[:4], **columns)
    data = parquet(path, client="clinic", protected=["sex"])
    assert data.clients is not None
    assert data.protected is not None
    assert data.clients.tolist() == [0, 1, 0, 2]
    assert (data.protected_names, data.protected[:, 0].tolist()) == (("sex=m",), [0, 1, 1, 0])
    np.testing.assert_array_equal(data.inputs, PLANES[:4])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"client": "clinic"}, "column 'clinic' has no value in row 2, expected a whole number or a string"),
        ({"client": "clinc"}, "there is no column 'clinc'; did you mean 'clinic'?"),
        ({"protected": ["age"]}, "row 2 of protected column 'age' holds '9' beside '7' and '8'; expected two values"),
    ],
)
def test_a_wrong_role_is_named_before_any_image_is_decoded(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    path = write_table(tmp_path / "1.parquet", [b"no"] * 3, label=[0, 1, 0], clinic=["a", "b", None], age=[7, 8, 9])
    one_line(lambda: parquet(path, **keys), f"{path}: {message}")


def test_strings_in_one_table_and_numbers_in_another_are_refused(tmp_path: Path) -> None:
    one = write_table(tmp_path / "1.parquet", PNGS[:2], label=["dog", "cat"])
    two = write_table(tmp_path / "2.parquet", PNGS[:2], label=[0, 1])
    one_line(lambda: parquet(one, two), f"{two}: labels are numbers, in {one} strings")


def test_a_table_that_does_not_exist_is_named_with_the_nearest(tmp_path: Path) -> None:
    write_table(tmp_path / "train.parquet", PNGS[:2], label=[0, 1])
    path = tmp_path / "trian.parquet"
    one_line(
        lambda: parquet(tmp_path / "train.parquet", path),
        f"dataset.files.1: '{path}' does not exist; did you mean 'train.parquet'?",
        error=ConfigError,
    )
