"""EMNIST in its official idx files and ImageNet in its official folders, as small files made here."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedcore.config import ConfigError, EmnistData, ImagenetData
from fedcore.data import sources
from fedcore.data.dataset import Dataset
from tests.data.conftest import FileServer, idx

NUMBERS = np.random.Generator(np.random.PCG64(4))
TRAIN, TEST = (NUMBERS.integers(0, 256, (n, 5, 5)).astype(np.uint8) for n in (4, 2))


def official(split: str, train: list[int], test: list[int]) -> dict[str, bytes]:
    """Return the files of a split as the official archive has them, packed, by name."""
    files = {}
    for part, images, labels in (("train", TRAIN, train), ("test", TEST, test)):
        # The official images are mirrored at their diagonal.
        files[f"emnist-{split}-{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(images.transpose(0, 2, 1)))
        files[f"emnist-{split}-{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(np.array(labels, np.uint8)))
    return files


def write(root: Path, files: dict[str, bytes]) -> Path:
    folder = root / "EMNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def emnist(root: Path, **keys: Any) -> Dataset:
    return sources.read(EmnistData(name="emnist", root=str(root), **{"download": False, **keys}))


def archive(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> bytes:
    """Return an archive of few images, and put its checksum where the official one stood."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as members:
        for name, content in files.items():
            members.writestr(f"gzip/{name}", content)
    monkeypatch.setattr("torchvision.datasets.EMNIST.md5", hashlib.md5(stream.getvalue()).hexdigest())
    return stream.getvalue()


@pytest.mark.parametrize("packed", [True, False])
def test_images_stand_upright(tmp_path: Path, packed: bool) -> None:
    files = official("balanced", [0, 46, 10, 36], [1, 35])
    if not packed:
        files = {name.removesuffix(".gz"): gzip.decompress(content) for name, content in files.items()}
    folder = write(tmp_path, files)
    folder.chmod(0o555)
    data = emnist(tmp_path)
    np.testing.assert_array_equal(data.inputs[:, 0], np.concatenate([TRAIN, TEST]))
    assert (data.labels.tolist(), data.num_train_rows, data.num_classes) == ([0, 46, 10, 36, 1, 35], 4, 47)
    # The official mapping: digits, upper case, and the lower-case letters that look different.
    assert "".join(data.class_names) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"


@pytest.mark.parametrize(
    ("split", "classes", "last"), [("byclass", 62, "z"), ("bymerge", 47, "t"), ("digits", 10, "9"), ("mnist", 10, "9")]
)
def test_every_split_has_its_classes(tmp_path: Path, split: str, classes: int, last: str) -> None:
    write(tmp_path, official(split, [0, 1, 2, classes - 1], [3, 4]))
    data = emnist(tmp_path, split=split)
    assert (data.num_classes, data.class_names[-1], data.labels[3]) == (classes, last, classes - 1)


def test_letters_begin_with_zero(tmp_path: Path) -> None:
    write(tmp_path, official("letters", [1, 26, 2, 3], [25, 1]))
    data = emnist(tmp_path, split="letters")
    assert (data.labels.tolist(), data.class_names[0], data.num_classes) == ([0, 25, 1, 2, 24, 0], "a", 26)


@pytest.mark.parametrize(("split", "label", "valid"), [("letters", 0, "1..26"), ("digits", 10, "0..9")])
def test_a_label_outside_the_classes_is_named(tmp_path: Path, split: str, label: int, valid: str) -> None:
    folder = write(tmp_path, official(split, [1, 2, 3, 4], [5, label]))
    path = folder / f"emnist-{split}-test-labels-idx1-ubyte"
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: label {label} in row 1 is outside {valid}')}$"):
        emnist(tmp_path, split=split)


@pytest.mark.parametrize("keep", [0, 10, -9])
def test_a_truncated_packed_file_is_named(tmp_path: Path, keep: int) -> None:
    files = official("digits", [1, 2, 3, 4], [5, 6])
    name = "emnist-digits-train-images-idx3-ubyte.gz"
    folder = write(tmp_path, {**files, name: files[name][:keep]})
    with pytest.raises(ValueError, match=rf"^{re.escape(str(folder))}/emnist-digits-train-.*: damaged") as caught:
        emnist(tmp_path, split="digits")
    assert "\n" not in str(caught.value)


def test_the_official_archive_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {**official("digits", [1, 2, 3, 4], [5, 6]), **official("letters", [1, 2, 3, 4], [5, 6])}
    folder = write(tmp_path, {"gzip.zip": archive(monkeypatch, files)})
    assert emnist(tmp_path, split="digits").labels.tolist() == [1, 2, 3, 4, 5, 6]
    assert [path.name for path in folder.iterdir()] == ["gzip.zip"]


