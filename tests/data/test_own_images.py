"""The user's own images: a folder per class, or parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from fedcore.config import ConfigError, ImageFolderData, ParquetData
from fedcore.data import sources
from fedcore.data.dataset import Dataset
from tests.data.conftest import one_line
from tests.data.images import COLOURS, PLANES, PNGS, write_table


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
