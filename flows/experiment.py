"""The comparison as a Prefect flow: the stages of dvc.yaml, one task each, watched and retried.

DVC decides what is fresh, so no task caches, and `dvc repro` before or after finds the same work done. Without a GPU
one training follows another; with GPUs as many run side by side as their memory takes (`flows.gpus`). It runs in the
current folder, which holds dvc.yaml.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run, task_run
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows import gpus
from flows.processes import Complaint, run
from tasks.parameters import read_config

BEFORE = ("check", "prepare", "partition", "virtual", "pseudo", "plan")
AFTER = ("compare", "report", "register")
LEADERBOARD = Path("reports/leaderboard.csv")
REPORT = Path("reports/index.html")
RUNS = Path("runs")
GPU_LEASES = Path(".prefect/gpus")
RUNNER: TaskRunner[Any] = ThreadPoolTaskRunner(max_workers=16)  # only for trainings on GPUs, which wait for room there


class StageError(RuntimeError):
    """A stage of dvc.yaml failed."""


@task(cache_policy=NO_CACHE, task_run_name="{stage}")
def reproduce(stage: str) -> None:
    """Bring one stage of dvc.yaml up to date; does nothing when it is."""
    dvc_repro(stage)


@task(cache_policy=NO_CACHE, task_run_name="train {label}-{seed}", retries=1, retry_delay_seconds=5)
def train(label: str, seed: int, on_gpu: bool, folder: str | None = None) -> None:
    """Train one method with one seed; a retry goes on from the last checkpoint, and has a GPU for itself.

    `folder` is the project's where that is not the current one: on a node of a Ray cluster.
    """
    if folder is not None:
        os.chdir(folder)
    target = f"train@{label}-{seed}"
    log = get_run_logger()
    wanted = None if task_run.run_count > 1 else gpus.needed_bytes(RUNS, label)
    visible = gpus.visible_gpus() if on_gpu else []
    waiting = "waiting for a GPU with room; `make status` says who has them"
    with gpus.lease(gpu_leases(), visible, wanted, holder=target, on_wait=lambda: log.info(waiting)) as held:
        dvc_repro(target, held)


@flow(name="experiment", task_runner=RUNNER)
def experiment(gpu: bool | None = None, ray_address: str | None = None) -> None:
    """Run the whole pipeline of params.yaml: every method with every seed, then the comparison, report and registry.

    Parameters
    ----------
    gpu
        Whether a training takes a share of a GPU; None: when one is visible and ``train.device`` allows it.
    ray_address
        Where to train: ``host:port`` or ``ray://host:port`` of a Ray cluster whose nodes see this folder under the same
        path; every training then is a task of the cluster. None: on this machine.

    Raises
    ------
    StageError
        When a stage failed. A failed training run does not stop the others; the stages after it do not run.
    """
    config = read_config()
    on_gpu = config.train.device != "cpu" and gpus.is_visible() if gpu is None else gpu

    for stage in BEFORE:
        reproduce(stage)

    runs = [(label, seed) for label in config.methods for seed in config.compare.seeds]
    states = train_all(runs, on_gpu) if ray_address is None else train_on_ray(ray_address, runs, on_gpu)
    failed = [name for name, state in states.items() if not state.is_completed()]
    if failed:
        raise StageError(
            f"{len(failed)} of {len(runs)} training runs failed: {', '.join(failed)}; the others are done and kept. "
            f"{', '.join(AFTER)} did not run; the task runs' logs say why, run the flow again once it is mended"
        )

    for stage in AFTER:
        reproduce(stage)
    show_results()


def train_all(runs: list[tuple[str, int]], on_gpu: bool) -> dict[str, State[Any]]:
    """Train every method with every seed; return the states by ``<label>-<seed>``."""
    names = [f"{label}-{seed}" for label, seed in runs]
    if not on_gpu:
        return {name: train(*run, on_gpu, return_state=True) for name, run in zip(names, runs, strict=True)}
    futures = [train.submit(label, seed, on_gpu) for label, seed in runs]
    for future in futures:
        future.wait()
    return {name: future.state for name, future in zip(names, futures, strict=True)}


def train_on_ray(address: str, runs: list[tuple[str, int]], on_gpu: bool) -> dict[str, State[Any]]:
    """Train every method with every seed as tasks of a Ray cluster; return the states by ``<label>-<seed>``.

    Raises
    ------
    StageError
        When prefect-ray is not installed, or there is no cluster at this address.
    """
    if importlib.util.find_spec("prefect_ray") is None:
        raise StageError("ray_address needs the package prefect-ray; run `pip install fedcore[ray]`")
    from prefect_ray import RayTaskRunner

    runner: TaskRunner[Any] = RayTaskRunner(address=address, init_kwargs={"log_to_driver": False})
    try:
        states: dict[str, State[Any]] = trainings.with_options(task_runner=runner)(runs, on_gpu, str(Path.cwd()))
    except ConnectionError as error:
        said = str(error).splitlines() or [""]
        raise StageError(f"ray_address: no Ray cluster at '{address}'; start one with `ray start`: {said[0]}") from None
    return states


@flow(name="trainings", validate_parameters=False)
def trainings(runs: list[tuple[str, int]], on_gpu: bool, folder: str) -> dict[str, State[Any]]:
    """Train side by side, on as many workers as there are; one that fails does not stop the others."""
    futures = {f"{label}-{seed}": train.submit(label, seed, on_gpu, folder) for label, seed in runs}
    for future in futures.values():
        future.wait()
    return {name: future.state for name, future in futures.items()}


class LoggedOutput:
    """A command's output on its way into the run's log.

    Attributes
    ----------
    complaint : Complaint
        What the output says went wrong.
    """

    def __init__(self, log: Callable[[str], object]) -> None:
        self.complaint = Complaint()
        self._log = log

    def take(self, line: str) -> None:
        """Log a line."""
        if line:
            self._log(line)
        self.complaint.hear(line)


def dvc_repro(target: str, held: gpus.Lease | None = None) -> None:
    """Run `dvc repro` for one stage, its output in the run's log; on the leased GPU, if there is one.

    Raises
    ------
    StageError
        When it ends with another exit code than 0; the message carries its first line about an error.
    """
    output = LoggedOutput(get_run_logger().info)
    # Another dvc command, started by hand or by a training beside this one, holds the lock for moments only.
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", target]
    environment = {**stage_environment(), **(held.environment if held else {})}
    keep_open = [held.file.fileno()] if held else []
    code = run(command, on_line=output.take, environment=environment, keep_open=keep_open)
    if code:
        raise StageError(f"{target}: {output.complaint.text or f'exit code {code}'}")


def gpu_leases() -> Path:
    """Return the folder of the leases: the project's, or FEDCORE_GPU_LEASES, to share GPUs with other projects."""
    return Path(os.environ.get("FEDCORE_GPU_LEASES") or GPU_LEASES)


def stage_environment() -> dict[str, str]:
    """Return the environment of a stage: this one, our `python` first on the path, and which flow run started it."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    own = {"FEDCORE_FLOW_RUN": flow_run.get_id(), "FEDCORE_FLOW_RUN_NAME": flow_run.get_name()}
    return {**os.environ, "PATH": path, **{name: str(value or "") for name, value in own.items()}}


def show_results() -> None:
    """Attach the leaderboard and a link to the report to the flow run."""
    with LEADERBOARD.open(newline="", encoding="utf-8") as file:
        rows = [dict(row) for row in csv.DictReader(file)]
    create_table_artifact(key="leaderboard", table=rows, description="Every method over its seeds; see the report.")
    create_link_artifact(key="report", link=REPORT.resolve().as_uri(), link_text="report (a file on this machine)")


if __name__ == "__main__":
    from flows.server import with_or_without_server

    with with_or_without_server():
        experiment()
