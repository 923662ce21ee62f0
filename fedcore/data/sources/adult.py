"""UCI Adult (Census Income): a table of people with two protected attributes."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedcore.config import AdultData, nearest
from fedcore.data.dataset import Dataset
from fedcore.data.sources.download import missing

NUMBERS = {"age": 0, "education-num": 4, "capital-gain": 10, "capital-loss": 11, "hours-per-week": 12}
CATEGORIES = {
    "workclass": 1,
    "education": 3,
    "marital-status": 5,
    "occupation": 6,
    "relationship": 7,
    "native-country": 13,
}
RACE, SEX, INCOME = 8, 9, 14
FIELDS = 15
RACES = ("White", "Black")
OTHER_RACES = ("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Other")
SEXES = ("Male", "Female")
CLASSES = ("<=50K", ">50K")
PROTECTED = ("race_white", "sex_male")
UNKNOWN = "Unknown"


def read(config: AdultData) -> Dataset:
    """Return the people who are White or Black, [n, F] float32, in the order of the file: 30,940 x 93.

    The label says whether a person earns more than $50,000. ``protected`` holds (race is White, sex is Male). Neither
    of the two is a feature, nor is the census weight ``fnlwgt``. Five numbers come first, then six categories, each as
    indicators of all levels but the first (levels by name; a missing one, ``?``, is the level ``Unknown``). Every
    column is standardised.

    Differs from the protocol of LG-FedAvg (fair representations on Adult) in two things: columns are standardised
    with mean and deviation of all rows, not of the train rows, because the split is the partition's; and the halves
    themselves are the partition's ``test: 0.5``.

    Raises
    ------
    ConfigError
        When there is no file.
    ValueError
        One line naming file and line.
    """
    folder = Path(config.root) / "adult"
    parts = [list(_people(_find(folder, "adult.data")))]
    if config.test_file:
        parts.append(list(_people(_find(folder, "adult.test"))))
    people = [person for part in parts for person in part]
    if not people:
        raise ValueError(f"{folder / 'adult.data'}: nobody in it is {' or '.join(RACES)}")
    columns = [np.array([float(person[field]) for person in people]) for field in NUMBERS.values()]
    for field in CATEGORIES.values():
        values = np.array([UNKNOWN if person[field] == "?" else person[field] for person in people])
        columns += [(values == level).astype(np.float64) for level in np.unique(values)[1:]]
    table = np.stack(columns, axis=1)
    deviation = table.std(axis=0)
    inputs = ((table - table.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)
    return Dataset(
        name=config.name,
        inputs=inputs,
        labels=np.array([CLASSES.index(person[INCOME]) for person in people], np.int64),
        class_names=CLASSES,
        offset=(0.0,),
        scale=(1.0,),
        num_train_rows=len(parts[0]),
        protected=np.array([(p[RACE] == RACES[0], p[SEX] == SEXES[0]) for p in people], np.uint8),
        protected_names=PROTECTED,
    )


def _find(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise missing(f"; put {name} or {name}.gz into {folder}, or point dataset.root at a folder with adult/{name}")


def _people(path: Path) -> Iterator[list[str]]:
    """Yield the fields of everyone who is White or Black; the income without the dot that adult.test puts behind it."""
    lines = csv.reader(io.StringIO(_text(path), newline=""), skipinitialspace=True)
    try:
        for fields in lines:
            # adult.test begins with a line of comment; both files end with an empty line.
            if not any(fields) or fields[0].startswith("|"):
                continue
            fields = [field.strip() for field in fields]
            fields[-1] = fields[-1].removesuffix(".")
            _check(f"{path}: line {lines.line_num}", fields)
            if fields[RACE] in RACES:
                yield fields
    except csv.Error as error:
        raise ValueError(f"{path}: line {lines.line_num} is not readable ({error})") from None


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: damaged, not readable as text ({' '.join(str(error).split())})") from None


def _check(where: str, fields: list[str]) -> None:
    if len(fields) != FIELDS:
        raise ValueError(f"{where} has {len(fields)} fields, expected {FIELDS}")
    for name, field in NUMBERS.items():
        if not fields[field].removeprefix("-").isdecimal():
            raise ValueError(f"{where}: {name} must be a whole number, got '{fields[field]}'")
    closed = {"race": (RACE, RACES + OTHER_RACES), "sex": (SEX, SEXES), "income": (INCOME, CLASSES)}
    for name, (field, valid) in closed.items():
        if fields[field] not in valid:
            raise ValueError(f"{where}: {name} '{fields[field]}' does not exist{nearest(fields[field], valid)}")
