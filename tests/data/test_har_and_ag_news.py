"""UCI HAR (signals, clients are subjects) and AG News (token ids), from small files in their layout."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedcore.config import AgNewsData, ConfigError, HarData
from fedcore.data import sources
from fedcore.data.dataset import Dataset, load, save

CHANNELS = ["body_acc_x", "body_acc_y", "body_acc_z", "body_gyro_x", "body_gyro_y", "body_gyro_z"]
CHANNELS += ["total_acc_x", "total_acc_y", "total_acc_z"]


def write_har(root: Path, part: str, levels: list[float], **changes: Any) -> Path:
    """Write one window per level: in channel c it is `level` in its first half and `level + c` in its second."""
    columns: dict[str, Any] = {"subject": [30, 1, 30][: len(levels)], "label": [5, 0, 3][: len(levels)]}
    for channel, name in enumerate(CHANNELS):
        windows = [[level] * 64 + [level + channel] * 64 for level in levels]
        columns[name] = pa.array(windows, pa.list_(pa.float32(), 128))
    path = root / "har" / f"{part}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({**columns, **changes}), path)
    return path


def har(root: Path) -> Dataset:
    return sources.read(HarData(name="har", root=str(root)))


def test_windows_are_channels_by_samples_and_subjects_are_clients(tmp_path: Path) -> None:
    write_har(tmp_path, "train", [0.0, 2.0, 4.0])
    write_har(tmp_path, "test", [100.0])
    data = har(tmp_path)
    assert (data.inputs.shape, data.inputs.dtype, data.num_train_rows) == ((4, 9, 128), np.float32, 3)
    assert data.inputs[1, 8, 63:65].tolist() == [2, 10]
    assert data.class_names == ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
    assert data.labels.tolist() == [5, 0, 3, 5]
    assert data.clients is not None
    assert data.clients.tolist() == [29, 0, 29, 29]
    # By hand, over train rows only: levels 0, 2, 4 have mean 2 and variance 8 / 3; the second half adds c / 2 to the
    # mean and c^2 / 4 to the variance.
    np.testing.assert_allclose(data.offset, [2 + c / 2 for c in range(9)])
    np.testing.assert_allclose(data.scale, [(8 / 3 + c * c / 4) ** -0.5 for c in range(9)])


def test_signals_are_saved_and_loaded(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_har(tmp_path, part, [0.0, 1.0])
    data = har(tmp_path)
    save(data, tmp_path / "out")
    assert load(tmp_path / "out").content_hash == data.content_hash
    assert "num_tokens" not in (tmp_path / "out" / "meta.json").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subject": [1, 31]}, "subject 31 in row 1 is outside 1..30"),
        ({"label": [0, 6]}, "label 6 in row 1 is outside 0..5"),
        ({"subject": [1, None]}, "row 1 has no value in column 'subject'"),
        ({"label": [0.0, 1.0]}, "column 'label' must hold whole numbers, got double"),
        ({"total_acc_z": [1.0, 2.0]}, "column 'total_acc_z' must hold lists of 128 floats, got double"),
        ({"total_acc_z": [[1.0] * 128, [1.0] * 127]}, "row 1 of column 'total_acc_z' has 127 samples, expected 128"),
        ({"total_acc_z": [[1.0] * 128, [1.0] * 127 + [None]]}, "row 1 of column 'total_acc_z' holds a value that is"),
        ({"total_acc_z": [[1.0] * 128, None]}, "row 1 has no value in column 'total_acc_z'"),
    ],
)
def test_a_wrong_window_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_har(tmp_path, "train", [0.0, 1.0])
    path = write_har(tmp_path, "test", [0.0, 1.0], **changes)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {message}')}"):
        har(tmp_path)


def write_news(root: Path, part: str, texts: Any, labels: Any, size: int | str | None = 9) -> Path:
    table = pa.table({"tokens": pa.array(texts, pa.list_(pa.int32())), "label": pa.array(labels, pa.int8())})
    metadata = None if size is None else {"vocab_size": json.dumps(size)}
    path = root / "agnews" / f"{part}_tokens.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def ag_news(root: Path, max_length: int = 4) -> Dataset:
    return sources.read(AgNewsData(name="ag_news", root=str(root), max_length=max_length))


def test_texts_are_cut_and_filled(tmp_path: Path) -> None:
    write_news(tmp_path, "train", [[1, 2, 3, 4, 5], [0, 2], [6, 7]], [3, 0, 1])
    write_news(tmp_path, "test", [[8, 0, 8, 8]], [2])
    data = ag_news(tmp_path)
    assert data.inputs.dtype == np.int32
    assert data.inputs.tolist() == [[1, 2, 3, 4], [0, 2, 0, 0], [6, 7, 0, 0], [8, 0, 8, 8]]
    assert (data.labels.tolist(), data.num_train_rows, data.num_tokens) == ([3, 0, 1, 2], 3, 9)
    assert data.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert (data.offset, data.scale, data.clients) == ((0.0,), (1.0,), None)
    assert ag_news(tmp_path, 6).inputs[0].tolist() == [1, 2, 3, 4, 5, 0]


def test_the_vocabulary_is_stored_and_part_of_the_hash(tmp_path: Path) -> None:
    write_news(tmp_path, "train", [[1]], [0])
    write_news(tmp_path, "test", [[5]], [0])
    data = ag_news(tmp_path)
    save(data, tmp_path / "out")
    assert load(tmp_path / "out").num_tokens == 9
    write_news(tmp_path, "train", [[1]], [0], size=None)
    bare = ag_news(tmp_path)
    assert bare.num_tokens == 6
    assert bare.content_hash != data.content_hash


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        ([[1], [2, 9]], [0, 0], "token 9 in row 1 is outside 0..8, the vocabulary"),
        ([[1], [], [2, -1]], [0, 0, 0], "token -1 in row 2 is outside 0..8"),
        ([[1], [2, None]], [0, 0], "row 1 of column 'tokens' holds a null"),
        ([[1], None], [0, 0], "row 1 has no value in column 'tokens'"),
        ([[1], [2]], [0, 4], "label 4 in row 1 is outside 0..3"),
        ([[1], [], [2]], [0, 0, 0], "row 1 has no known token among its first 4; remove it"),
        ([[0, 0, 0, 0, 1]], [0], "row 0 has no known token among its first 4"),
        ([], [], "there are no rows"),
    ],
)
def test_a_wrong_text_is_named(tmp_path: Path, texts: Any, labels: Any, message: str) -> None:
    write_news(tmp_path, "train", [[1]], [0])
    path = write_news(tmp_path, "test", texts, labels)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {message}')}"):
        ag_news(tmp_path)


def test_a_wrong_size_of_the_vocabulary_is_named(tmp_path: Path) -> None:
    path = write_news(tmp_path, "train", [[1]], [0], size="many")
    write_news(tmp_path, "test", [[1]], [0])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: vocab_size .* >= 1, got 'many'"):
        ag_news(tmp_path)


TRAIN = ['3,"Oil (crude) falls","The oil; it\'s: ""down""."', '"1","Oil, oil","down!"']
TEST = ['"4","New oil?","NEW<br />chips"']


def write_texts(root: Path, name: str, lines: list[str]) -> Path:
    path = root / "agnews" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    return path


def test_texts_become_ids_of_a_vocabulary_of_the_train_rows(tmp_path: Path) -> None:
    write_texts(tmp_path, "train.csv", TRAIN)
    write_texts(tmp_path, "test.csv.gz", TEST)
    data = ag_news(tmp_path, 12)
    # Tokens by hand: "oil ( crude ) falls the oil it ' s down ." and "oil , oil down !". How often: oil 4, down 2, the
    # others once, and those by name: ! ' ( ) , . crude falls it s the.
    oil, down, mark, apostrophe, opening, closing, comma, stop, crude, falls, it, s, the = range(1, 14)
    assert data.inputs.tolist() == [
        [oil, opening, crude, closing, falls, the, oil, it, apostrophe, s, down, stop],
        [oil, comma, oil, down, mark, 0, 0, 0, 0, 0, 0, 0],
        # "new oil ? new chips": of these the train rows have oil alone.
        [0, oil, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert (data.labels.tolist(), data.num_train_rows, data.num_tokens) == ([2, 0, 3], 2, 14)
    assert ag_news(tmp_path, 3).inputs[0].tolist() == [oil, opening, crude]


def test_token_files_count_before_texts(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_news(tmp_path, part, [[5]], [0])
        write_texts(tmp_path, f"{part}.csv", TRAIN)
    assert ag_news(tmp_path).inputs.tolist() == [[5, 0, 0, 0]] * 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"5","a","b"', "row 1: class '5' is outside 1..4"),
        ('"","a","b"', "row 1: class '' is outside 1..4"),
        ('"1","oil"', "row 1 has 2 fields, expected class, title and description"),
        ('"1","never","seen"', "row 1 has no known token among its first 4; remove it"),
        ('"1","",""', "row 1 has no known token"),
        ('"1","oil","no end', "damaged or not CSV, not readable behind row 0 (unexpected end of data)"),
    ],
)
def test_a_wrong_text_row_is_named(tmp_path: Path, line: str, message: str) -> None:
    write_texts(tmp_path, "train.csv", TRAIN)
    path = write_texts(tmp_path, "test.csv", ['"4","oil",""', line])
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {message}')}") as caught:
        ag_news(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", gzip.compress(b'"1","a","b"\n' * 999, mtime=0)[:-20], b"no archive", b"\x1f\x8b\x08"]
)
def test_a_damaged_text_archive_is_named(tmp_path: Path, content: bytes) -> None:
    write_texts(tmp_path, "train.csv", TRAIN)
    path = write_texts(tmp_path, "test.csv.gz", TEST)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: (damaged|there are no rows)") as caught:
        ag_news(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_har(tmp_path, "train", [1.0])
    with pytest.raises(ConfigError, match=r"dataset\.root: files are missing; put test\.parquet into .*har, or point"):
        har(tmp_path)
    with pytest.raises(ConfigError, match=r"put train_tokens\.parquet and test_tokens\.parquet, or the official train"):
        ag_news(tmp_path)
