"""The night goes on past a failed training, promotes nothing then, and is told whatever ends it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.schedules import CronSchedule
from ruamel.yaml import YAML

from flows import nightly as module
from tasks.files import read_json
from tasks.nightly import Night
from tests.pipeline.conftest import Project

REPORTS = Path("reports/nightly")
CALM = {"note": "no new examples", "changes": [], "new_clients": [], "drifted": []}
PASSED = {
    "model": "digits-global",
    "challenger": "2",
    "champion": "1",
    "promoted": True,
    "decision": {"verdict": "promote", "reasons": ["better"]},
}


class Tools:
    """Stands for DVC and the steps: notes what is called, fails what it is told to."""

    def __init__(self, failing: tuple[str, ...] = ()):
        self.called: list[str] = []
        self.failing = failing
        self.told: list[str] = []
        self.drift = CALM
        self.intake: dict[str, Any] = {"accepted": [], "rejected": [], "waiting": [], "rows": 0}
        self.error: BaseException = module.StageError("it broke")

    def call(self, what: str, result: Any = None) -> Any:
        self.called.append(what)
        if what in self.failing:
            raise self.error
        return result

    def train_all(self, runs: list[tuple[str, int]], on_gpu: bool) -> dict[str, SimpleNamespace]:
        names = {f"{label}-{seed}": f"train@{label}-{seed}" for label, seed in runs}
        self.called += names.values()
        return {
            name: SimpleNamespace(is_completed=lambda target=target: target not in self.failing, message="exit code 1")
            for name, target in names.items()
        }

    def publish(self, experiment: str, return_state: bool) -> SimpleNamespace:
        assert experiment == "digits"
        self.called.append("publish")
        return SimpleNamespace(is_completed=lambda: "publish" not in self.failing)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def night(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Tools]]:
    project.parameters["partition"] = {"scheme": "stable", "clients": 4}
    project.parameters["compare"]["seeds"] = [0, 1]
    project.edit("incoming", {})
    monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("night"))
    monkeypatch.setattr(module, "attach", lambda _: [])
    monkeypatch.setattr(module, "end_lost_run", lambda record: [f"{record.name} is shown as running"])

    def run(*failing: str, tools: Tools | None = None, name: str = "2027-01-31") -> tuple[Any, Tools]:
        tools = tools or Tools(failing)
        monkeypatch.setattr(module, "reproduce", lambda stage: tools.call(stage))
        monkeypatch.setattr(module, "train_all", tools.train_all)
        monkeypatch.setattr(module, "take_in", lambda: tools.call("intake", tools.intake))
        monkeypatch.setattr(module, "measure_drift", lambda: tools.call("drift", tools.drift))
        monkeypatch.setattr(module, "consider", lambda: tools.call("consider", [PASSED]))
        monkeypatch.setattr(module, "publish", tools.publish)
        monkeypatch.setattr(module, "notify", lambda record, *_: tools.told.append(record.status) or [])
        return module.retrain.fn(night=name, gpu=False), tools

    return run


def report(name: str = "2027-01-31") -> dict[str, Any]:
    found: dict[str, Any] = read_json(REPORTS / f"{name}.json")
    return found


def test_a_night_does_everything_once_and_promotes(night: Callable[..., tuple[Any, Tools]]) -> None:
    state, tools = night()
    assert tools.called == [
        *("check", "prepare", "intake", "check", "prepare", "partition", "drift", "virtual", "pseudo", "plan"),
        *("train@fedavg-0", "train@fedavg-1", "train@local-0", "train@local-1"),
        *("compare", "report", "register", "consider"),
    ]
    assert (state.name, state.message) == ("Completed", "digits-global: version 2 promoted over 1 (better)")
    assert report()["status"] == "promoted"
    assert (REPORTS / "2027-01-31.md").read_text().startswith("# Night 2027-01-31: promoted\n")
    assert tools.told == ["promoted"]
    assert not (REPORTS / ".running.json").exists()


def test_one_failed_training_stops_no_other_and_every_promotion(night: Callable[..., tuple[Any, Tools]]) -> None:
    state, tools = night("train@fedavg-1")
    assert [name for name in tools.called if name.startswith("train@")][-1] == "train@local-1"
    assert not {"compare", "register", "consider"} & set(tools.called)
    assert state.is_failed()
    assert state.message == (
        "nothing was promoted: 1 of 4 training runs failed (fedavg-1); the others are done and kept;"
        " fedavg-1: exit code 1"
    )
    assert tools.called[-1] == "publish", "MLflow would not show what was done"
    assert report()["warnings"] == []
    assert report()["training"] == {
        "fedavg-0": "done",
        "local-0": "done",
        "local-1": "done",
        "fedavg-1": "exit code 1",
    }
    assert tools.told == ["failed"]


def test_without_any_run_or_with_a_tracking_that_fails(night: Callable[..., tuple[Any, Tools]]) -> None:
    names = [f"train@{label}-{seed}" for label in ("fedavg", "local") for seed in (0, 1)]
    _, tools = night(*names)
    assert "publish" not in tools.called
    night("train@fedavg-1", "publish", name="2027-02-01")
    assert report("2027-02-01")["warnings"] == [
        "the runs that are done are not in MLflow yet; `make publish` adds them"
    ]


def test_the_reason_of_a_training_stands_alone() -> None:
    state = SimpleNamespace(
        message="Task run encountered an exception StageError: train@local-0: it\n crashes", name=""
    )
    assert module._said("local-0", state) == "it crashes"  # type: ignore[arg-type]
    assert module._said("local-0", SimpleNamespace(message=None, name="Crashed")) == "Crashed"  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", ["prepare", "intake", "drift", "compare", "register", "consider"])
def test_a_failed_step_ends_the_night_with_a_report(night: Callable[..., tuple[Any, Tools]], stage: str) -> None:
    state, tools = night(stage)
    shown = "promotion" if stage == "consider" else stage
    assert state.message == f"nothing was promoted: {shown}: it broke"
    assert report()["errors"] == [f"{shown}: it broke"]
    assert tools.called[-1] == stage
    assert tools.told == ["failed"]


def test_wrong_parameters_are_reported_too(night: Callable[..., tuple[Any, Tools]], project: Project) -> None:
    project.edit("train.lr", -1)
    state, tools = night()
    assert state.is_failed()
    assert "params.yaml:" in report()["errors"][0]
    assert report()["warnings"] == []
    assert tools.told == ["failed"]


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a server got that the environment names."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/")
    yield got
    server.shutdown()
    server.server_close()


def test_a_mistake_in_another_section_is_told(
    night: Callable[..., tuple[Any, Tools]],
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    webhook: list[dict[str, Any]],
) -> None:
    project.edit("notify", {"webhook": "HOOK"})
    project.edit("train.lr", "0.1")
    module.finish(Night("2027-01-30", errors=["check: train.lr"]))
    assert [one["status"] for one in webhook] == ["failed"]
    # One in the section itself is none that can be told.
    project.edit("notify", {"webhook": "https://example.org"})
    module.finish(Night("2027-01-29", errors=["check: train.lr"]))
    assert len(webhook) == 1
    assert report("2027-01-29")["warnings"] == ["notify: nobody was told (ConfigError)"]


def test_a_full_disk_keeps_nobody_from_being_told(
    night: Callable[..., tuple[Any, Tools]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: object, *_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("tasks.nightly.write_json", full)
        patch.setattr("tasks.nightly.atomic_write_text", full)
        state, tools = night()
    assert tools.told == ["failed"]
    assert state.is_failed()
    assert "No space left on device: 'reports/nightly/.running.json'" in state.message
    assert tools.called == []
    state, tools = night()
    assert (state.name, tools.told) == ("Completed", ["promoted"])


def test_a_report_that_does_not_fit_is_told(
    night: Callable[..., tuple[Any, Tools]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: object, *_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("tasks.nightly.atomic_write_text", full)
    state, tools = night()
    assert tools.told == ["promoted"]
    assert state.name == "CompletedWithWarnings"
    assert "the report could not be written ([Errno 28] No space left on device" in state.message
    assert not (REPORTS / ".running.json").exists(), "the next night would call it cut off"


def test_warnings_show_in_the_name_of_the_state(night: Callable[..., tuple[Any, Tools]]) -> None:
    tools = Tools()
    tools.intake = {**tools.intake, "rejected": [{"file": "x.csv", "reason": "there are no rows"}]}
    state, _ = night(tools=tools)
    assert (state.name, state.is_completed()) == ("CompletedWithWarnings", True)
    assert state.message.endswith("1 warning: rejected x.csv: there are no rows")


def test_drift_warns_or_stops(night: Callable[..., tuple[Any, Tools]], project: Project) -> None:
    tools = Tools()
    tools.drift = {**CALM, "drifted": ["north: labels"]}
    state, _ = night(tools=tools)
    assert state.name == "CompletedWithWarnings"
    project.edit("drift", {"on_drift": "stop"})
    tools.called.clear()
    state, _ = night(tools=tools, name="2027-02-01")
    assert state.is_failed()
    assert tools.called[-1] == "drift"


def test_an_interrupted_night_is_reported_and_stays_interrupted(night: Callable[..., tuple[Any, Tools]]) -> None:
    tools = Tools(("compare",))
    tools.error = SystemExit(143)
    with pytest.raises(SystemExit):
        night(tools=tools)
    assert report()["errors"] == ["compare: the night was interrupted (SystemExit)"]
    assert tools.told == ["failed"]


def test_a_killed_night_is_reported_by_the_next(
    night: Callable[..., tuple[Any, Tools]], caplog: pytest.LogCaptureFixture
) -> None:
    """Killed with SIGKILL in a process of its own, in the middle of a training."""
    code = """
