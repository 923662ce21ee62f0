"""The flow runs the stages of dvc.yaml in order, goes on past a failed training run, and says what failed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect.cache_policies import NO_CACHE

from flows import experiment as module
from flows import gpus

ROOT = Path(__file__).parent.parent.parent


class Recorder:
    """Stands for DVC: notes every target and fails those it is told to."""

    def __init__(self, *failing: str):
        self.targets: list[str] = []
        self.on_gpu: set[bool] = set()
        self.failing = failing

    def reproduce(self, stage: str) -> None:
        self.targets.append(stage)
        if stage in self.failing:
            raise module.StageError(f"{stage} failed")

    def train(self, label: str, seed: int, on_gpu: bool, return_state: bool) -> SimpleNamespace:
        assert return_state, "without the state a failed run would stop the others"
        self.targets.append(f"train@{label}-{seed}")
        self.on_gpu.add(on_gpu)
        return SimpleNamespace(is_completed=lambda: f"{label}-{seed}" not in self.failing)

    def submit(self, label: str, seed: int, on_gpu: bool) -> SimpleNamespace:
        """Stand for the task's `submit`, which trainings on a GPU use."""
        return SimpleNamespace(wait=lambda: None, state=self.train(label, seed, on_gpu, return_state=True))


class SubmittableTrain:
    """Stands for the task `train`."""

    def __init__(self, call: Callable[..., SimpleNamespace], submit: Callable[..., SimpleNamespace]):
        self.call, self.submit = call, submit

    def __call__(self, *arguments: object, **named: object) -> SimpleNamespace:
        return self.call(*arguments, **named)


@pytest.fixture
def run_flow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorder]:
    monkeypatch.chdir(ROOT)

    def run(*failing: str, gpu: bool | None = False, recorder: Recorder | None = None) -> Recorder:
        recorder = recorder or Recorder(*failing)
        monkeypatch.setattr(module, "reproduce", recorder.reproduce)
        monkeypatch.setattr(module, "train", SubmittableTrain(recorder.train, recorder.submit))
        monkeypatch.setattr(module, "show_results", lambda: recorder.targets.append("results"))
        module.experiment.fn(gpu=gpu)
        return recorder

    return run


def test_every_stage_of_dvc_yaml_runs_once(run_flow: Callable[..., Recorder]) -> None:
    targets = run_flow().targets
    stages = re.findall(r"^  (\w+):$", (ROOT / "dvc.yaml").read_text(encoding="utf-8"), re.M)
    runs = [target for target in targets if target.startswith("train@")]
    config = module.read_config()
    assert len(runs) == len(set(runs)) == len(config.methods) * len(config.compare.seeds)
    assert runs[0] == f"train@{next(iter(config.methods))}-{config.compare.seeds[0]}"
    others = [target for target in targets if target not in runs and target != "results"]
    assert sorted([*others, "train"]) == sorted(stages)
    assert targets.index("plan") < targets.index(runs[0])
    assert targets[-4:] == ["compare", "report", "register", "results"]


def test_one_failed_run_does_not_stop_the_others(run_flow: Callable[..., Recorder]) -> None:
    recorder = Recorder("local-1", "fedprox-0")
    with pytest.raises(module.StageError, match=r"2 of 27 training runs failed: local-1, fedprox-0;"):
        run_flow(recorder=recorder)
    assert len([target for target in recorder.targets if target.startswith("train@")]) == 27
    assert "compare" not in recorder.targets


def test_a_failed_preparation_stops_everything(run_flow: Callable[..., Recorder]) -> None:
    recorder = Recorder("partition")
    with pytest.raises(module.StageError, match="partition"):
        run_flow(recorder=recorder)
    assert recorder.targets == ["check", "prepare", "partition"]


