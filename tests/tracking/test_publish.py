from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedcore.engine.summary import summarise
from tasks import publish as step
from tasks.publish import publish, summarise_runs
from tasks.tracking import MlflowTracker
from tasks.tracking_runs import KIND, SUPERSEDED
from tests.tracking.conftest import Project, all_runs, config_of, lineage_of

Curve = Callable[[str, str], list[tuple[int, float]]]


def runs_by_name(client: Any, kind: str = "run") -> dict[str, Any]:
    found = [run for run in all_runs(client) if run.data.tags[KIND] == kind and SUPERSEDED not in run.data.tags]
    by_name = {run.info.run_name: run for run in found}
    assert len(by_name) == len(found), "one run per name"
    return by_name


def artifacts(client: Any, run: Any) -> set[str]:
    return {file.path for file in client.list_artifacts(run.info.run_id)}


def test_every_run_folder_gets_its_finished_run(project: Project, client: Any, curve: Curve) -> None:
    project.add("fedavg", 0)
    project.add("local", 1)
    done = publish(project.root, project.root / "runs")
    assert (len(done.run_ids), done.runs_written, done.summaries, done.summaries_written) == (2, 2, 2, 2)
    runs = runs_by_name(client)
    assert sorted(runs) == ["fedavg-0", "local-1"]
    run = runs["fedavg-0"]
    assert done.run_ids[config_of("fedavg", 0)["run_key"]] == run.info.run_id
    assert run.info.status == "FINISHED"
    assert curve(run.info.run_id, "global/val/accuracy") == [(1, 0.5), (2, 0.75), (3, 0.625)]
    assert curve(run.info.run_id, "selected/global/val/accuracy") == [(3, 0.75)]
    assert curve(run.info.run_id, "time/round_seconds") == [(1, 0.5), (2, 0.25), (3, 0.25)]
    assert run.data.params["train.lr"] == "0.05"
    assert run.data.tags["lineage.partition_hash"] == "e" * 64
    assert len(run.inputs.dataset_inputs) == 2
    assert artifacts(client, run) == {*step.FILES, *step.MODELS}
    stored = project.root / "mlruns" / "artifacts" / run.info.run_id / "artifacts" / "model.safetensors"
    assert stored.read_bytes() == (project.root / "runs" / "fedavg-0" / "model.safetensors").read_bytes()


def test_a_run_began_when_its_rounds_did(project: Project, client: Any) -> None:
    """The rounds of each seed took 0.5 + 0.25 + 0.25 s; the tracking's pages show the difference as duration."""
    for seed in (0, 1):
        project.add("fedavg", seed)
    before = time.time_ns() // 1_000_000
    publish(project.root, project.root / "runs")
    for kind, name, milliseconds in (("run", "fedavg-0", 1000), ("summary", "fedavg", 2000)):
        run = runs_by_name(client, kind)[name]
        assert run.info.start_time >= before - milliseconds
        assert milliseconds <= run.info.end_time - run.info.start_time < 60_000


