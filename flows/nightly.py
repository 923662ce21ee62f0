"""The night: take in new data, look for drift, train every method, take the winners through the gate, report.

What a night does is recorded step by step (`tasks.nightly`), so that it is told whatever ends it: the report is written
and people are notified at the end, or by the next night when this one was cut off.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from flows import gpus
from flows.experiment import AFTER, LoggedOutput, StageError, reproduce, stage_environment, train_all
from flows.night_pages import attach, end_lost_run, run_name
from flows.processes import run
from flows.secret_values import secret_value
from tasks.files import read_json
from tasks.nightly import FOLDER, Night, begin, cut_off, ended
from tasks.notify import notify, read_section
from tasks.parameters import read_config

LOCK = Path("data/.nightly.lock")
INTAKE, DRIFT, PROMOTION = (FOLDER / "steps" / f"{name}.json" for name in ("intake", "drift", "promotion"))


@task(cache_policy=NO_CACHE, task_run_name="pull {folder}", retries=2, retry_delay_seconds=30)
def pull(folder: str) -> None:
    """Bring a folder that is tracked with `dvc add` up to date from the DVC remote."""
    command([sys.executable, "-m", "dvc", "pull", f"{folder.rstrip('/')}.dvc"])


@task(cache_policy=NO_CACHE, task_run_name="intake")
def take_in() -> dict[str, Any]:
    """Take in what has arrived; return what became of every file."""
    found: dict[str, Any] = _step("tasks.intake", INTAKE)
    return found


@task(cache_policy=NO_CACHE, task_run_name="drift")
def measure_drift() -> dict[str, Any]:
    """Compare what is new with the champion's data."""
    found: dict[str, Any] = _step("tasks.data_drift", DRIFT)
    return found


@task(cache_policy=NO_CACHE, task_run_name="gate")
def consider() -> list[dict[str, Any]]:
    """Take the challengers through the gate; return what became of them."""
    found: list[dict[str, Any]] = _step("tasks.promotion", PROMOTION, "promote")
    return found


@task(cache_policy=NO_CACHE, task_run_name="publish")
def publish(experiment: str) -> None:
    """Bring the tracking up to date with the runs that are done, when `register` will not."""
    command([sys.executable, "-m", "tasks.publish", "--experiment", experiment])


@flow(name="nightly", flow_run_name=run_name)
def retrain(night: str | None = None, gpu: bool | None = None) -> State[Any]:
    """Retrain on everything there is, and promote what passes the gate.

    One training that fails stops no other, and nothing is promoted then. The state of the run says how it ended:
    completed (promoted, kept or unchanged; with warnings it is called so), failed (nothing was promoted), or cancelled
    (another night is running in this folder).

    Parameters
    ----------
    night
        Name of the report in reports/nightly; None: today's date.
    gpu
        Whether training takes a slot of the `gpu` concurrency limit; None: when a GPU is visible.
    """
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(LOCK, timeout=0):
            return _retrain(night or date.today().isoformat(), gpu)
    except Timeout:
        return Cancelled(message="another night is running in this folder")


def _retrain(name: str, gpu: bool | None) -> State[Any]:
    log = get_run_logger()
    lost = cut_off()
    if lost is not None:
        log.error("night %s: %s", lost.name, lost.message)
        finish(lost)
        for line in end_lost_run(lost):
            log.warning(line)
    record = begin(name, flow_run.get_id())
    if lost is not None:
        record.warnings.append(f"night {lost.name} did not come to its end: {lost.errors[-1]}")
    try:
        record.enter(record.stage)
        renew(record, gpu)
    except Exception as error:
        record.errors.append(f"{record.stage}: {' '.join(str(error).split()) or type(error).__name__}")
        log.exception("the night failed in the stage '%s'", record.stage)
    except BaseException as error:
        record.errors.append(f"{record.stage}: the night was interrupted ({type(error).__name__})")
        finish(record)
        raise
    finish(record)
    if record.errors:
        return Failed(message=record.message)
    return Completed(message=record.message, name="CompletedWithWarnings" if record.warnings else "Completed")


