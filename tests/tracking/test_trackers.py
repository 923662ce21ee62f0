from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import ConsoleTracker, MlflowTracker, MultiTracker, SafeTracker
from tasks.tracking_runs import SUPERSEDED, flatten
from tests.tracking.conftest import all_runs, config_of, lineage_of

Curve = Callable[[str, str], list[tuple[int, float]]]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Recorder:
    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error = error

    def _hear(self, *call: Any) -> None:
        self.calls.append(call)
        if self.error:
            raise self.error

    def start(self, rounds: int, resumed_at: int) -> None:
        self._hear("start", rounds, resumed_at)

    def log(self, round: int, metrics: Any, seconds: float) -> None:
        self._hear("log", round, metrics, seconds)

    def end(self, status: Any) -> None:
        self._hear("end", status)


def train(root: Path, rounds: range, end: Any = "finished", resumed_at: int = 0, **changes: Any) -> None:
    config = config_of(**changes)
    tracker = MlflowTracker(config, lineage_of(config), root, period=0.0)
    tracker.start(4, resumed_at)
    for round in rounds:
        tracker.log(round, {"global/val/accuracy": round / 10, "global/val/loss": float("nan")}, 0.5)
    tracker.end(end)


def test_a_training_leaves_a_finished_run_with_all_it_is_made_of(
    root: Path, client: Any, curve: Curve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_STAGE", "train@fedavg-0")
    monkeypatch.setenv("FEDCORE_FLOW_RUN", "flow-7")
    monkeypatch.setenv("FEDCORE_FLOW_RUN_NAME", "night 2027-01-31")
    train(root, range(1, 5), settings={"names": ["x" * 600]})
    (run,) = all_runs(client)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "fedavg-0")
    assert curve(run.info.run_id, "global/val/accuracy") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert curve(run.info.run_id, "time/round_seconds") == [(r, 0.5) for r in range(1, 5)]
    assert "global/val/loss" not in run.data.metrics
    params, tags = run.data.params, run.data.tags
    assert (params["train.lr"], params["partition.alpha"], params["method"]) == ("0.05", "0.1", "fedavg")
    assert len(params["settings.names"]) == 500
    assert (tags["git_commit"], tags["dvc.stage"], tags["prefect.flow_run"]) == ("c0ffee", "train@fedavg-0", "flow-7")
    assert tags["prefect.flow_run_name"] == "night 2027-01-31"
    assert tags["lineage.versions.torch"] == "2.15.0"
    inputs = {i.dataset.name: (i.dataset.digest, {t.value for t in i.tags}) for i in run.inputs.dataset_inputs}
    assert inputs == {
        "digits": ("d" * 36, {"d" * 64, "dataset"}),
        "digits-partition": ("e" * 36, {"e" * 64, "partition"}),
    }


def test_a_resumed_training_continues_its_run_without_logging_a_round_twice(
    root: Path, client: Any, curve: Curve
) -> None:
    train(root, range(1, 4), end="failed")
    (killed,) = all_runs(client)
    assert killed.info.status == "FAILED"
    train(root, range(3, 5), resumed_at=2)  # the checkpoint was one round behind the log
    (run,) = all_runs(client)
    assert (run.info.run_id, run.info.status) == (killed.info.run_id, "FINISHED")
    assert curve(run.info.run_id, "global/val/accuracy") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert len(curve(run.info.run_id, "time/round_seconds")) == 4


def test_a_run_left_running_by_a_kill_is_continued_even_without_a_checkpoint(root: Path, client: Any) -> None:
    train(root, range(1, 3))
    (run,) = all_runs(client)
    client.update_run(run.info.run_id, status="RUNNING")
    train(root, range(1, 5))
    assert [(r.info.run_id, r.info.status) for r in all_runs(client)] == [(run.info.run_id, "FINISHED")]


