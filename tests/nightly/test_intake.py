"""New files are taken in whole or set aside with a reason; what is there already stays as it is."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from fedcore import config as settings
from fedcore.data import partitions, sources
from fedcore.data.dataset import Dataset
from tasks import accepted as accepted_module
from tasks.accepted import Ledger
from tasks.files import read_json
from tasks.intake import Intake
from tests.nightly.conftest import Hospital, image_files

LEDGER = Path("data/accepted/csv/ledger.json")


def reasons(hospital: Hospital) -> list[str]:
    return [one["reason"] for one in hospital.take_in().rejected]


def test_a_file_is_added_archived_and_entered_in_the_ledger(hospital: Hospital) -> None:
    hospital.arrive("monday.csv", ["north", "east"], 12)
    arrived = Path("data/incoming/monday.csv").read_bytes()
    taken = hospital.take_in()
    assert (taken.rows, taken.rejected, taken.waiting) == (12, [], [])
    assert not Path("data/incoming/monday.csv").exists()
    assert Path("data/archive/00001-monday.csv").read_bytes() == arrived
    line = read_json(LEDGER)["batches"][0]
    assert {key: line[key] for key in ("number", "file", "rows", "left_out", "new_clients")} == {
        "number": 1,
        "file": "monday.csv",
        "rows": 12,
        "left_out": 0,
        "new_clients": ["east"],
    }
    data = hospital.data()
    assert len(data) == 72
    assert data.client_names == ("north", "south", "east")
    assert data.inputs[60:, 0].tolist() == list(range(61, 73))
    assert data.clients is not None
    assert data.clients[60:64].tolist() == [0, 2, 0, 2]


def test_several_nights_keep_every_client_and_split(hospital: Hospital) -> None:
    """What was there is a prefix of what is there now; new clients, overlaps and a file that comes again included."""
    config = settings.StablePartition(scheme="stable", min_examples=5, validation=0.3)
    before = partitions.make(config, hospital.data())
    first = hospital.data().inputs.copy()
    monday: list[str] = []
    for night in range(4):
        lines = hospital.arrive(f"{9 - night}.csv", ["east", "north", f"new {night}"], 60)
        if night == 0:
            monday = lines
        else:
            hospital.put("again.csv", [*monday[:20], *lines[:5]])  # overlaps two earlier files
        hospital.take_in()
        data = hospital.data()
        table = partitions.make(config, data)
        np.testing.assert_array_equal(data.inputs[: len(first)], first)
        used = before.client >= 0
        np.testing.assert_array_equal(table.client[: len(first)][used], before.client[used])
        np.testing.assert_array_equal(table.split[: len(first)][used], before.split[used])
        assert table.num_clients == before.num_clients + (2 if night == 0 else 1)
        assert len(np.unique(data.inputs[:, 0])) == len(data), "an example is there twice"
        before, first = table, data.inputs.copy()
    assert len(first) == 60 + 4 * 60


def test_examples_that_are_there_already_are_left_out(hospital: Hospital) -> None:
    monday = hospital.arrive("monday.csv", ["north"], 10)
    hospital.take_in()
    new = hospital.arrive("tuesday.csv", ["north"], 4)
    hospital.put("tuesday.csv", [*monday[:6], *new, new[0]])
    assert [(batch.rows, batch.left_out) for batch in hospital.take_in().accepted] == [(4, 7)]
    hospital.put("wednesday.csv", [*reversed(monday)])
    assert reasons(hospital) == ["data/incoming/wednesday.csv: all of its 10 examples are there already"]


def test_duplicates_may_be_kept(hospital: Hospital) -> None:
    hospital.incoming = settings.Incoming(quiet_seconds=0.0, duplicates="keep")
    hospital.put("monday.csv", ["north,no,50,1.5"] * 5)
    assert hospital.take_in().rows == 5
    hospital.put("monday.csv", ["north,no,50,1.5"] * 5)
    assert "the same content came as 'monday.csv' on 20" in reasons(hospital)[0]


@pytest.mark.parametrize(
    ("name", "header", "lines", "reason"),
    [
        ("a.csv", "hospital,readmitted,age", ["north,no,5"], "there is no column 'dose'; did you mean|there is no"),
        ("a.csv", None, ["north,no,5,nan"], r"column 'dose' holds nan in row 0, expected a finite number"),
        ("a.csv", None, ["north,no,5,1", "north,no,6,"], r"column 'dose' has no value in row 1, expected a number"),
        ("a.csv", None, ["north,no,5,1", "north,nope,6,1"], "label 'nope' in row 1 is no class .* did you mean 'no'"),
        ("a.csv", None, ["north,no,5,1", ",no,6,1"], "column 'hospital' has no value in row 1"),
        ("a.csv", None, [], "there are no rows"),
        ("a.txt", None, ["north,no,5,1"], r"data set 'csv' takes files ending in \.csv or \.csv\.gz"),
    ],
)
def test_a_wrong_file_is_set_aside_with_the_reason(
    hospital: Hospital, name: str, header: str | None, lines: list[str], reason: str
) -> None:
    hospital.put(name, lines, *([] if header is None else [header]))
    hospital.arrive("right.csv", ["north"], 3)
    taken = hospital.take_in()
    assert [batch.file for batch in taken.accepted] == ["right.csv"]
    assert len(taken.rejected) == 1
    note = Path(f"data/rejected/{name}.reason.txt").read_text()
    assert note == taken.rejected[0]["reason"] + "\n"
    assert re.search(reason, note)
    assert note.count("\n") == 1
    assert Path("data/rejected", name).exists()
    assert not list(Path("data/incoming").iterdir())


def test_rejected_files_of_one_name_are_all_kept(hospital: Hospital) -> None:
    for row in ("x", "y"):
        hospital.put("bad.csv", [f"north,{row},1,1"])
        hospital.take_in()
    assert sorted(path.name for path in Path("data/rejected").iterdir()) == [
        "2-bad.csv",
        "2-bad.csv.reason.txt",
        "bad.csv",
        "bad.csv.reason.txt",
    ]


def test_columns_in_another_order_mean_the_same(hospital: Hospital) -> None:
    hospital.put("a.csv", ["1.5,99,yes,x,south"], "dose,age,readmitted,remark,hospital")
    hospital.take_in()
    data = hospital.data()
    assert data.inputs[60].tolist() == [99.0, 1.5]
    assert data.class_names[data.labels[60]] == "yes"


def test_a_file_that_is_still_being_written_waits(hospital: Hospital) -> None:
    hospital.incoming = settings.Incoming(quiet_seconds=600.0)
    hospital.arrive("fresh.csv", ["north"])
    hospital.arrive("old.csv", ["north"])
    os.utime("data/incoming/old.csv", (1, 1))
    hospital.arrive(".hidden.csv", ["north"])
    hospital.arrive("upload.csv.part", ["north"])
    taken = hospital.take_in()
    assert ([batch.file for batch in taken.accepted], taken.waiting, taken.rejected) == (["old.csv"], ["fresh.csv"], [])
    assert sorted(path.name for path in Path("data/incoming").iterdir()) == [
        ".hidden.csv",
        "fresh.csv",
        "upload.csv.part",
    ]


@pytest.mark.parametrize("where", ["save", "write_json", "move"])
def test_an_interruption_anywhere_is_made_good_by_the_next_run(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Killed while the batch is written, before the ledger's line, or before the file is archived."""
    hospital.arrive("monday.csv", ["east"], 8)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "save":
            patch.setattr("fedcore.data.dataset.save", killed)
        elif where == "write_json":
            patch.setattr(accepted_module, "write_json", killed)
        else:
            patch.setattr("shutil.move", killed)
        with pytest.raises(KeyboardInterrupt):
            hospital.take_in()
    assert len(hospital.data()) == (68 if where == "move" else 60)
    taken = hospital.take_in()
    assert taken.rejected == []
    assert len(hospital.data()) == 68
    assert [batch.number for batch in Ledger(hospital.source)] == [1]
    assert Path("data/archive/00001-monday.csv").exists()
    assert not list(Path("data/incoming").iterdir())


