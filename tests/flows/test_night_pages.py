"""A night's artifacts hang on its own run, and the run of a killed night is not shown as running for ever."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Self
from uuid import UUID

import httpx
import pytest
from prefect.client.schemas.actions import ArtifactCreate
from prefect.runtime import flow_run

from flows import night_pages as module
from tasks.nightly import Night

LOST, CURRENT = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


class Server:
    """Stands for the client of a Prefect server: notes what it is told, answers that a run has a state."""

    def __init__(self, is_final: bool = False, error: Exception | None = None):
        self.is_final, self.error = is_final, error
        self.artifacts: list[ArtifactCreate] = []
        self.states: list[tuple[str, str, str]] = []
        self.tags: list[str] = []

    def __enter__(self) -> Self:
        if self.error is not None:
            raise self.error
        return self

    def __exit__(self, *_: object) -> None: ...

    def create_artifact(self, artifact: ArtifactCreate) -> None:
        self.artifacts.append(artifact)

    def read_flow_run(self, run: UUID) -> SimpleNamespace:
        assert str(run) == LOST
        return SimpleNamespace(state=SimpleNamespace(is_final=lambda: self.is_final), tags=["dvc"])

    def update_flow_run(self, run: UUID, tags: list[str]) -> None:
        assert str(run) == LOST
        self.tags = tags

    def read_task_runs(self, *, flow_run_filter: Any, task_run_filter: Any) -> list[SimpleNamespace]:
        assert flow_run_filter.id.any_ == [UUID(LOST)]
        assert {state.value for state in task_run_filter.state.type.any_} == {"RUNNING", "PENDING"}
        return [SimpleNamespace(id="its task")]

    def set_task_run_state(self, task: str, state: Any, force: bool) -> None:
        assert force, "the server takes no other state of a run that it believes to be running"
        self.states.append((task, state.type.value, state.message))

    def set_flow_run_state(self, run: UUID, state: Any, force: bool) -> None:
        self.set_task_run_state(str(run), state, force)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(flow_run, "get_id", lambda: CURRENT, raising=False)

    def use(server: Server) -> Server:
        monkeypatch.setattr(module, "get_client", lambda sync_client: server)
        return server

    return use


def test_artifacts_hang_on_the_nights_own_run(use: Any) -> None:
    server, night = use(Server()), Night("2027-01-30", flow_run=LOST, errors=["it was cut off"])
    assert module.attach(night) == []
    assert [(one.key, one.type, str(one.flow_run_id)) for one in server.artifacts] == [
        ("night", "table", LOST),
        ("night-report", "markdown", LOST),
    ]
    assert server.artifacts[0].description == "Night 2027-01-30: nothing was promoted: it was cut off"
    assert server.artifacts[1].description == "Night 2027-01-30: failed"
    assert server.tags == ["dvc", "failed"]
    assert json.loads(server.artifacts[0].data)[0] == {"what": "night", "outcome": "2027-01-30: failed"}
    assert server.artifacts[1].data.startswith("# Night 2027-01-30: failed\n")


def test_the_run_of_a_killed_night_is_called_crashed(use: Any) -> None:
    server = use(Server())
    assert module.end_lost_run(Night("2027-01-30", flow_run=LOST, errors=["it was cut off"])) == []
    said = ("CRASHED", "nothing was promoted: it was cut off")
    assert server.states == [("its task", *said), (LOST, *said)]


@pytest.mark.parametrize(("run", "is_final"), [(LOST, True), (CURRENT, False), (None, False)])
def test_a_run_that_ended_or_goes_on_keeps_its_state(use: Any, run: str | None, is_final: bool) -> None:
    server = use(Server(is_final))
    assert module.end_lost_run(Night("2027-01-30", flow_run=run)) == []
    assert server.states == []


@pytest.mark.parametrize("error", [httpx.ConnectError("no server"), ValueError("no such setting")])
def test_a_server_that_does_not_answer_is_a_warning(use: Any, error: Exception) -> None:
    use(Server(error=error))
    night, kind = Night("2027-01-30", flow_run=LOST), type(error).__name__
    assert module.attach(night) == [f"the run's page does not show the report, the server did not take it ({kind})"]
    assert module.end_lost_run(night) == [
        f"night 2027-01-30 may be shown as running, the server did not mark it ({kind})"
    ]


def test_a_mark_with_a_damaged_id_is_a_warning(use: Any) -> None:
    server, night = use(Server()), Night("2027-01-30", flow_run="no id")
    assert [line.split(",")[0] for line in (*module.attach(night), *module.end_lost_run(night))] == [
        "the run's page does not show the report",
        "night 2027-01-30 may be shown as running",
    ]
    assert (server.artifacts, server.states) == ([], [])


@pytest.mark.parametrize(("parameters", "name"), [({"night": "2027-01-31"}, "night 2027-01-31"), ({"night": None}, "")])
def test_a_run_is_named_after_its_night(monkeypatch: pytest.MonkeyPatch, parameters: Any, name: str) -> None:
    monkeypatch.setattr(flow_run, "parameters", parameters, raising=False)
    monkeypatch.setattr(module, "date", SimpleNamespace(today=lambda: SimpleNamespace(isoformat=lambda: "2027-02-01")))
    assert module.run_name() == (name or "night 2027-02-01")
