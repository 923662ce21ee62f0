"""The user's own feature vectors in CSV and parquet files: roles of columns, and how a mistake reads."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedcore.config import ConfigError, CsvData, TableData
from fedcore.data import sources
from fedcore.data.dataset import Dataset
from fedcore.data.sources import own_tables

HEADER = "age,city,income,hospital,sex,label"
ROWS = ["20,Bonn,1.5,north,f,sick", "40,Ulm,1.5,south,m,well", "60,Bonn,1.5,north,m,sick"]
TABLE = {
    "age": [20.0, 40.0, 60.0],
    "hours": [1, 2, 3],
    "site": [7, 3, 7],
    "label": [2, 5, 2],
}


def write_csv(path: Path, *rows: str, header: str = HEADER) -> str:
    content = "".join(f"{line}\n" for line in [header, *rows]).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def read_csv(*files: str, **keys: Any) -> Dataset:
    return sources.read(CsvData(name="csv", files=list(files), **keys))


def read_table(path: Path, columns: dict[str, Any], **keys: Any) -> Dataset:
    pq.write_table(pa.table(columns), path)
    return sources.read(TableData(name="table", files=[str(path)], **keys))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_every_column_has_its_role(tmp_path: Path, name: str) -> None:
    file = write_csv(tmp_path / name, *ROWS)
    data = read_csv(file, client="hospital", protected=["sex"])
    np.testing.assert_array_equal(data.inputs, np.array([[20, 1.5], [40, 1.5], [60, 1.5]], np.float32))
    assert (data.class_names, data.labels.tolist()) == (("sick", "well"), [0, 1, 0])
    assert data.clients is not None
    assert data.clients.tolist() == [0, 1, 0]
    assert data.protected is not None
    assert (data.protected_names, data.protected.tolist()) == (("sex=m",), [[0], [1], [1]])
    # By hand: ages 20, 40, 60 have mean 40 and variance 800 / 3; a constant feature is only moved to 0.
    np.testing.assert_allclose(data.offset, [40, 1.5])
    np.testing.assert_allclose(data.scale, [(3 / 800) ** 0.5, 1.0])


def test_features_come_in_the_order_asked_for_and_test_rows_do_not_count_for_the_scale(tmp_path: Path) -> None:
    train, test = write_csv(tmp_path / "a.csv", *ROWS), write_csv(tmp_path / "b.csv", "99,X,9.5,west,f,well")
    data = read_csv(train, test_files=[test], features=["income", "age"], client="hospital")
    assert (len(data), data.num_train_rows) == (4, 3)
    assert data.inputs[3].tolist() == [9.5, 99]
    assert data.offset == (1.5, 40.0)
    assert data.clients is not None
    assert data.clients.tolist() == [0, 1, 0, 2]


def test_without_standardise_features_stay_as_they_are(tmp_path: Path) -> None:
    data = read_csv(write_csv(tmp_path / "a.csv", *ROWS), standardise=False)
    assert (data.offset, data.scale) == ((0.0,), (1.0,))
    assert data.clients is None


def test_another_delimiter_and_text_that_looks_like_numbers(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "a.csv", "1;007;b", "2;x;a", "3;7;b", header="v;who;label")
    data = read_csv(file, client="who", delimiter=";")
    assert data.clients is not None
    # 007 and 7 are two names here, because x makes them all names.
    assert data.clients.tolist() == [0, 1, 2]
    assert data.labels.tolist() == [1, 0, 1]


def test_whole_numbers_are_classes_and_clients_in_ascending_order(tmp_path: Path) -> None:
    data = read_table(tmp_path / "a.parquet", TABLE, client="site")
    assert (data.class_names, data.labels.tolist()) == (("2", "5"), [0, 1, 0])
    assert data.clients is not None
    assert (data.clients.tolist(), data.clients.dtype) == ([1, 0, 1], np.int32)
    assert data.inputs.tolist() == [[20, 1], [40, 2], [60, 3]]


@pytest.mark.parametrize(
    ("values", "name", "expected"),
    [
        ([0, 1, 1], "p", [[0], [1], [1]]),
        ([True, False, True], "p", [[1], [0], [1]]),
        ([1, 1, 1], "p", [[1], [1], [1]]),
        ([4, 9, 4], "p=9", [[0], [1], [0]]),
        (["b", "a", "b"], "p=b", [[1], [0], [1]]),
    ],
)
def test_protected_columns_hold_two_values(tmp_path: Path, values: list[Any], name: str, expected: list[Any]) -> None:
    data = read_table(tmp_path / "a.parquet", {**TABLE, "p": values}, protected=["p"])
    assert data.protected is not None
    assert (data.protected_names, data.protected.tolist()) == ((name,), expected)
    assert data.input_shape == (3,)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("nan,Bonn,1,north,f,sick", "column 'age' holds nan in row 3, expected a finite number"),
        ("1e39,Bonn,1,north,f,sick", "column 'age' holds 1e+39 in row 3, expected a finite number"),
        ("old,Bonn,1,north,f,sick", "column 'age' holds numbers, but 'old' in row 3; correct that, or list the"),
        (",Bonn,1,north,f,sick", "column 'age' holds numbers, but nothing in row 3; correct that"),
        ("1,Bonn,1,,f,sick", "column 'hospital' has no value in row 3, expected a whole number or a string"),
        ("1,Bonn,1,north,f, ", "column 'label' has no value in row 3, expected a whole number or a string"),
        ("1,Bonn,1,north,f,0.5", "column 'label' holds 0.5 in row 3, expected a whole number or a name"),
        ("1,Bonn,1,north,x,sick", "row 3 of protected column 'sex' holds 'x' beside 'f' and 'm'; expected two values"),
        ("1,Bonn,1,north,f", "not readable as CSV with ',' between fields (CSV parse error: Row #5: Expected 6"),
    ],
)
def test_a_wrong_value_is_named_with_its_row(tmp_path: Path, row: str, message: str) -> None:
    file = write_csv(tmp_path / "a.csv", *ROWS, row)
    with pytest.raises(ValueError, match=f"^{re.escape(file)}: ") as caught:
        read_csv(file, client="hospital", protected=["sex"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"label": "lable"}, "there is no column 'lable'; did you mean 'label'? Valid: age, city"),
        ({"client": "hopsital"}, "there is no column 'hopsital'; did you mean 'hospital'?"),
        ({"features": ["agee"]}, "there is no column 'agee'; did you mean 'age'?"),
        ({"features": ["city"]}, "column 'city' holds 'Bonn' in row 0, expected a number"),
    ],
)
def test_a_wrong_column_is_named(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    file = write_csv(tmp_path / "a.csv", *ROWS)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{file}: {message}')}"):
        read_csv(file, **keys)


def test_a_repeated_column_has_no_meaning(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "a.csv", "1,2,x", header="a,a,label")
    with pytest.raises(ValueError, match=r"a\.csv: there are 2 columns 'a', expected one"):
        read_csv(file)


@pytest.mark.parametrize("content", [b"", b"a,label\n", b"\xff\xfe,label\n1,2\n", b"label\nx\n"])
def test_a_file_without_usable_rows_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: ") as caught:
        read_csv(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", *ROWS)
    with pytest.raises(ConfigError, match=r"dataset\.files\.0: '.*trian\.csv' does not exist; did you mean 'train\.c"):
        read_csv(str(tmp_path / "trian.csv"))


def test_kinds_of_labels_must_agree_between_files(tmp_path: Path) -> None:
    one = write_csv(tmp_path / "a.csv", "1,x", header="v,label")
    two = write_csv(tmp_path / "b.csv", "1,3", header="v,label")
    with pytest.raises(ValueError, match=r"b\.csv: column 'label' holds whole numbers, in .*a\.csv strings"):
        read_csv(one, two)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": [1.0, None, 3.0]}, "column 'age' has no value in row 1, expected a number"),
        ({"age": [1.0, 2.0, float("inf")]}, "column 'age' holds inf in row 2, expected a finite number"),
        ({"label": [0.0, 1.0, 2.0]}, "column 'label' must hold whole numbers or strings, got double (0.0 in row 0)"),
        ({"label": [0, None, 1]}, "column 'label' has no value in row 1"),
        ({"site": [1, 2, None]}, "column 'site' has no value in row 2, expected a whole number or a string"),
        ({"site": [1.0, float("nan"), 2.0]}, "column 'site' has no value in row 1"),
        ({"label": [[1], [2], [3]]}, "column 'label' must hold whole numbers or strings, got list<"),
    ],
)
def test_a_wrong_parquet_column_is_named(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {message}')}"):
        read_table(path, {**TABLE, **columns}, client="site")


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"a\.parquet: damaged or not a parquet file"):
        sources.read(TableData(name="table", files=[str(tmp_path / "a.parquet")]))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a few rows at a time."""
    monkeypatch.setattr(own_tables, "_BATCH_BYTES", 80)
    monkeypatch.setattr(own_tables, "_BATCH_ROWS", 2)


