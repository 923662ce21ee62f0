"""The workloads are the ones other simulators were measured on; the figures are those of their description."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks import images
from benchmarks.engine import make_train
from benchmarks.images import Sources
from benchmarks.plan import plan_round
from benchmarks.work import count_work
from benchmarks.workloads import Workload, build
from tests.benchmarks.conftest import SOURCES


def test_w1_is_9000_examples_in_908_steps(whole: dict[str, Workload]) -> None:
    work = count_work(whole["w1"], make_train(whole["w1"]))
    assert (work.parameters, work.clients, work.cohort) == (582_026, 20, 20)
    assert (work.steps, work.longest, work.examples, work.tested) == (908, 137, 8_993, 3_007)
    assert (work.lanes, work.lane_steps) == (7, 7 * 137)
    sizes = whole["w1"].federation.num_examples
    assert (sizes.min(), sizes.max()) == (58, 1363)
    # Forwards: two operations per weight and place. Backwards: twice that, half of it in the first layer.
    first, others = 2 * 24 * 24 * 32 * 25, 2 * (8 * 8 * 64 * 32 * 25 + 1024 * 512 + 512 * 10)
    assert work.train_gflop == pytest.approx(8_993 * (2 * first + 3 * others) / 1e9)
    assert work.evaluate_gflop == pytest.approx(3_007 * (first + others) / 1e9)


def test_w2_is_6000_steps_of_ten_examples(whole: dict[str, Workload]) -> None:
    work = count_work(whole["w2"], make_train(whole["w2"]))
    assert (work.parameters, work.clients, work.cohort) == (610, 100, 10)
    assert (work.steps, work.longest, work.examples, work.tested) == (6_000, 600, 60_000, 3_000)
    # A product of 60 by 10, forwards and for the weight's gradient: 2 * 2 * 600 operations an example.
    assert work.train_gflop == pytest.approx(60_000 * 2_400 / 1e9)


def test_w3_is_750_steps_of_two_labels_each(whole: dict[str, Workload]) -> None:
    work = count_work(whole["w3"], make_train(whole["w3"]))
    assert (work.parameters, work.clients, work.cohort) == (159_010, 1_000, 50)
    assert (work.steps, work.longest, work.examples, work.tested) == (750, 15, 15_000, 10_000)
    federation = whole["w3"].federation
    assert set(federation.num_examples) == {60}
    # Two shards of 30 rows in the order of labels: two labels, and one more for a shard on a border.
    assert max((row > 0).sum() for row in federation.class_counts) <= 4
    assert np.median((federation.class_counts > 0).sum(1)) == 2


def test_a_scaled_workload_keeps_every_client(tiny: dict[str, Workload], whole: dict[str, Workload]) -> None:
    for name in ("w1", "w3"):
        small, large = tiny[name].federation, whole[name].federation
        scale = {"w1": 0.004, "w3": 0.05}[name]
        assert (small.num_examples == np.ceil(scale * large.num_examples)).all()
        assert (small.sizes("test") == np.ceil(scale * large.sizes("test"))).all()


def test_a_scale_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match="--scale: expected a number above 0 and at most 1, got 2"):
        build("w2", SOURCES, 2.0)


def test_the_plan_covers_every_example_once_an_epoch(whole: dict[str, Workload]) -> None:
    train = make_train(whole["w1"])
    plans = plan_round(train, whole["w1"].federation, seed=0, round=3)
    for plan in plans:
        rows = np.concatenate(plan.batches)
        assert (np.sort(rows) == np.arange(whole["w1"].federation.num_examples[plan.client])).all()
    assert sum(plan.share for plan in plans) == pytest.approx(1.0)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def official(folder: Path, rows: tuple[int, int] = (6, 4)) -> None:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count, first in (("train", rows[0], 0), ("t10k", rows[1], 100)):
        pixels = np.full((count, 28, 28), first) + np.arange(count)[:, None, None]
        (raw / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count)))


def test_official_files_are_read_packed_or_not(tmp_path: Path) -> None:
    official(tmp_path)
    data = images.read("mnist", Sources(tmp_path, tmp_path))
    assert data.inputs.shape == (10, 1, 28, 28)
    assert data.inputs[:, 0, 3, 5].tolist() == [0, 1, 2, 3, 4, 5, 100, 101, 102, 103]
    assert data.labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert data.num_train_rows == 6


def test_missing_files_name_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz: does not exist; .* --data random"):
        images.read("mnist", Sources(tmp_path, tmp_path))


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    official(tmp_path)
    path = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte: damaged, 11 bytes for an array \[4\]"):
        images.read("mnist", Sources(tmp_path, tmp_path))
