"""CIFAR in its official binary version: unpacked, in its archive, downloaded."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedcore.config import ConfigError
from fedcore.data.dataset import Dataset
from fedcore.data.sources import cifar
from tests.data.cifar import TEN, cifar10, cifar100, tables
from tests.data.conftest import FileServer, one_line
from tests.data.images import PLANES


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