def test_a_pulled_folder_is_read_in_place_and_only_once(hospital: Hospital) -> None:
    """DVC owns that folder, and brings every file of it again every night."""
    hospital.incoming = settings.Incoming(quiet_seconds=0.0, pull="deliveries")
    with pytest.raises(ValueError, match=r"incoming\.pull: deliveries is no folder"):
        hospital.take_in()
    hospital.write(Path("deliveries/monday.csv"), ["north"], 5)
    Path("deliveries/bad.csv").write_text("nothing\n")
    hospital.arrive("own.csv", ["south"], 3)
    taken = hospital.take_in()
    assert [batch.file for batch in taken.accepted] == ["monday.csv", "own.csv"]
    assert [one["file"] for one in taken.rejected] == ["bad.csv"]
    hospital.write(Path("deliveries/tuesday.csv"), ["north"], 2)
    taken = hospital.take_in()
    assert [batch.file for batch in taken.accepted] == ["tuesday.csv"]
    assert taken.rejected == []
    assert sorted(path.name for path in Path("deliveries").iterdir()) == ["bad.csv", "monday.csv", "tuesday.csv"]
    assert not Path("data/rejected").exists()
    assert [(line["file"], line["reason"][:7]) for line in read_json(LEDGER)["rejections"]] == [("bad.csv", "deliver")]


