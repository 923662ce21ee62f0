"""Tiny-ImageNet in parquet files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore.config import ConfigError, TinyImagenetData
from fedcore.data import sources
from tests.data.conftest import one_line
from tests.data.images import PLANES, PNGS, write_table


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
