"""Six nights in fast-forward, as `make night` plays them: promoted, kept, crashed, killed, and told of."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any
from urllib import request

import pytest

from experiments import night as player
from experiments.alerts import Inbox
from fedcore.config import Notify
from tasks.files import read_json
from tasks.nightly import Night
from tasks.notify import notify


def test_an_alert_is_kept() -> None:
    with Inbox() as inbox:
        assert notify(Night("2027-01-31", errors=["it broke"]), Notify(webhook="HOOK"), lambda _: inbox.url) == []
    assert [alert["errors"] for alert in inbox.alerts] == [["it broke"]]


def test_what_is_not_there_cannot_be_killed(tmp_path: Path) -> None:
    stage = player.Stage(tmp_path / "project", print, "")
    with pytest.raises(RuntimeError, match=r"^no process runs tasks\.train in "):
        stage.kill("tasks.train", within=0.3)
    with stage.start([sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"]) as other:
        stage.kill("http.server")
        assert other.wait() == 128 + signal.SIGKILL


def asked(stage: player.Stage, what: str) -> list[dict[str, Any]]:
    """Return all that the stage's Prefect server knows of a kind."""
    address = f"http://127.0.0.1:{stage.port}/api/{what}/filter"
    question = request.Request(address, b"{}", {"Content-Type": "application/json"})
    with request.build_opener(request.ProxyHandler({})).open(question, timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


@pytest.mark.slow
def test_six_nights(tmp_path: Path) -> None:
    lines: list[str] = []
    with Inbox() as inbox:
        stage = player.Stage(tmp_path / "project", lines.append, inbox.url)
        with stage.server():
            first, ordinary, shuffled, crashed, killed, after = player.play(stage)
            runs = {run["name"]: run for run in asked(stage, "flow_runs")}
            pages = {(one["flow_run_id"], one["key"]) for one in asked(stage, "artifacts")}
    assert (first["status"], first["errors"]) == ("unchanged", [])

    # (a) More data of the same kind: a better model.
    assert (ordinary["status"], ordinary["errors"], ordinary["intake"]["rows"]) == ("promoted", [], 350)
    # (b) Shuffled labels: kept, with the reason.
    assert shuffled["status"] == "kept"
    assert not any(outcome["promoted"] for outcome in shuffled["promotion"])
    assert all(outcome["decision"]["reasons"] for outcome in shuffled["promotion"] if outcome["challenger"])
    # (c) One method crashes and the trainer of another is killed: that one goes on, nothing is promoted.
    assert crashed["status"] == "failed"
    assert {run: state == "done" for run, state in crashed["training"].items()} == {
        "fedavg-0": True,
        "fedprox-0": True,
        "faulty-0": False,
    }
    assert crashed["training"]["faulty-0"] == "RuntimeError: this method crashes"
    assert crashed["promotion"] is None
    assert [alert["name"] for alert in inbox.alerts if alert["status"] == "failed"] == ["c-crash", "d-killed"]
    killed_trainer = [line for line in lines if "train fedavg-0" in line and "exited with -9" in line]
    assert any("Retry 1/1" in line for line in killed_trainer), "the trainer was not killed in time"
    # (d) The whole run is killed: the next night tells of it, and does its own work.
    assert killed["status"] == "failed"
    assert "was cut off in the stage 'train'" in killed["message"]
    assert after["errors"] == []
    assert after["warnings"][0].startswith("night d-killed did not come to its end")

    # Prefect's pages tell the same, each night's on its own run.
    assert {name: (run["state"]["name"], run["tags"]) for name, run in runs.items()} == {
        "night first": ("Completed", ["unchanged"]),
        "night a-ordinary": ("Completed", ["promoted"]),
        "night b-shuffled": ("Completed", ["kept"]),
        "night c-crash": ("Failed", ["failed"]),
        "night d-killed": ("Crashed", ["failed"]),
        "night e-after": ("CompletedWithWarnings", [after["status"]]),
    }
    assert pages == {(run["id"], key) for run in runs.values() for key in ("night", "night-report")}

    # What was tested on one night was never trained on another: splits are of the example alone.
    ledger = read_json(stage.folder / "data" / "accepted" / "npz" / "ledger.json")
    assert [batch["file"] for batch in ledger["batches"]] == ["ordinary.npz", "shuffled.npz", "later.npz", "last.npz"]
    assert [bool(batch["withdrawn"]) for batch in ledger["batches"]] == [False, True, False, False]
    for name in ("first", "a-ordinary", "b-shuffled", "c-crash", "d-killed", "e-after"):
        assert (stage.folder / "reports" / "nightly" / f"{name}.md").is_file()