def test_a_summary_says_which_flow_run_wrote_it(project: Project, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCORE_FLOW_RUN_NAME", "night 2027-01-31")
    project.add("fedavg", 0)
    publish(project.root, project.root / "runs")
    assert runs_by_name(client, "summary")["fedavg"].data.tags["prefect.flow_run_name"] == "night 2027-01-31"


def test_an_empty_section_is_no_parameter(project: Project, client: Any) -> None:
    project.add("fedavg", 0)
    project.add("prox", 0, add={"prox": {"mu": 0.01}}, params={"method": {"add": {"prox": {"mu": 0.01}}}})
    publish(project.root, project.root / "runs")
    runs = runs_by_name(client)
    assert {key for key in runs["fedavg-0"].data.params if key.startswith(("add", "settings"))} == set()
    assert runs["prox-0"].data.params["add.prox.mu"] == "0.01"
    assert not any(key.startswith("params") for key in runs["prox-0"].data.params), "the same once more"


def test_a_second_call_changes_nothing(project: Project) -> None:
    project.add("fedavg", 0)
    project.add("fedavg", 1)
    project.write_comparison()
    publish(project.root, project.root / "runs")
    database = project.root / "mlruns" / "mlflow.db"
    before = database.read_bytes()
    done = publish(project.root, project.root / "runs")
    assert (done.runs_written, done.summaries_written) == (0, 0)
    assert database.read_bytes() == before


def test_deleted_runs_and_summaries_are_recreated(project: Project, client: Any) -> None:
    project.add("fedavg", 0)
    project.add("fedavg", 1)
    publish(project.root, project.root / "runs")
    for run in (runs_by_name(client)["fedavg-0"], runs_by_name(client, "summary")["fedavg"]):
        client.delete_run(run.info.run_id)
    done = publish(project.root, project.root / "runs")
    assert (done.runs_written, done.summaries_written) == (1, 1)
    (summary,) = runs_by_name(client, "summary").values()
    runs = runs_by_name(client)
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {summary.info.run_id}
    assert sorted(runs) == ["fedavg-0", "fedavg-1"]
    assert publish(project.root, project.root / "runs").summaries_written == 0


def test_everything_comes_back_after_mlruns_was_deleted(project: Project, prepared: Path) -> None:
    project.add("fedavg", 0)
    publish(project.root, project.root / "runs")
    shutil.rmtree(project.root / "mlruns" / "artifacts")
    done = publish(project.root, project.root / "runs")
    assert done.runs_written == 1
    assert list((project.root / "mlruns" / "artifacts").glob("*/artifacts/history.csv"))


def test_a_live_run_is_completed_and_not_duplicated(project: Project, client: Any, curve: Curve) -> None:
    project.add("fedavg", 0)
    config = config_of("fedavg", 0)
    tracker = MlflowTracker(config, lineage_of(config), project.root)
    tracker.start(3, 0)
    tracker.log(1, {"global/val/accuracy": 0.5, "train/loss": 1.0}, 0.7)
    tracker.end("failed")
    done = publish(project.root, project.root / "runs")
    assert done.runs_written == 1
    (run,) = runs_by_name(client).values()
    assert run.info.status == "FINISHED"
    assert curve(run.info.run_id, "global/val/accuracy") == [(1, 0.5), (2, 0.75), (3, 0.625)]
    assert curve(run.info.run_id, "time/round_seconds") == [(1, 0.7), (2, 0.25), (3, 0.25)]


def test_a_folder_trained_again_with_other_digits_gets_a_new_run(project: Project, client: Any, curve: Curve) -> None:
    project.add("fedavg", 0)
    publish(project.root, project.root / "runs")
    old = runs_by_name(client)["fedavg-0"].info.run_id
    project.add("fedavg", 0, val=(0.5, 0.75, 0.875))
    assert publish(project.root, project.root / "runs").runs_written == 1
    new = runs_by_name(client)["fedavg-0"].info.run_id
    assert client.get_run(old).data.tags[SUPERSEDED] == new
    assert curve(new, "global/val/accuracy")[-1] == (3, 0.875)
    assert publish(project.root, project.root / "runs").runs_written == 0


def test_the_summary_holds_mean_deviation_and_interval_over_seeds(project: Project, client: Any) -> None:
    """Three seeds with selected test accuracies 0.50, 0.60, 0.70.

    Mean 0.60; sample standard deviation sqrt((0.01 + 0 + 0.01) / 2) = 0.1; the 0.975 quantile of Student's t with 2
    degrees of freedom is 4.30265, so the interval is 0.60 -+ 4.30265 * 0.1 / sqrt(3) = 0.60 -+ 0.248414.
    """
    for seed, accuracy in enumerate((0.5, 0.6, 0.7)):
        project.add("fedavg", seed, test=(0.9, accuracy, 0.8))
    project.add("local", 0)
    picture = project.root / "data" / "partitions" / "digits.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"png")
    project.write_comparison()
    (project.root / "reports" / "index.html").write_text("<html>")
    publish(project.root, project.root / "runs")
    summary = runs_by_name(client, "summary")["fedavg"]
    name = "selected/global/test/accuracy"
    figures = {key: summary.data.metrics[f"{name}/{key}"] for key in ("mean", "std", "low", "high")}
    assert figures == pytest.approx({"mean": 0.6, "std": 0.1, "low": 0.351586, "high": 0.848414}, abs=1e-6)
    assert summary.data.tags["fedcore.seeds"] == "0, 1, 2"
    assert not [key for key in summary.data.metrics if key.startswith("best/")]
    assert artifacts(client, summary) == {"digits.png", "comparison.json", "index.html"}
    assert summary.info.status == "FINISHED"
    children = {n: r.data.tags["mlflow.parentRunId"] for n, r in runs_by_name(client).items() if n.startswith("fedavg")}
    assert children == dict.fromkeys(("fedavg-0", "fedavg-1", "fedavg-2"), summary.info.run_id)
    single = runs_by_name(client, "summary")["local"].data.metrics
    assert single["selected/personal/test/accuracy/mean"] == 0.5
    assert "selected/personal/test/accuracy/std" not in single


def test_a_summary_has_nothing_chosen_on_the_test_split() -> None:
    row = {"round": 1.0, "personal/test/accuracy": 0.5, "personal/test/client_mean": 0.5}
    run = summarise([{**row, "best_on_test/test/client_mean": 0.9}], 10)
    names = {name.split("/")[0] for name in run}
    assert {"best", "top5", "best_on_test"} < names
    assert {name.split("/")[0] for name in summarise_runs([run, run])} == {"model", "personal", "selected"}


def test_a_further_seed_makes_a_new_summary_that_takes_the_runs_over(project: Project, client: Any) -> None:
    project.add("fedavg", 0)
    publish(project.root, project.root / "runs")
    old = runs_by_name(client, "summary")["fedavg"].info.run_id
    project.add("fedavg", 1)
    publish(project.root, project.root / "runs")
    new = runs_by_name(client, "summary")["fedavg"].info.run_id
    assert new != old
    assert client.get_run(old).data.tags[SUPERSEDED] == new
    assert {run.data.tags["mlflow.parentRunId"] for run in runs_by_name(client).values()} == {new}
    shutil.rmtree(project.root / "runs" / "fedavg-1")
    publish(project.root, project.root / "runs")
    assert SUPERSEDED not in client.get_run(old).data.tags
    assert runs_by_name(client)["fedavg-0"].data.tags["mlflow.parentRunId"] == old


def test_metrics_that_a_seed_lacks_are_left_out_of_the_summary() -> None:
    assert summarise_runs([{"a": 1.0, "b": 2.0, "round": 3}, {"a": 3.0, "b": float("nan"), "round": 3}]) == (
        pytest.approx({"a/mean": 2.0, "a/std": 2**0.5, "a/low": 2 - 12.706205, "a/high": 2 + 12.706205}, abs=1e-6)
    )


def test_large_weights_stay_where_they_are(project: Project, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project.add("fedavg", 0)
    monkeypatch.setattr(step, "LARGEST_MODEL", (folder / "model.safetensors").stat().st_size)
    publish(project.root, project.root / "runs")
    assert artifacts(client, runs_by_name(client)["fedavg-0"]) == {*step.FILES, "personal.safetensors"}


def test_experiments_are_told_apart(project: Project, client: Any) -> None:
    project.add("fedavg", 0)
    project.add("other", 0, experiment="second")
    done = publish(project.root, project.root / "runs", "second")
    assert len(done.run_ids) == 1
    assert client.get_experiment_by_name("digits") is None
    assert client.get_experiment_by_name("second") is not None


def test_a_broken_folder_is_named_and_the_others_are_published(
    project: Project, client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.add("fedavg", 0)
    (project.add("fedavg", 1) / "history.csv").unlink()
    monkeypatch.setattr(sys, "argv", ["publish"])
    with pytest.raises(
        ValueError, match=r"^runs/fedavg-1: history\.csv does not exist; run `dvc repro train@fedavg-1`$"
    ):
        step.main()
    assert capsys.readouterr().out == "1 runs (1 written), 1 method summaries (1 written)\n"
    assert list(runs_by_name(client)) == ["fedavg-0"]


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_hidden_folder_that_a_killed_training_left_is_passed_over(
    project: Project, client: Any, is_whole: bool
) -> None:
    left = project.add("fedavg", 0).rename(project.root / "runs" / ".fedavg-0.a1b2c3d4")
    if not is_whole:
        (left / "clients.parquet").unlink()
    project.add("fedavg", 0, train={"lr": 0.5})
    first, second = (publish(project.root, project.root / "runs") for _ in range(2))
    assert (first.problems, first.runs_written, len(first.run_ids)) == ([], 1, 1)
    assert (second.problems, second.runs_written, second.summaries_written) == ([], 0, 0)


def test_runs_that_the_comparison_does_not_name_are_not_summarised(project: Project, client: Any) -> None:
    project.add("fedavg", 0)
    project.write_comparison()
    project.add("fedavg", 5)
    publish(project.root, project.root / "runs")
    assert sorted(runs_by_name(client)) == ["fedavg-0", "fedavg-5"]
    assert runs_by_name(client, "summary")["fedavg"].data.tags["fedcore.seeds"] == "0"


def test_no_folder_of_runs_is_an_error(root: Path) -> None:
    with pytest.raises(ValueError, match="runs: does not exist"):
        publish(root, root / "runs")


def test_a_config_without_key_is_named(project: Project) -> None:
    folder = project.add("fedavg", 0)
    config = json.loads((folder / "config.json").read_text())
    del config["run_key"]
    (folder / "config.json").write_text(json.dumps(config))
    (problem,) = publish(project.root, project.root / "runs").problems
    assert "'run_key' is missing" in problem