import os, signal
from tasks.nightly import begin
night = begin("2027-01-30", "run 1")
night.enter("train fedavg-0")
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(module.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(root)}, check=False).returncode == -9
    state, tools = night()
    assert tools.told == ["failed", "promoted"]
    assert [one.message for one in caplog.records if "shown as" in one.message] == ["2027-01-30 is shown as running"]
    assert report("2027-01-30")["status"] == "failed"
    assert "cut off in the stage 'train fedavg-0'" in report("2027-01-30")["message"]
    assert state.name == "CompletedWithWarnings"
    assert report()["warnings"][0].startswith("night 2027-01-30 did not come to its end: the night was cut off")
    state, tools = night(name="2027-02-01")
    assert (tools.told, state.name) == (["promoted"], "Completed")


def test_a_second_night_at_the_same_time_is_cancelled(night: Callable[..., tuple[Any, Tools]]) -> None:
    Path("data").mkdir()
    with FileLock(module.LOCK):
        state, tools = night()
    assert state.is_cancelled()
    assert tools.called == []
    assert not REPORTS.exists()


def test_without_an_incoming_section_nothing_is_taken_in(
    night: Callable[..., tuple[Any, Tools]], project: Project
) -> None:
    project.edit("incoming", ...)
    state, tools = night()
    assert "intake" not in tools.called
    assert state.is_completed()


