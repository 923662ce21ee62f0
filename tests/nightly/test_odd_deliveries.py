"""A delivery that cannot be looked at stays where it is and keeps no other from being taken in."""

from __future__ import annotations

import json
import os
import re
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedcore import config as settings
from fedcore.data.dataset import Dataset
from fedcore.data.sources import deliveries
from tasks.accepted import Ledger
from tasks.intake import Intake
from tests.nightly.conftest import Hospital, image_files
from tests.nightly.test_intake import take
from tests.pipeline.test_full_disk import full_disk


@pytest.mark.parametrize("pull", [None, "deliveries"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (os.fsdecode(b"m\xe4rz.csv"), "its name is not UTF-8; rename it"),
        ("m" * 240 + ".csv", "its name is 244 bytes long, at most 200 will do; rename it"),
        ("gone.csv", r"gone\.csv: it could not be read \(No such file or directory\)"),
        ("huge.csv", r"huge\.csv: it could not be read \(the memory does not suffice\)"),
    ],
)
def test_what_cannot_be_looked_at_stays_and_stops_nothing(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch, pull: str | None, name: str, reason: str
) -> None:
    hospital.incoming = settings.Incoming(quiet_seconds=0.0, pull=pull)
    folder = Path(pull or "data/incoming")
    hospital.write(folder / name, ["north"], 5)
    hospital.write(folder / "z.csv", ["north"], 7)
    content = (folder / name).read_bytes()
    if name == "gone.csv":
        (folder / name).rename("away.csv")
        (folder / name).symlink_to("nowhere.csv")
    read = deliveries.read

    def short_of_memory(source: settings.Dataset, data: Dataset, path: Path) -> Dataset:
        if path.name == "huge.csv":
            raise MemoryError
        return read(source, data, path)

    with monkeypatch.context() as patch:
        patch.setattr(deliveries, "read", short_of_memory)
        for night in range(2):
            taken = hospital.take_in()
            assert [batch.rows for batch in taken.accepted] == ([7] if night == 0 else [])
            (found,) = taken.rejected
            assert found["file"] == name.replace("\udce4", "\\udce4")
            assert re.search(f"{reason}; it stays where it is$", found["reason"])
            json.dumps(taken.as_dict(), ensure_ascii=False).encode()
            "\n".join(taken.lines()).encode()
    assert Ledger(hospital.source).rejections == []
    assert not Path("data/rejected").exists()
    # Mended, it comes: nothing was lost, nothing remembered.
    (folder / name).unlink()
    (folder / "right.csv").write_bytes(content)
    assert [batch.rows for batch in hospital.take_in().accepted] == [5]


def test_a_header_that_promises_more_than_there_is_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/incoming").mkdir(parents=True)
    base = Dataset("npz", np.zeros((2, 1), np.float32), np.array([0, 1]), ("0", "1"), (0.0,), (1.0,), 2)
    for wrong, number in (("labels", 0), ("inputs", 1)):
        with zipfile.ZipFile(f"data/incoming/{number}.npz", "w") as archive:
            for name, array in (("inputs", np.array([[1.0], [2.0]])), ("labels", np.array([0, 1]))):
                with archive.open(f"{name}.npy", "w") as file:
                    shape = (10**13, *array.shape[1:]) if name == wrong else array.shape
                    header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(file, header)
                    file.write(array.tobytes())
    np.savez("data/incoming/good.npz", inputs=[[3.0]], labels=[1])
    source = settings.NpzData(name="npz", files=["none.npz"])
    found = take(source, base)
    assert "array 'labels' of shape [10000000000000] takes 80000000000000 bytes, 16 are there" in found[0]
    assert "array 'inputs' of shape [10000000000000, 1] takes 80000000000000 bytes, 16 are there" in found[1]
    assert [batch.labels.tolist() for batch in Ledger(source).read()] == [[1]]


def test_a_folder_may_hold_names_that_are_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    image_files(Path("images"), {"cat": 3, "dog": 3})
    image_files(Path("data/incoming/one"), {os.fsdecode(b"k\xe4"): 2})
    source = settings.ImageFolderData(name="image_folder", root="images")
    (reason,) = take(source)
    assert "no class of the data set" in reason
    assert [line.reason for line in Ledger(source).rejections] == [reason]


@pytest.mark.parametrize(("ahead", "waits"), [(10.0, True), (4000.0, False)])
def test_a_time_in_the_future_waits_no_longer_than_one_that_is_past(
    hospital: Hospital, ahead: float, waits: bool
) -> None:
    hospital.incoming = settings.Incoming(quiet_seconds=600.0)
    hospital.arrive("tomorrow.csv", ["north"], 5)
    os.utime("data/incoming/tomorrow.csv", (time.time() + ahead,) * 2)
    taken = hospital.take_in()
    assert (taken.waiting, taken.rows) == ((["tomorrow.csv"], 0) if waits else ([], 5))


@pytest.mark.parametrize("pull", [None, "deliveries"])
def test_a_full_disk_rejects_nothing(hospital: Hospital, pull: str | None) -> None:
    """Good data stay where they are, are not remembered as wrong, and come once there is room."""
    hospital.incoming = settings.Incoming(quiet_seconds=0.0, pull=pull)
    arrived = Path(pull or "data/incoming") / "monday.csv"
    hospital.write(arrived, ["north"], 2000)
    intake = Intake(hospital.incoming, hospital.source, hospital.data())
    with full_disk(), pytest.raises(OSError, match=r"File too large|requested and"):
        intake.run()
    assert arrived.exists()
    assert not Path("data/rejected").exists()
    assert not Path("data/archive").exists()
    assert (Ledger(hospital.source).batches, Ledger(hospital.source).rejections) == ([], [])
    assert [(batch.file, batch.rows) for batch in hospital.take_in().accepted] == [("monday.csv", 2000)]