def test_training_a_finished_run_again_starts_a_new_one(root: Path, client: Any, curve: Curve) -> None:
    train(root, range(1, 5))
    (old,) = all_runs(client)
    train(root, range(1, 3))
    new = next(run for run in all_runs(client) if run.info.run_id != old.info.run_id)
    assert client.get_run(old.info.run_id).data.tags[SUPERSEDED] == new.info.run_id
    assert SUPERSEDED not in new.data.tags
    assert len(curve(new.info.run_id, "global/val/accuracy")) == 2


def test_another_configuration_is_another_run(root: Path, client: Any) -> None:
    train(root, range(1, 3))
    train(root, range(1, 3), seed=1)
    assert sorted(run.info.run_name for run in all_runs(client)) == ["fedavg-0", "fedavg-1"]


@pytest.mark.parametrize(("end", "last"), [("finished", [7]), ("failed", [1, 2, 4, 5, 7])])
def test_the_latest_round_of_a_period_is_written_live_and_all_of_a_failed_training(
    root: Path, monkeypatch: pytest.MonkeyPatch, end: Any, last: list[int]
) -> None:
    from mlflow.tracking import MlflowClient

    batches: list[list[int]] = []
    original = MlflowClient.log_batch

    def spy(self: Any, run_id: str, metrics: Any = (), **other: Any) -> Any:
        if metrics:
            batches.append([metric.step for metric in metrics if metric.key == "train/loss"])
        return original(self, run_id, metrics=metrics, **other)

    monkeypatch.setattr(MlflowClient, "log_batch", spy)
    config, clock = config_of(), Clock()
    tracker = MlflowTracker(config, lineage_of(config), root, period=2.0, clock=clock)
    tracker.start(7, 0)
    for round in range(1, 8):
        clock.now += 0.75
        tracker.log(round, {"train/loss": 1.0}, 0.75)
    tracker.end(end)
    assert batches == [[3], [6], last]


def test_a_figure_that_is_seldom_there_is_written_live(root: Path, client: Any, curve: Curve) -> None:
    config, clock = config_of(), Clock()
    tracker = MlflowTracker(config, lineage_of(config), root, period=2.0, clock=clock)
    tracker.start(4, 0)
    for round in range(1, 5):
        clock.now += 1.0
        tracker.log(round, {"global/val/accuracy": 0.5} if round % 2 else {}, 1.0)
    tracker.end("finished")
    (run,) = all_runs(client)
    assert [round for round, _ in curve(run.info.run_id, "global/val/accuracy")] == [1, 3]
    assert [round for round, _ in curve(run.info.run_id, "time/round_seconds")] == [2, 4]


def test_a_training_shorter_than_patience_opens_nothing(root: Path, client: Any) -> None:
    config, clock = config_of(), Clock()
    tracker = MlflowTracker(config, lineage_of(config), root, patience=10.0, clock=clock)
    tracker.start(2, 0)
    for round in (1, 2):
        clock.now += 4.0
        tracker.log(round, {"train/loss": 1.0}, 4.0)
    tracker.end("finished")
    assert all_runs(client) == []


@pytest.mark.parametrize(("seconds", "end"), [(6.0, "finished"), (1.0, "failed")])
def test_a_longer_or_failed_one_is_there_from_its_first_round(
    root: Path, client: Any, curve: Curve, seconds: float, end: Any
) -> None:
    config, clock = config_of(), Clock()
    tracker = MlflowTracker(config, lineage_of(config), root, patience=10.0, clock=clock)
    tracker.start(3, 0)
    for round in (1, 2, 3):
        clock.now += seconds
        tracker.log(round, {"train/loss": 1.0}, seconds)
    tracker.end(end)
    (run,) = all_runs(client)
    assert run.info.status == end.upper()
    assert [round for round, _ in curve(run.info.run_id, "train/loss")] == [1, 2, 3]


def test_an_unusable_database_never_reaches_the_training(root: Path) -> None:
    (root / "mlruns" / "mlflow.db").write_bytes(b"broken" * 100)
    stream, config = io.StringIO(), config_of()
    tracker = SafeTracker(MlflowTracker(config, lineage_of(config), root), stream)
    tracker.start(3, 0)
    for round in range(1, 4):
        tracker.log(round, {"train/loss": 1.0}, 0.1)
    tracker.end("finished")
    (line,) = stream.getvalue().splitlines()
    assert "tracking stopped (ValueError" in line
    assert "mlflow.db" in line
    assert "tasks.publish" in line