def test_a_wrong_archive_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive(monkeypatch, official("digits", [1, 2, 3, 4], [5, 6]))
    folder = write(tmp_path, {"gzip.zip": content[:-1]})
    with pytest.raises(ValueError, match=r"gzip\.zip: damaged or not the official file \(.* MD5"):
        emnist(tmp_path, split="digits")
    write(tmp_path, {"gzip.zip": content})
    with pytest.raises(ValueError, match=rf"^{re.escape(str(folder / 'gzip.zip'))}: not readable \(.*letters-train"):
        emnist(tmp_path, split="letters")


def test_the_archive_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FileServer) -> None:
    server.files["gzip.zip"] = archive(monkeypatch, official("digits", [1, 2, 3, 4], [5, 6]))
    monkeypatch.setattr("torchvision.datasets.EMNIST.url", server.url + "gzip.zip")
    assert len(emnist(tmp_path, split="digits", download=True)) == 6
    assert [path.name for path in (tmp_path / "EMNIST" / "raw").iterdir()] == ["gzip.zip"]


def test_missing_emnist_says_what_goes_where(tmp_path: Path) -> None:
    files = official("digits", [1, 2, 3, 4], [5, 6])
    gone = "emnist-digits-test-labels-idx1-ubyte"
    folder = write(tmp_path, {name: content for name, content in files.items() if gone not in name})
    wanted = f"put gzip.zip, or {gone} (.gz or not), into {folder}, or point dataset.root at a folder with EMNIST/raw"
    with pytest.raises(ConfigError, match=re.escape(f"dataset.download is false; {wanted}") + "$"):
        emnist(tmp_path, split="digits")


# --- ImageNet --------------------------------------------------------------------------------------------------------


def save(path: Path, size: tuple[int, int], colour: tuple[int, int, int] | int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(path, "JPEG")
    return path


def imagenet(root: Path, **keys: Any) -> Dataset:
    return sources.read(ImagenetData(name="imagenet", root=str(root), **{"size": 8, **keys}))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Three classes; images of several sizes, one of them grey."""
    for place, size, colour in (
        ("train/n03/n03_1.JPEG", (20, 10), (200, 0, 0)),
        ("train/n01/n01_2.JPEG", (9, 30), (0, 200, 0)),
        ("train/n01/n01_1.JPEG", (8, 8), 77),
        ("train/n02/n02_1.JPEG", (50, 40), (0, 0, 200)),
        ("val/n01/v1.JPEG", (12, 12), (9, 9, 9)),
        ("val/n03/v2.JPEG", (12, 12), (90, 90, 90)),
    ):
        save(tmp_path / "imagenet" / place, size, colour)
    return tmp_path


def test_some_classes_are_resized(tree: Path) -> None:
    data = imagenet(tree, classes=2)
    assert (data.inputs.shape, data.class_names, data.num_train_rows) == ((3, 3, 8, 8), ("n01", "n02"), 3)
    assert data.labels.tolist() == [0, 0, 1]
    assert np.abs(data.inputs[0].astype(int) - 77).max() <= 2
    assert data.inputs.max(axis=(2, 3))[1:].argmax(axis=1).tolist() == [1, 2]


def test_classes_by_name_have_the_labels_of_their_order_and_test_rows_follow(tree: Path) -> None:
    data = imagenet(tree, classes=["n03", "n01"], test_folder="imagenet/val", normalise="official")
    assert (data.labels.tolist(), data.num_train_rows) == ([0, 1, 1, 0, 1], 3)
    assert (data.class_names, data.inputs[3:, 0, 0, 0].tolist()) == (("n03", "n01"), [90, 9])
    np.testing.assert_allclose(data.offset, [255 * mean for mean in (0.485, 0.456, 0.406)])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"classes": 4}, "dataset.classes: 4 classes are wanted, {train} has 3 folders"),
        ({"classes": ["n01", "n2"]}, "dataset.classes.1: {train} has no folder 'n2'; did you mean 'n02'?"),
        ({"classes": ["n01", "n01"]}, "dataset.classes: 'n01' is there twice"),
        ({"folder": "no"}, "dataset.root: files are missing; put ImageNet's class folders <wnid>/*.JPEG into"),
        ({"classes": 1, "test_folder": "no"}, "dataset.root: files are missing; put class folders <wnid>/*.JPEG into"),
    ],
)
def test_missing_classes_are_named(tree: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        imagenet(tree, **keys)
    assert str(caught.value).startswith(message.format(train=tree / "imagenet" / "train"))
    assert len(caught.value.problems) == 1


def test_a_class_without_images_and_a_broken_image_are_named(tree: Path) -> None:
    with pytest.raises(ValueError, match=r"val/n02: a class without images"):
        imagenet(tree, classes=3, test_folder="imagenet/val")
    path = tree / "imagenet" / "train" / "n02" / "n02_1.JPEG"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: not readable as an image"):
        imagenet(tree, classes=2)