@pytest.mark.usefixtures("small_batches")
def test_files_are_read_batch_by_batch_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{age},Bonn,{age / 8},h{age % 3},f,sick" for age in range(40)]
    file, folder = write_csv(tmp_path / "a.csv", *rows), tmp_path / "out"
    folder.mkdir()
    data = sources.read(CsvData(name="csv", files=[file], client="hospital"), folder=folder)
    assert isinstance(data.inputs, np.memmap)
    np.testing.assert_array_equal(data.inputs, [[age, age / 8] for age in range(40)])
    monkeypatch.undo()
    whole = read_csv(file, client="hospital")
    assert data.content_hash == whole.content_hash
    table = pa.table({"age": list(range(40)), "income": [age / 8 for age in range(40)], "label": ["sick"] * 40})
    pq.write_table(table, tmp_path / "a.parquet")
    monkeypatch.setattr(own_tables, "_BATCH_ROWS", 7)
    same = sources.read(TableData(name="table", files=[str(tmp_path / "a.parquet")]), folder=folder)
    np.testing.assert_array_equal(same.inputs, whole.inputs)
    # By hand: 0..39 has mean 19.5 and variance (40^2 - 1) / 12.
    np.testing.assert_allclose((same.offset[0], same.scale[0]), (19.5, (12 / 1599) ** 0.5))


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    ("row", "keys", "message"),
    [
        ("x,Bonn,1,north,f,sick", {}, "column 'age' holds numbers, but 'x' in row 9; correct that"),
        ("x,Bonn,1,north,f,sick", {"features": ["age"]}, "column 'age' holds 'x' in row 9, expected a number"),
        ("inf,Bonn,1,north,f,sick", {}, "column 'age' holds inf in row 9, expected a finite number"),
        ("1,12,1,north,f,sick", {}, "column 'city' holds numbers, but 'Bonn' in row 0; correct that"),
        ("1,Bonn,1,,f,sick", {"client": "hospital"}, "column 'hospital' has no value in row 9"),
    ],
)
def test_a_wrong_value_far_down_is_named_with_its_row(
    tmp_path: Path, row: str, keys: dict[str, Any], message: str
) -> None:
    file = write_csv(tmp_path / "a.csv", *ROWS * 3, row, *ROWS)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{file}: {message}')}"):
        read_csv(file, **keys)


@pytest.mark.usefixtures("small_batches")
def test_a_missing_value_far_down_a_parquet_file_is_named_with_its_row(tmp_path: Path) -> None:
    columns = {"age": [1.0] * 6 + [None, 2.0], "label": [0, 1] * 4}
    with pytest.raises(ValueError, match=r"a\.parquet: column 'age' has no value in row 6, expected a number"):
        read_table(tmp_path / "a.parquet", columns)


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    file = Path(write_csv(tmp_path / "a.csv.gz", *[f"{n},Bonn,{n},h{n},f,sick" for n in range(3000)]))
    whole = file.read_bytes()
    for content in (whole[:-9], whole[: len(whole) // 2], b"", b"no archive"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.csv\.gz: not readable as CSV with ',' between fields") as caught:
            read_csv(str(file))
        assert "\n" not in str(caught.value)