def test_safe_tracker_says_a_failure_once_and_leaves_the_tracker_alone() -> None:
    stream, broken = io.StringIO(), Recorder(RuntimeError("disk full\nmore"))
    tracker = SafeTracker(broken, stream)
    tracker.start(2, 0)
    tracker.log(1, {}, 0.1)
    tracker.end("finished")
    assert broken.calls == [("start", 2, 0)]
    assert stream.getvalue().count("disk full") == 1
    assert stream.getvalue().count("\n") == 1


def test_a_closed_output_never_reaches_the_training() -> None:
    stream = io.StringIO()
    stream.close()
    tracker = SafeTracker(ConsoleTracker("fedavg-0", io.StringIO()), stream)
    tracker.start(0, 0)  # dividing by no rounds fails, and saying so fails too
    tracker.end("finished")


def test_multi_tracker_passes_everything_on_in_order() -> None:
    first, second = Recorder(), Recorder()
    tracker = MultiTracker(first, second)
    tracker.start(2, 1)
    tracker.log(2, {"a": 1.0}, 0.5)
    tracker.end("failed")
    assert first.calls == [("start", 2, 1), ("log", 2, {"a": 1.0}, 0.5), ("end", "failed")] == second.calls


def test_console_writes_a_line_about_every_tenth_of_the_rounds() -> None:
    stream, clock = io.StringIO(), Clock()
    tracker = ConsoleTracker("fedavg-0", stream, clock)
    tracker.start(60, 0)
    tracker.log(0, {"train/loss": 1.0}, 0.5)  # a setup round
    for round in range(1, 61):
        clock.now += 0.5
        tracker.log(round, {"global/val/accuracy": 0.5, "personal/test/accuracy": 0.9} if round % 6 == 0 else {}, 0.5)
    tracker.end("finished")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "fedavg-0: round 6/60, global 50.0 %, personal 90.0 %, 2 rounds/s, 27 s left"
    assert lines[-1] == "fedavg-0: round 60/60, global 50.0 %, personal 90.0 %, 2 rounds/s"


def test_console_counts_the_rate_from_where_a_training_goes_on() -> None:
    stream, clock = io.StringIO(), Clock()
    tracker = ConsoleTracker("fedavg-0", stream, clock)
    tracker.start(10, 8)
    clock.now += 120
    tracker.log(9, {"global/val/accuracy": 0.5}, 120)
    tracker.end("failed")
    assert stream.getvalue().splitlines() == [
        "fedavg-0: goes on after round 8 of 10",
        "fedavg-0: round 9/10, global 50.0 %, 0.00833 rounds/s, 2 min 0 s left",
        "fedavg-0: failed",
    ]


def test_console_updates_one_line_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream, clock = Terminal(), Clock()
    tracker = ConsoleTracker("fedavg-0", stream, clock)
    tracker.start(3, 0)
    for round in range(1, 4):
        clock.now += 1
        tracker.log(round, {}, 1.0)
    tracker.end("finished")
    assert stream.getvalue().count("\r") == 3
    assert stream.getvalue().count("\n") == 1
    # The last line is shorter than the one it replaces, so it is filled up with spaces.
    assert stream.getvalue().splitlines()[-1].rstrip() == "fedavg-0: round 3/3, 1 rounds/s"
    assert len(stream.getvalue().split("\r")[-1]) - 1 == len("fedavg-0: round 2/3, 1 rounds/s, 1 s left")


def test_flatten_joins_keys_by_dots_and_keeps_empty_sections() -> None:
    assert dict(flatten({"a": {"b": {"c": 1.5}, "d": [1, 2]}, "e": {}, "f": None, "g": "text"})) == {
        "a.b.c": "1.5",
        "a.d": "[1, 2]",
        "e": "{}",
        "f": "null",
        "g": "text",
    }
