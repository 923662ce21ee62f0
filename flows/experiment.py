"""The comparison as a Prefect flow: the stages of dvc.yaml, one task each, watched and retried.

DVC decides what is fresh, so no task caches, and `dvc repro` before or after finds the same work done. Training runs
one after another: DVC allows one run at a time in a folder. It runs in the current folder, which holds dvc.yaml.
"""

from __future__ import annotations

import csv
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.concurrency.sync import concurrency
from prefect.runtime import flow_run

from flows import gpus
from flows.processes import run
from tasks.parameters import read_config

BEFORE = ("check", "prepare", "partition", "virtual", "pseudo", "plan")
AFTER = ("compare", "report", "register")
LEADERBOARD = Path("reports/leaderboard.csv")
REPORT = Path("reports/index.html")


class StageError(RuntimeError):
    """A stage of dvc.yaml failed."""


@task(cache_policy=NO_CACHE, task_run_name="{stage}")
def reproduce(stage: str) -> None:
    """Bring one stage of dvc.yaml up to date; does nothing when it is."""
    dvc_repro(stage)


@task(cache_policy=NO_CACHE, task_run_name="train {label}-{seed}", retries=1, retry_delay_seconds=5)
def train(label: str, seed: int, on_gpu: bool) -> None:
    """Train one method with one seed; a retry goes on from the last checkpoint."""
    with concurrency(gpus.LIMIT, occupy=1, strict=True) if on_gpu else nullcontext():
        dvc_repro(f"train@{label}-{seed}")


@flow(name="experiment")
def experiment(gpu: bool | None = None) -> None:
    """Run the whole pipeline of params.yaml: every method with every seed, then the comparison, report and registry.

    Parameters
    ----------
    gpu
        Whether training takes a slot of the `gpu` concurrency limit; None: when a GPU is visible.

    Raises
    ------
    StageError
        When a stage failed. A failed training run does not stop the others; the stages after it do not run.
    """
    config = read_config()
    on_gpu = gpus.is_visible() if gpu is None else gpu
    if on_gpu:
        gpus.ensure_limit()

    for stage in BEFORE:
        reproduce(stage)

    runs = [(label, seed) for label in config.methods for seed in config.compare.seeds]
    states = {f"{label}-{seed}": train(label, seed, on_gpu, return_state=True) for label, seed in runs}
    failed = [name for name, state in states.items() if not state.is_completed()]
    if failed:
        raise StageError(
            f"{len(failed)} of {len(runs)} training runs failed: {', '.join(failed)}; the others are done and kept. "
            f"{', '.join(AFTER)} did not run; the task runs' logs say why, run the flow again once it is mended"
        )

    for stage in AFTER:
        reproduce(stage)
    show_results()


def dvc_repro(target: str) -> None:
    """Run `dvc repro` for one stage, its output in the run's log.

    Raises
    ------
    StageError
        When it ends with another exit code than 0; the message carries its last line about an error.
    """
    log = get_run_logger()
    complaint = ""

    def on_line(line: str) -> None:
        nonlocal complaint
        if line:
            log.info(line)
        if line.lower().startswith("error"):
            complaint = complaint or line

    command = [sys.executable, "-m", "dvc", "repro", "--single-item", target]
    code = run(command, on_line=on_line, environment=stage_environment())
    if code:
        raise StageError(f"{target} failed with exit code {code}. {complaint}".rstrip())


def stage_environment() -> dict[str, str]:
    """Return the environment of a stage: this one, our `python` first on the path, and which flow run started it."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "FEDCORE_FLOW_RUN": str(flow_run.get_id() or "")}


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
