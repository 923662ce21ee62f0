"""What a run costs beside training: checkpoints, progress, tracking, and starting commands.

Tracking and commands need the pipeline's packages and are left out, with a line that says so, where they are missing.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.engine import composition, make_train, make_training
from benchmarks.options import add_data_options, chosen_sources, one_thread, run_command, write_json
from benchmarks.report import seconds
from benchmarks.workloads import SIMULATORS, build
from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.progress import save

_ROOT = Path(__file__).parent.parent
_ROUND = 0.1  # seconds; the length of a round that shares are of
_TIMES = 5
_ROUNDS = 400  # that a tracker hears of


def main() -> None:
    """Measure, print, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, default=SIMULATORS)
    parser.add_argument("--pipeline", action="store_true", help="also time `dvc repro` with nothing to do, here")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    one_thread()
    facts, rows = machine.facts(), []
    for row in measured(arguments):
        share = f" ({row['share']} of a round of 100 ms)" if "share" in row else ""
        print(f"{seconds(row['seconds']):>10}  {row['what']}{share}", flush=True)
        rows.append(row)
    if arguments.json:
        write_json(arguments.json, {"machine": facts, "costs": rows})


def measured(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row per cost."""
    for name in arguments.workloads:
        yield from checkpoint(name, arguments)
    try:
        yield progress_line()
        yield tracking()
    except ImportError as error:
        print(f"            tracking is left out: no {error.name} here")
    yield command("python -c 'import fedcore.engine.rounds'", [sys.executable, "-c", "import fedcore.engine.rounds"])
    for step in ("train", "report", "check"):
        yield command(f"python -m tasks.{step} --help", [sys.executable, "-m", f"tasks.{step}", "--help"])
    if arguments.pipeline:
        repro = ["dvc", "repro"]
        _run(repro)
        yield command("dvc repro, nothing to do", repro)


def checkpoint(name: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what writing a checkpoint takes after a round, with the models chosen so far."""
    workload = build(name, chosen_sources(arguments), arguments.scale)
    train = make_train(workload, rounds=1, device="cpu")
    training = make_training(workload, composition({}), train)
    training.run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        taken = median(_times(lambda: save(training.progress, Checkpoint(path, "key"))))
        size = path.stat().st_size / 1e6
    every = train.checkpoint_every
    what = f"a checkpoint of {name}, {size:.2g} MB, every {every} rounds"
    yield {"what": what, "seconds": taken, "share": _share(taken / every)}


def progress_line() -> dict[str, Any]:
    """Return what the console's tracker takes to hear of a round."""
    from tasks.tracking import ConsoleTracker

    tracker = ConsoleTracker("fedavg seed 0", io.StringIO())
    tracker.start(_ROUNDS, 0)
    began = time.process_time()
    for round in range(1, _ROUNDS + 1):
        tracker.log(round, _metrics(), _ROUND)
    taken = (time.process_time() - began) / _ROUNDS
    return {"what": "the progress line, a round", "seconds": taken, "share": _share(taken)}


def tracking() -> dict[str, Any]:
    """Return the CPU time MLflow takes a round, its own thread and database included.

    The difference of a long and a short run, which have the import and the start and end of a run in common.
    """
    from tasks.tracking_store import prepare_database

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlruns/mlflow.db"
        prepare_database(Path(folder))
        short = _ROUNDS // 10
        _tracked(Path(folder), "0", short)  # imports MLflow
        taken = (_tracked(Path(folder), "1", _ROUNDS) - _tracked(Path(folder), "2", short)) / (_ROUNDS - short)
    return {"what": "MLflow, a round, CPU time of its thread and database", "seconds": taken, "share": _share(taken)}


def _tracked(folder: Path, key: str, rounds: int) -> float:
    """Return the CPU time of a tracked run without training.

    Rounds pass on a clock of our own, so that MLflow's thread writes as often as it would at 100 ms a round.
    """
    from tasks.tracking import MlflowTracker

    now = 0.0
    config: dict[str, Any] = {name: {} for name in ("add", "presets", "settings", "train", "model")}
    config.update({"experiment": "benchmark", "label": "fedavg", "method": "fedavg", "seed": 0, "run_key": key})
    lineage: dict[str, Any] = {"dataset_hash": "", "partition_hash": "", "seed": 0, "versions": {}, "run_key": key}
    tracker = MlflowTracker({**config, "dataset": {"name": "none"}}, lineage, folder, clock=lambda: now)
    began = time.process_time()
    tracker.start(rounds, 0)
    for round in range(1, rounds + 1):
        now += _ROUND
        tracker.log(round, _metrics(), _ROUND)
    tracker.end("finished")
    return time.process_time() - began


def command(what: str, words: list[str]) -> dict[str, Any]:
    """Return what a command takes from start to end."""
    return {"what": what, "seconds": median(_times(lambda: _run(words)))}


def _run(words: list[str]) -> None:
    done = subprocess.run(words, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"`{' '.join(words)}` failed: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")


def _times(call: Callable[[], object]) -> list[float]:
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return taken


def _metrics() -> dict[str, float]:
    """Return as many figures as a round of FedAvg with validation examples has."""
    views = ("global/val", "global/test", "personal/val", "personal/test")
    names = ("accuracy", "loss", "client_mean", "client_std", "worst_decile")
    values = {f"{view}/{name}": 0.5 for view in views for name in names}
    return {**values, "train/loss": 0.5, "cost/upload_bytes": 1e9, "cost/download_bytes": 1e9}


def _share(taken: float) -> str:
    return f"{100 * taken / _ROUND:.2g} %"


if __name__ == "__main__":
    run_command(main)
