"""UCI Adult: rows, features and protected attributes by the protocol of LG-FedAvg."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from fedcore.config import AdultData, ConfigError
from fedcore.data import sources
from fedcore.data.dataset import Dataset, load, save

# Four are White or Black. Fields as in the official file: age, workclass, fnlwgt, education, education-num,
# marital-status, occupation, relationship, race, sex, capital-gain, capital-loss, hours-per-week, native-country,
# income.
LINES = [
    "30, Private, 1, Bachelors, 13, Divorced, Sales, Husband, White, Male, 0, 0, 40, United-States, <=50K",
    "50, ?, 2, Masters, 14, Divorced, ?, Wife, Black, Female, 10, 0, 40, United-States, >50K",
    "99, Private, 3, Masters, 14, Divorced, Sales, Wife, Asian-Pac-Islander, Female, 9, 9, 9, Japan, >50K",
    "30, State-gov, 4, Bachelors, 13, Divorced, Sales, Husband, White, Female, 0, 0, 40, ?, <=50K",
    "50, Private, 5, Masters, 14, Divorced, Sales, Husband, Black, Male, 10, 0, 40, United-States, <=50K",
]
TEST = ["|1x3 Cross validator", LINES[1] + ".", LINES[2] + "."]


def write(root: Path, lines: list[str], name: str = "adult.data") -> Path:
    (root / "adult").mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in [*lines, ""]).encode()
    path = root / "adult" / name
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def adult(root: Path, test_file: bool = False) -> Dataset:
    return sources.read(AdultData(name="adult", root=str(root), test_file=test_file))


@pytest.mark.parametrize("name", ["adult.data", "adult.data.gz"])
def test_white_and_black_people_in_the_files_order(tmp_path: Path, name: str) -> None:
    write(tmp_path, LINES, name)
    data = adult(tmp_path)
    assert (len(data), data.num_train_rows, data.class_names) == (4, 4, ("<=50K", ">50K"))
    assert data.labels.tolist() == [0, 1, 0, 0]
    assert data.protected_names == ("race_white", "sex_male")
    assert data.protected is not None
    assert data.protected.tolist() == [[1, 1], [0, 0], [1, 0], [0, 1]]
    assert (data.offset, data.scale, data.clients) == ((0.0,), (1.0,), None)


def test_features_are_standardised_numbers_then_indicators_without_the_first_level(tmp_path: Path) -> None:
    write(tmp_path, LINES)
    r3 = 3**0.5
    # By hand: a column of two equal halves becomes -1 and 1; one with a single 1 in four has mean 1/4 and deviation
    # sqrt(3)/4, so it becomes sqrt(3) and -1/sqrt(3); a constant one becomes 0.
    half, second, third = [-1, 1, -1, 1], [-1 / r3, r3, -1 / r3, -1 / r3], [-1 / r3, -1 / r3, r3, -1 / r3]
    expected = {
        "age": half,
        "education-num": half,
        "capital-gain": half,
        "capital-loss": [0] * 4,
        "hours": [0] * 4,
        "workclass=State-gov": third,
        "workclass=Unknown": second,
        "education=Masters": half,
        "occupation=Unknown": second,
        "relationship=Wife": second,
        "native-country=Unknown": third,
    }
    data = adult(tmp_path)
    assert data.inputs.dtype == np.float32
    np.testing.assert_allclose(data.inputs, np.array(list(expected.values())).T, rtol=1e-6)


def test_the_weight_and_the_protected_attributes_are_no_features(tmp_path: Path) -> None:
    write(tmp_path / "one", LINES)
    swapped = [line.replace("White", "Black").replace("Female", "Male").replace(" 4,", " 44,") for line in LINES]
    write(tmp_path / "two", swapped)
    one, two = adult(tmp_path / "one"), adult(tmp_path / "two")
    np.testing.assert_array_equal(one.inputs, two.inputs)
    assert two.protected is not None
    assert two.protected[:, 0].tolist() == [0, 0, 0, 0]
    assert one.content_hash != two.content_hash


def test_the_test_file_follows_on_request(tmp_path: Path) -> None:
    write(tmp_path, LINES)
    write(tmp_path, TEST, "adult.test.gz")
    assert len(adult(tmp_path)) == 4
    data = adult(tmp_path, test_file=True)
    assert (len(data), data.num_train_rows, data.labels.tolist()) == (5, 4, [0, 1, 0, 0, 1])
    np.testing.assert_array_equal(data.inputs[4], data.inputs[1])


def test_it_is_saved_and_loaded_with_its_protected_attributes(tmp_path: Path) -> None:
    write(tmp_path, LINES)
    data = adult(tmp_path)
    save(data, tmp_path / "out")
    read = load(tmp_path / "out")
    assert read.protected is not None
    np.testing.assert_array_equal(read.protected, data.protected)
    assert (read.protected_names, read.content_hash) == (data.protected_names, data.content_hash)


@pytest.mark.parametrize("test_file", [False, True])
def test_missing_files_are_named(tmp_path: Path, test_file: bool) -> None:
    if test_file:
        write(tmp_path, LINES)
    name = "adult.test" if test_file else "adult.data"
    with pytest.raises(ConfigError) as caught:
        adult(tmp_path, test_file)
    expected = f"dataset.root: files are missing; put {name} or {name}.gz into {tmp_path / 'adult'}, or"
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (LINES[0].replace(", 40", ""), "line 6 has 14 fields, expected 15"),
        (LINES[0].replace("30,", "?,"), "line 6: age must be a whole number, got '?'"),
        (LINES[0].replace("Male", "Mal"), "line 6: sex 'Mal' does not exist; did you mean 'Male'?"),
        (LINES[0].replace("White", "Whit"), "line 6: race 'Whit' does not exist; did you mean 'White'?"),
        (LINES[0].replace("<=50K", "<50K"), "line 6: income '<50K' does not exist; did you mean '<=50K'?"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, [*LINES, line])
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: {message}')}"):
        adult(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, LINES, "adult.data.gz")
    whole = path.read_bytes()
    for content in (whole[:-9], b"", b"<html>", whole[:30] + b"\xff\xff\xff" + whole[33:]):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=f"^{re.escape(str(path))}: damaged, not readable as text|nobody"
        ) as caught:
            adult(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_file_without_anybody_is_refused(tmp_path: Path) -> None:
    write(tmp_path, LINES[2:3])
    with pytest.raises(ValueError, match=r"adult\.data: nobody in it is White or Black"):
        adult(tmp_path)
