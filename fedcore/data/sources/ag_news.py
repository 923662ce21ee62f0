"""AG News: the topics of news texts, from the official texts or from token ids."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from fedcore.config import AgNewsData
from fedcore.data.dataset import Dataset
from fedcore.data.sources.download import missing
from fedcore.data.sources.parquet_files import first_null, metadata, opened, pick, whole_numbers
from fedcore.data.sources.texts import NOTHING, Vocabulary, filled

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
FIELDS = 3  # class 1..4, title, description


def read(config: AgNewsData) -> Dataset:
    """Return the texts, [127600, max_length] int32: the train rows, then the test rows.

    Longer texts are cut at the end, shorter ones filled with id 0. Of what lies in ``agnews`` the first of these
    counts:

    - ``train_tokens.parquet`` and ``test_tokens.parquet`` with the columns ``tokens`` (lists of ids, each text as long
      as it is) and ``label`` (0..3). The size of the vocabulary is ``vocab_size`` in the metadata of the train file's
      schema; without it, the highest id of both files says.
    - the official ``train.csv`` and ``test.csv``, or ``.csv.gz``: class (1..4), title, description. Title and
      description are one text, cut by `texts.tokens`; the vocabulary is every token of the train rows. A token that
      only test rows have is id 0.

    Raises
    ------
    ConfigError
        When a file is missing.
    ValueError
        One line naming the file and the column or row; a row without a single known token is a mistake.
    """
    folder = Path(config.root) / "agnews"
    files = [folder / "train_tokens.parquet", folder / "test_tokens.parquet"]
    texts = [_find(folder, "train.csv"), _find(folder, "test.csv")]
    absent = [path.name for path in files if not path.is_file()]
    if not absent:
        parts, size = _of_ids(files, config.max_length)
    elif len(absent) == 2 and None not in texts:
        files = [path for path in texts if path is not None]
        parts, size = _of_texts(files, config.max_length)
    else:
        raise missing(
            f"; put {' and '.join(absent)}, or the official train.csv and test.csv (.gz or not), into {folder},"
            " or point dataset.root at a folder with agnews/"
        )
    for path, (inputs, _) in zip(files, parts, strict=True):
        empty = ~(inputs != NOTHING).any(axis=1)
        if empty.any():
            raise ValueError(
                f"{path}: row {int(empty.argmax())} has no known token among its first {config.max_length}; remove it"
            )
    return Dataset(
        name=config.name,
        inputs=np.concatenate([inputs for inputs, _ in parts]),
        labels=np.concatenate([labels for _, labels in parts]),
        class_names=CLASSES,
        offset=(0.0,),
        scale=(1.0,),
        num_train_rows=len(parts[0][1]),
        num_tokens=size,
    )


_Part = tuple[np.ndarray, np.ndarray]  # inputs and labels


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def _of_texts(files: list[Path], max_length: int) -> tuple[list[_Part], int]:
    vocabulary = Vocabulary()
    parts = []
    for path, numbered in zip(files, (vocabulary.learn, vocabulary.ids), strict=True):
        labels: list[int] = []
        inputs = numbered(_texts(path, labels), max_length)
        if not labels:
            raise ValueError(f"{path}: there are no rows")
        parts.append((inputs, np.array(labels, np.int64)))
    return parts, len(vocabulary)


def _texts(path: Path, labels: list[int]) -> Iterator[str]:
    """Yield the texts of a file; their labels are appended to `labels`."""
    row = 0
    try:
        with _opened(path) as file:
            for row, fields in enumerate(csv.reader(file, strict=True)):
                where = f"{path}: row {row}"
                if len(fields) != FIELDS:
                    raise ValueError(f"{where} has {len(fields)} fields, expected class, title and description")
                if fields[0] not in ("1", "2", "3", "4"):
                    raise ValueError(f"{where}: class '{fields[0]}' is outside 1..{len(CLASSES)}")
                labels.append(int(fields[0]) - 1)
                yield f"{fields[1]} {fields[2]}"
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: damaged or not CSV, not readable behind row {row} ({reason})") from None


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _of_ids(files: list[Path], max_length: int) -> tuple[list[_Part], int]:
    size = _vocabulary(files[0])
    parts = [_ids(path, max_length, size) for path in files]
    return parts, size or 1 + max(int(inputs.max()) for inputs, _ in parts)


def _vocabulary(path: Path) -> int | None:
    with opened(path) as file:
        size = metadata(path, file, "vocab_size")
    if size is not None and (type(size) is not int or size < 1):
        raise ValueError(f"{path}: vocab_size in the schema's metadata must be a whole number >= 1, got {size!r}")
    return size


def _ids(path: Path, max_length: int, size: int | None) -> _Part:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    with opened(path) as file:
        if file.metadata.num_rows == 0:
            raise ValueError(f"{path}: there are no rows")
        labels = whole_numbers(path, file, "label", 0, len(CLASSES) - 1)
        name = pick(path, file.schema_arrow.names, ("tokens",))
        column = file.read([name], use_threads=False)[name]
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
        raise ValueError(f"{path}: column 'tokens' must hold lists of whole numbers, got {kind}")
    if column.null_count:
        raise ValueError(f"{path}: row {first_null(column)} has no value in column 'tokens'")
    lengths = pc.list_value_length(column).to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    flat = pc.list_flatten(column)
    if flat.null_count:
        raise ValueError(f"{path}: row {rows[first_null(flat)]} of column 'tokens' holds a null")
    tokens = flat.to_numpy()
    wrong = np.flatnonzero((tokens < 0) | (tokens >= (size or np.iinfo(np.int32).max)))
    if len(wrong):
        expected = f"0..{size - 1}, the vocabulary" if size else "the whole numbers from 0 on"
        raise ValueError(f"{path}: token {tokens[wrong[0]]} in row {rows[wrong[0]]} is outside {expected}")
    return filled(tokens, lengths, max_length), labels
