"""The steps `prepare` and `partition`, run as the command line does."""

from __future__ import annotations

import csv
import json
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedcore.data import dataset, partitions
from tasks import partition, prepare
from tasks.parameters import run_step

PARAMETERS = """\
experiment: trial
dataset: {name: synthetic, clients: 6, alpha: 0.5, beta: 0.5}
partition: {scheme: iid, clients: 5, unseen_clients: 1}
model: {name: mlp}
train: {rounds: 1}
methods: {fedavg: {}}
compare: {seeds: [0]}
"""
OUT, PICTURE = Path("data/partitions/trial.npz"), Path("data/partitions/trial.png")
FACTS, CLIENTS = Path("data/partitions/trial.json"), Path("data/partitions/trial.csv")


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run one step in an empty project folder."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMETERS)

    def run(main: Callable[[], None], *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["step", *arguments])
        run_step(main)

    return run


def run_prepare(step: Callable[..., None]) -> None:
    step(prepare.main, "--out", "data/datasets/synthetic")


def run_partition(step: Callable[..., None]) -> None:
    step(
        partition.main,
        *("--dataset", "data/datasets/synthetic", "--out", str(OUT), "--picture", str(PICTURE)),
        *("--statistics", str(FACTS), "--clients", str(CLIENTS)),
    )


def change(old: str, new: str) -> None:
    text = Path("params.yaml").read_text()
    assert old in text
    Path("params.yaml").write_text(text.replace(old, new))


def png_chunks(content: bytes) -> dict[bytes, bytes]:
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, position = {}, 8
    while position < len(content):
        (length,) = struct.unpack(">I", content[position : position + 4])
        kind, body = content[position + 4 : position + 8], content[position + 8 : position + 8 + length]
        assert struct.unpack(">I", content[position + 8 + length : position + 12 + length])[0] == zlib.crc32(
            kind + body
        )
        chunks[kind] = chunks.get(kind, b"") + body
        position += 12 + length
    return chunks


def test_the_steps_write_a_data_set_a_partition_and_its_picture(
    step: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    run_prepare(step)
    data = dataset.load("data/datasets/synthetic")
    assert data.name == "synthetic"
    run_partition(step)
    table = partitions.load(OUT)
    assert (table.num_clients, table.num_unseen, len(table.client)) == (4, 1, len(data))
    chunks = png_chunks(PICTURE.read_bytes())
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) > (200, 200)
    assert b"tEXt" not in chunks  # neither the drawing library's version nor a date
    assert f"iid, seed 0 ({table.content_hash[:12]}): 4 clients, 1 unseen" in capsys.readouterr().out
    assert sorted(path.name for path in OUT.parent.iterdir()) == ["trial.csv", "trial.json", "trial.npz", "trial.png"]


def test_the_statistics_are_those_of_the_partition(step: Callable[..., None]) -> None:
    run_prepare(step)
    run_partition(step)
    data, table = dataset.load("data/datasets/synthetic"), partitions.load(OUT)
    facts = json.loads(FACTS.read_text())
    assert (facts["content_hash"], facts["clients"], facts["unseen_clients"]) == (table.content_hash, 4, 1)
    with CLIENTS.open() as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    assert [(row["client"], row["unseen"]) for row in rows] == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1)]
    pooled = np.bincount(data.labels, minlength=10) / len(data)
    for client, row in enumerate(rows):
        mine = table.client == client
        for code, split in enumerate(("train", "test", "validation")):
            assert row[split] == np.count_nonzero(mine & (table.split == code))
        own = np.bincount(data.labels[mine], minlength=10)
        assert row["classes"] == np.count_nonzero(own)
        assert row["earth_movers_distance"] == pytest.approx(np.abs(own / own.sum() - pooled).sum(), abs=1e-6)
    sizes = sorted(row["train"] + row["validation"] + row["test"] for row in rows)
    assert facts["client_examples"] == {
        "min": sizes[0],
        "median": sizes[2],
        "mean": pytest.approx(len(data) / 5),
        "max": sizes[-1],
    }
    assert facts["examples"] == facts["train_examples"] + facts["validation_examples"] + facts["test_examples"]


def test_the_steps_are_reproducible(step: Callable[..., None]) -> None:
    def everything() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path("data").rglob("*") if path.is_file()}

    run_prepare(step)
    run_partition(step)
    before = everything()
    run_prepare(step)
    run_partition(step)
    assert everything() == before
    assert len(before) == 8


def test_an_impossible_partition_is_one_line_and_leaves_the_old_one(
    step: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    run_prepare(step)
    run_partition(step)
    before = [path.read_bytes() for path in (OUT, PICTURE, FACTS, CLIENTS)]
    change("unseen_clients: 1", "unseen_clients: 5")
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        run_partition(step)
    assert caught.value.code == 1
    captured = capsys.readouterr()
    assert captured.err == (
        "error: params.yaml:3: partition.unseen_clients: 5 of 5 clients unseen leaves none to train; use at most 4\n"
    )
    assert captured.out == ""
    assert [path.read_bytes() for path in (OUT, PICTURE, FACTS, CLIENTS)] == before
    assert len(list(OUT.parent.iterdir())) == 4


def test_prepare_shows_how_far_the_decoding_is(
    step: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedcore.data.sources.pixels.PROGRESS_ROWS", 2)
    for row in range(3):
        Path(f"mine/{row % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (row, 0, 0)).save(f"mine/{row % 2}/{row}.png")
    change("{name: synthetic, clients: 6, alpha: 0.5, beta: 0.5}", "{name: image_folder, root: mine}")
    step(prepare.main, "--out", "out")
    assert capsys.readouterr().out.splitlines() == [
        "decode: 3 of 3 images",
        "image_folder: 3 examples of shape 3 x 4 x 4, 2 classes -> out",
    ]
    assert dataset.load("out").labels.tolist() == [0, 0, 1]


def test_missing_files_are_one_line_and_leave_the_old_data_set(
    step: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    run_prepare(step)
    before = sorted(Path("data/datasets").rglob("*"))
    change(
        "{name: synthetic, clients: 6, alpha: 0.5, beta: 0.5}", "{name: fashion_mnist, root: nowhere, download: false}"
    )
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        run_prepare(step)
    assert caught.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: params.yaml:2: dataset.root: files are missing and dataset.download is false; put ")
    assert "into nowhere/FashionMNIST/raw" in error
    assert error.count("\n") == 1
    assert sorted(Path("data/datasets").rglob("*")) == before


def test_a_wrong_partition_file_is_one_line(step: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    run_prepare(step)
    change("{scheme: iid, clients: 5, unseen_clients: 1}", "{scheme: file, path: own.npz}")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run_partition(step)
    assert capsys.readouterr().err == "error: own.npz: does not exist\n"
    assert not OUT.exists()


def test_many_clients_are_drawn_as_an_even_sample(step: Callable[..., None]) -> None:
    change("clients: 5, unseen_clients: 1", "clients: 400, unseen_clients: 100")
    run_prepare(step)
    run_partition(step)
    width, height = struct.unpack(">II", png_chunks(PICTURE.read_bytes())[b"IHDR"][:8])
    assert width <= 16 * 120
    assert height <= 20 * 120
