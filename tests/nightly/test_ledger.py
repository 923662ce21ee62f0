"""What was taken in counts for the data set it came for, as long as it is as it was."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedcore.data.dataset import load
from tasks import prepare as prepare_step
from tasks.accepted import Ledger, sha256_of
from tasks.intake import Intake
from tests.nightly.conftest import Hospital

LEDGER = Path("data/accepted/csv/ledger.json")


def test_a_batch_that_was_withdrawn_counts_no_longer(hospital: Hospital) -> None:
    for day in ("monday", "tuesday"):
        hospital.arrive(f"{day}.csv", ["north"], 5)
    hospital.take_in()
    ledger = Ledger(hospital.source)
    ledger.withdraw(1, "labels were shuffled")
    assert hospital.data().inputs[60:, 0].tolist() == [66, 67, 68, 69, 70]
    assert Ledger(hospital.source).batches[0].withdrawn.startswith("labels were shuffled (20")
    for number in (1, 3):
        with pytest.raises(ValueError, match=rf"no batch {number} to withdraw\. Valid: 2$"):
            ledger.withdraw(number, "again")
    hospital.arrive("wednesday.csv", ["north"], 5)
    assert [batch.number for batch in hospital.take_in().accepted] == [3]


def test_the_ledger_refuses_another_meaning(hospital: Hospital) -> None:
    hospital.arrive("monday.csv", ["north"])
    hospital.take_in()
    changed = hospital.source.model_copy(update={"label": "outcome"})
    with pytest.raises(
        ValueError, match=r"were taken in with dataset\.label 'readmitted', now it is 'outcome'; change"
    ):
        Ledger(changed)
    Ledger(hospital.source.model_copy(update={"files": ["elsewhere.csv"], "standardise": False}))


OTHER = r"^data/accepted/csv: its batches \(1\) were taken in for other examples than the section `dataset` gives .*"


def prepare(hospital: Hospital, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the stage `prepare`; return how many rows it wrote."""
    monkeypatch.setattr(prepare_step, "read_config", lambda: SimpleNamespace(dataset=hospital.source))
    monkeypatch.setattr("sys.argv", ["prepare", "--out", "data/datasets/csv"])
    prepare_step.main()
    return len(np.load("data/datasets/csv/labels.npy", allow_pickle=False))


@pytest.mark.parametrize("adopted", [False, True])
def test_batches_are_not_added_to_another_data_set(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch, adopted: bool
) -> None:
    hospital.arrive("monday.csv", ["north"], 12)
    hospital.take_in()
    base = Path("data/accepted/csv/base.json")
    if adopted:  # a ledger of before there was such a file
        base.unlink()
    assert prepare(hospital, monkeypatch) == 60 + 12
    own = hospital.source
    hospital.write(Path("other.csv"), ["north", "south"], 40)
    hospital.source = own.model_copy(update={"files": ["other.csv"]})
    with pytest.raises(ValueError, match=OTHER) as caught:
        prepare(hospital, monkeypatch)
    assert "\n" not in str(caught.value)
    # The same examples from other files, scaled otherwise, some of them for testing, are the same data set.
    header, *lines = Path("visits.csv").read_text().splitlines()
    for name, part in (("a.csv", lines[:35]), ("b.csv", lines[35:])):
        Path(name).write_text("\n".join([header, *part]) + "\n")
    for changes in ({"files": ["a.csv", "b.csv"], "standardise": False}, {"files": ["a.csv"], "test_files": ["b.csv"]}):
        hospital.source = own.model_copy(update=changes)
        assert prepare(hospital, monkeypatch) == 60 + 12
    hospital.source = own.model_copy(update={"files": ["other.csv"]})
    base.unlink()
    assert prepare(hospital, monkeypatch) == 40 + 12


def test_without_a_batch_that_counts_the_data_set_may_change(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital.arrive("monday.csv", ["north"], 12)
    hospital.take_in()
    assert prepare(hospital, monkeypatch) == 60 + 12
    Ledger(hospital.source).withdraw(1, "not ours")
    # What was prepared holds the batch still.
    hospital.arrive("sunday.csv", ["north"], 3)
    Intake(hospital.incoming, hospital.source, load("data/datasets/csv")).run()
    assert prepare(hospital, monkeypatch) == 60 + 3
    Ledger(hospital.source).withdraw(2, "not ours either")
    hospital.write(Path("other.csv"), ["north", "south"], 40)
    hospital.source = hospital.source.model_copy(update={"files": ["other.csv"]})
    assert prepare(hospital, monkeypatch) == 40
    hospital.arrive("tuesday.csv", ["north"], 5)
    hospital.take_in()
    assert prepare(hospital, monkeypatch) == 40 + 5


def test_a_batch_that_was_changed_is_noticed(hospital: Hospital) -> None:
    hospital.arrive("monday.csv", ["north"])
    hospital.take_in()
    folder = Ledger(hospital.source).folder / Ledger(hospital.source).batches[0].folder
    labels = np.load(folder / "labels.npy", allow_pickle=False)
    np.save(folder / "labels.npy", 1 - labels, allow_pickle=False)
    with pytest.raises(ValueError, match="differ from the content hash"):
        hospital.data()


def test_a_damaged_ledger_is_one_line(hospital: Hospital) -> None:
    LEDGER.parent.mkdir(parents=True)
    LEDGER.write_text(json.dumps({"batches": [{"number": 1}], "rejections": [], "dataset": {}}))
    with pytest.raises(ValueError, match=r"ledger\.json: not a ledger of accepted batches") as caught:
        hospital.data()
    assert "\n" not in str(caught.value)


def test_the_hash_of_a_folder_tells_its_files_apart(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "x").write_text("1")
    (tmp_path / "b" / "x").write_text("1")
    (tmp_path / "c" / "y").write_text("1")
    assert sha256_of(tmp_path / "a") == sha256_of(tmp_path / "b") != sha256_of(tmp_path / "c")


# --- other kinds of data ---------------------------------------------------------------------------------------------