@pytest.mark.parametrize("arrives", [True, False])
def test_a_pull_that_fails_is_a_warning(
    night: Callable[..., tuple[Any, Tools]], project: Project, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    project.edit("incoming", {"pull": "deliveries"})
    pulled = []

    def pull(folder: str, return_state: bool) -> SimpleNamespace:
        pulled.append(folder)
        return SimpleNamespace(is_completed=lambda: arrives)

    monkeypatch.setattr(module, "pull", pull)
    night()
    assert pulled == ["deliveries"]
    expected = [] if arrives else ["`dvc pull deliveries.dvc` failed; the night went on without it"]
    assert report()["warnings"] == expected


def test_the_result_of_a_step_is_read_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, night: Callable[..., tuple[Any, Tools]]
) -> None:
    out = tmp_path / "found.json"
    commands: list[list[str]] = []

    def run(command: list[str], *, on_line: Callable[[str], None], environment: dict[str, str]) -> int:
        commands.append(command)
        assert not out.exists(), "the last night's result would be taken for this one's"
        if len(commands) == 1:
            out.write_text(json.dumps({"rows": 3}))
            return 0
        on_line("error: params.yaml:3: incoming: wrong")
        return 1

    monkeypatch.setattr(module, "run", run)
    assert module._step("tasks.intake", out) == {"rows": 3}
    assert commands[0][1:] == ["-m", "tasks.intake", "--out", str(out)]
    with pytest.raises(module.StageError, match=r"^params\.yaml:3: incoming: wrong$"):
        module._step("tasks.intake", out)


def test_dvc_alone_caches() -> None:
    for one in (module.pull, module.take_in, module.measure_drift, module.consider):
        assert one.cache_policy == NO_CACHE


def test_the_deployment_is_scheduled_and_does_not_pile_up() -> None:
    root = Path(module.__file__).parents[1]
    deployments = YAML(typ="safe").load((root / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    (found,) = [one for one in deployments if one["entrypoint"] == "flows/nightly.py:retrain"]
    assert (module.retrain.name, found["name"]) == ("nightly", "retrain")
    assert found["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    (schedule,) = found["schedules"]
    CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
    assert schedule["active"]