def renew(night: Night, gpu: bool | None) -> None:
    """Do the night's work, noting in `night` how far it came.

    Raises
    ------
    StageError
        When a step failed that the others need.
    """
    config = read_config()
    night.experiment = config.experiment
    on_gpu = gpus.is_visible() if gpu is None else gpu
    _stages(night, "check", "prepare")
    if config.incoming is not None:
        if config.incoming.pull is not None:
            night.enter("pull")
            if not pull(config.incoming.pull, return_state=True).is_completed():
                night.warnings.append(f"`dvc pull {config.incoming.pull}.dvc` failed; the night went on without it")
        night.enter("intake")
        night.note_intake(take_in())
    _stages(night, "check", "prepare", "partition")
    night.enter("drift")
    night.note_drift(measure_drift(), stop=config.drift.on_drift == "stop")
    if night.errors:
        return
    _stages(night, "virtual", "pseudo", "plan")

    night.enter("train")
    states = train_all([(label, seed) for label in config.methods for seed in config.compare.seeds], on_gpu)
    done = [name for name, state in states.items() if state.is_completed()]
    failed = {name: _said(name, state) for name, state in states.items() if not state.is_completed()}
    night.note_training(failed, done)
    if failed:
        if done and not publish(night.experiment, return_state=True).is_completed():
            night.warnings.append("the runs that are done are not in MLflow yet; `make publish` adds them")
        return
    _stages(night, *AFTER)
    night.enter("promotion")
    night.promotion = consider()


def finish(night: Night) -> None:
    """Write the report, attach it to the flow run, and tell those who want to know; never fails.

    People are told even when the disk is full or another section of params.yaml is wrong.
    """
    from tasks.accepted import now

    log = get_run_logger()
    night.ended = now()
    night.warnings += _report(night)
    problems = attach(night)
    try:
        problems += notify(night, read_section(), secret_value)
    except Exception as error:
        problems += [f"notify: nobody was told ({type(error).__name__})"]
    for line in problems:
        log.warning(line)
    if problems:
        night.warnings += problems
        _report(night)
    with suppress(OSError):  # of a disk that cannot be written; the next night tells of this one again then
        ended()
    (log.error if night.errors else log.info)("night %s: %s. %s", night.name, night.status, night.message)


def _report(night: Night) -> list[str]:
    """Write the report; return what went wrong, one line or none."""
    log = get_run_logger()
    try:
        json_file, markdown_file = night.write()
    except OSError as error:
        log.error("the report of night %s could not be written: %s", night.name, error)
        return [f"the report could not be written ({error})"]
    log.info("report: %s, %s", markdown_file, json_file)
    return []


def command(arguments: list[str]) -> None:
    """Run a command with its output in the run's log.

    Raises
    ------
    StageError
        When its exit code is not 0; the message is its first line about an error.
    """
    output = LoggedOutput(get_run_logger().info)
    code = run(arguments, on_line=output.take, environment=stage_environment())
    if code:
        what = " ".join(arguments[2:4])
        raise StageError(output.complaint.text or f"`{what}` ended with exit code {code}")


def _step(module: str, out: Path, *arguments: str) -> Any:
    """Run a command line of tasks/ that writes its result to `out`, return the result."""
    out.unlink(missing_ok=True)
    command([sys.executable, "-m", module, *arguments, "--out", str(out)])
    return read_json(out)


def _said(name: str, state: State[Any]) -> str:
    text = " ".join((state.message or state.name or "failed").split())
    # What Prefect and the stage put before the reason.
    return text.removeprefix("Task run encountered an exception ").removeprefix(f"StageError: train@{name}: ")


def _stages(night: Night, *stages: str) -> None:
    for stage in stages:
        night.enter(stage)
        reproduce(stage)


def main() -> None:
    """Run a night from the command line: exit code 1 when it failed or was cancelled."""
    parser = argparse.ArgumentParser(prog="python -m flows.nightly", description=__doc__.split("\n\n")[0])
    parser.add_argument("--night", metavar="NAME", help="name of the report; default: today's date")
    arguments = parser.parse_args()
    from flows.server import with_or_without_server

    with with_or_without_server():
        state = retrain(night=arguments.night, return_state=True)
    print(f"{state.name}: {state.message}")
    sys.exit(0 if state.is_completed() else 1)


if __name__ == "__main__":
    main()