def take(source: settings.Dataset, data: Dataset | None = None) -> list[str]:
    """Take in what has arrived for a source; return the reasons of what was rejected."""
    intake = Intake(settings.Incoming(quiet_seconds=0.0), source, data or sources.read(source))
    return [one["reason"] for one in intake.run().rejected]


def test_images_arrive_as_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    image_files(Path("images"), {"cat": 3, "dog": 3})
    image_files(Path("data/incoming/one"), {"dog": 2})
    image_files(Path("data/incoming/two"), {"cow": 2})
    image_files(Path("data/incoming/three"), {"cat": 4}, size=5)
    source = settings.ImageFolderData(name="image_folder", root="images")
    found = take(source)
    assert "label 'cow' in row 0 is no class" in found[1]
    assert "an example has shape [3, 5, 5], expected [3, 6, 6]" in found[0]
    (batch,) = Ledger(source).read()
    assert (batch.labels.tolist(), batch.class_names) == ([1, 1], ("cat", "dog"))


def test_arrays_arrive_for_a_set_that_ships_with_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/incoming").mkdir(parents=True)
    pixels = np.arange(128, dtype=np.uint8).reshape(2, 1, 8, 8) % 17
    np.savez("data/incoming/a.npz", inputs=pixels, labels=[7, 9])
    np.savez("data/incoming/b.npz", inputs=pixels + 1, labels=[7, 10])
    np.savez("data/incoming/c.npz", inputs=pixels + 2, labels=[7, 9], clients=[0, 1])
    source = settings.DigitsData(name="digits")
    found = take(source)
    assert "label '10' in row 1 is no class of the data set" in found[0]
    assert "it names clients, the data set has none" in found[1]
    (batch,) = Ledger(source).read()
    assert batch.labels.tolist() == [7, 9]
    assert (batch.offset, batch.scale) == ((8.0,), (0.125,))


def test_labels_may_be_numbers_where_the_classes_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/incoming").mkdir(parents=True)
    np.savez("data/incoming/a.npz", inputs=[[1.0]], labels=[1])
    np.savez("data/incoming/b.npz", inputs=[[2.0]], labels=["no"])
    base = Dataset("npz", np.zeros((2, 1), np.float32), np.array([0, 1]), ("no", "yes"), (0.0,), (1.0,), 2)
    source = settings.NpzData(name="npz", files=["none.npz"])
    assert take(source, base) == []
    assert [batch.labels.tolist() for batch in Ledger(source).read()] == [[1], [0]]