def test_training_shares_gpus_only_where_one_is_visible(
    run_flow: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "is_visible", lambda: False)
    assert run_flow(gpu=None).on_gpu == {False}
    monkeypatch.setattr(gpus, "is_visible", lambda: True)
    assert run_flow(gpu=None).on_gpu == {True}
    assert run_flow(gpu=False).on_gpu == {False}


def test_training_on_the_processor_by_request_takes_no_gpu(
    run_flow: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "is_visible", lambda: True)
    config = module.read_config()
    on_cpu = config.model_copy(update={"train": config.train.model_copy(update={"device": "cpu"})})
    monkeypatch.setattr(module, "read_config", lambda: on_cpu)
    assert run_flow(gpu=None).on_gpu == {False}


@pytest.fixture
def fake_dvc(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, list[str]], list[list[str]]]:
    """Let `dvc_repro` run nothing: give it an exit code and output, get the commands."""
    monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("stage"))
    commands: list[list[str]] = []

    def install(code: int, lines: list[str]) -> list[list[str]]:
        def run(
            command: list[str], *, on_line: Callable[[str], None], environment: dict[str, str], keep_open: list[int]
        ) -> int:
            assert (environment["FEDCORE_FLOW_RUN"], environment["FEDCORE_FLOW_RUN_NAME"]) == ("", "")
            commands.append(command)
            for line in lines:
                on_line(line)
            return code

        monkeypatch.setattr(module, "run", run)
        return commands

    return install


def test_a_stage_is_one_dvc_command(fake_dvc: Callable[[int, list[str]], list[list[str]]]) -> None:
    commands = fake_dvc(0, ["Running stage", ""])
    module.dvc_repro("train@fedavg-0")
    assert commands[0][1:] == ["-m", "dvc", "--wait-for-lock", "repro", "--single-item", "train@fedavg-0"]


def test_a_failed_stage_is_named_with_its_complaint(fake_dvc: Callable[[int, list[str]], list[list[str]]]) -> None:
    fake_dvc(1, ["Running", "error: params.yaml:3: train.lr: must be > 0", "ERROR: failed to reproduce 'check'"])
    with pytest.raises(module.StageError, match=r"^check: params\.yaml:3: train\.lr: must be > 0$"):
        module.dvc_repro("check")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            ['  File "train.py", line 3', "RuntimeError: it crashes", "", "ValueError: and so", "ERROR: failed to run"],
            "RuntimeError: it crashes",
        ),
        (
            ["Traceback (most recent call last):", "torch.cuda.OutOfMemoryError: full"],
            "torch.cuda.OutOfMemoryError: full",
        ),
        (["1 Error: no", "ERROR: failed to reproduce, exited with -9"], "failed to reproduce, exited with -9"),
        (["a line"], "exit code 1"),
    ],
)
def test_the_first_line_about_an_error_is_the_reason(
    fake_dvc: Callable[[int, list[str]], list[list[str]]], lines: list[str], reason: str
) -> None:
    fake_dvc(1, lines)
    with pytest.raises(module.StageError) as raised:
        module.dvc_repro("train@fedavg-0")
    assert str(raised.value) == f"train@fedavg-0: {reason}"


def test_dvc_alone_caches_and_only_training_is_retried() -> None:
    for task in (module.reproduce, module.train):
        assert task.cache_policy == NO_CACHE
    assert (module.reproduce.retries, module.train.retries) == (0, 1)


def test_results_become_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/leaderboard.csv").write_text("method,accuracy\nfedavg,0.8\nlocal,0.7\n")
    made: dict[str, dict[str, object]] = {}
    for kind in ("table", "link"):
        monkeypatch.setattr(module, f"create_{kind}_artifact", lambda kind=kind, **given: made.update({kind: given}))
    module.show_results()
    assert made["table"]["table"] == [{"method": "fedavg", "accuracy": "0.8"}, {"method": "local", "accuracy": "0.7"}]
    assert made["link"]["link"] == (tmp_path / "reports/index.html").as_uri()
