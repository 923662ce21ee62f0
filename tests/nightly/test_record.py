"""The record of a night says in one line, a table and a page what happened, also when the night was cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks import nightly
from tasks.nightly import Night


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def outcome(promoted: bool, challenger: str | None = "3", **more: Any) -> dict[str, Any]:
    decision = {"verdict": "promote" if promoted else "keep", "reasons": ["it is 0.0210 better", "another | reason"]}
    found = {"model": "trial-global", "challenger": challenger, "champion": "2", "promoted": promoted}
    return {**found, "decision": decision if challenger else None, **more}


def taken(*rejected: str) -> dict[str, Any]:
    batch = {"file": "a.csv", "rows": 12, "left_out": 2, "new_clients": ["east"]}
    wrong = [{"file": name, "reason": "label 'x' in row 3 is no class"} for name in rejected]
    return {"accepted": [batch], "rejected": wrong, "waiting": ["b.csv"], "rows": 12}


def drift(*drifted: str) -> dict[str, Any]:
    change = {
        "client": "north",
        "before": 40,
        "new": 30,
        "label_distance": 0.41,
        "feature": "feature 1",
        "stability_index": 0.5,
        "drifted": ["labels"],
        "judged": True,
    }
    return {"note": "30 new examples", "changes": [change] if drifted else [], "new_clients": [], "drifted": [*drifted]}


@pytest.mark.parametrize(
    ("outcomes", "status", "message"),
    [
        ([outcome(True)], "promoted", "trial-global: version 3 promoted over 2 (it is 0.0210 better)"),
        ([outcome(False)], "kept", "trial-global: version 2 kept, version 3 did not pass (it is 0.0210 better)"),
        ([outcome(False, None)], "unchanged", "trial-global: version 2 is champion, nothing challenges it"),
        ([], "unchanged", "nothing to promote"),
    ],
)
def test_the_end_in_a_word_and_a_line(outcomes: list[dict[str, Any]], status: str, message: str) -> None:
    night = Night("2027-01-31", "trial", promotion=outcomes)
    assert (night.status, night.message) == (status, message)


def test_a_failed_training_fails_the_night() -> None:
    night = Night("2027-01-31", "trial")
    night.note_training({"local-0": "exit code 1"}, ["fedavg-0", "fedavg-1"])
    assert night.status == "failed"
    assert night.message == (
        "nothing was promoted: 1 of 3 training runs failed (local-0); the others are done and kept;"
        " local-0: exit code 1"
    )
    assert night.training == {"fedavg-0": "done", "fedavg-1": "done", "local-0": "exit code 1"}


def test_rejected_files_and_drift_are_warnings() -> None:
    night = Night("2027-01-31", "trial", promotion=[outcome(True)])
    night.note_intake(taken("bad.csv"))
    night.note_drift(drift("north: labels", "a: x", "b: x", "c: x"), stop=False)
    assert night.status == "promoted"
    assert night.warnings == [
        "rejected bad.csv: label 'x' in row 3 is no class",
        "the data drifted for north, a, b and 1 more",
    ]
    assert night.message.endswith("2 warnings: rejected bad.csv: label 'x' in row 3 is no class")


def test_drift_may_stop_the_night() -> None:
    night = Night("2027-01-31", "trial")
    night.note_drift(drift("north: labels"), stop=True)
    assert night.errors == ["the data drifted for north; drift.on_drift is stop"]
    calm = Night("2027-01-31", "trial")
    calm.note_drift(drift(), stop=True)
    assert calm.errors == []


def test_the_report_is_written_for_people_and_machines() -> None:
    night = Night("2027-01-31", "trial", promotion=[outcome(True)])
    night.note_intake(taken("bad.csv"))
    night.note_drift(drift("north: labels"), stop=False)
    night.note_training({}, ["fedavg-0"])
    json_file, markdown_file = night.write()
    assert json.loads(json_file.read_text())["status"] == "promoted"
    page = markdown_file.read_text()
    for line in (
        "# Night 2027-01-31: promoted",
        "| a.csv | accepted | 12 | 2 left out, there already; new clients: east |",
        "| bad.csv | rejected |  | label 'x' in row 3 is no class |",
        "| b.csv | waiting |  | changed a moment ago |",
        "| north | 40 | 30 | 0.410 | feature 1 | 0.500 | labels |",
        "| fedavg-0 | done |",
        "- another \\| reason",
        "- trial-global: version 3 promoted over 2 (it is 0.0210 better)",
        "`make rollback` undoes the promotion.",
    ):
        assert line in page.splitlines()
    assert {"what": "train fedavg-0", "outcome": "done"} in night.table()
    told = {"what": "trial-global", "outcome": "version 3 promoted over 2 (it is 0.0210 better)"}
    assert told in night.table()


def test_the_reasons_of_three_failed_trainings_are_named() -> None:
    night = Night("2027-01-31", "trial")
    night.note_training({f"local-{seed}": f"reason {seed}" for seed in range(5)}, [])
    assert night.errors[1:] == ["local-0: reason 0", "local-1: reason 1", "local-2: reason 2"]
    assert "| local-4 | reason 4 |" in night.markdown()


def test_a_client_without_drift_says_so() -> None:
    night, quiet = Night("2027-01-31", "trial"), drift("north: labels")
    quiet["changes"] = [
        {**quiet["changes"][0], "drifted": []},
        {**quiet["changes"][0], "client": "east", "drifted": [], "judged": False},
    ]
    night.note_drift(quiet, stop=False)
    page = night.markdown().splitlines()
    assert "| north | 40 | 30 | 0.410 | feature 1 | 0.500 | no |" in page
    assert "| east | 40 | 30 | 0.410 | feature 1 | 0.500 | too few to say |" in page


def test_the_second_night_of_a_day_has_a_number() -> None:
    for expected in ("2027-01-31", "2027-01-31-2", "2027-01-31-3"):
        night = nightly.begin("2027-01-31")
        assert night.name == expected
        night.write()


@pytest.mark.parametrize("name", ["../x", "", "a b", ".hidden"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^night .*: use letters, digits"):
        nightly.begin(name)


def test_a_night_that_was_cut_off_is_found_as_it_was() -> None:
    assert nightly.cut_off() is None
    night = nightly.begin("2027-01-31", "run 7")
    night.note_intake(taken())
    night.enter("train fedavg-0")
    lost = nightly.cut_off()
    assert lost is not None
    assert (lost.name, lost.flow_run, lost.intake) == ("2027-01-31", "run 7", taken())
    assert lost.message == (
        "nothing was promoted: the night was cut off in the stage 'train fedavg-0': its process was killed or the"
        " machine stopped"
    )
    nightly.ended()
    assert nightly.cut_off() is None


def test_a_night_cut_off_while_promoting_says_that_it_may_have() -> None:
    nightly.begin("2027-01-31").enter("promotion")
    lost = nightly.cut_off()
    assert lost is not None
    assert lost.errors[0].endswith("; it may have promoted a model, `make models` tells")


def test_a_damaged_mark_is_forgotten() -> None:
    nightly.begin("2027-01-31").enter("beginning")
    nightly.RUNNING.write_text('{"name": 3, "unknown": 1}')
    assert nightly.cut_off() is None
    assert not nightly.RUNNING.exists()
