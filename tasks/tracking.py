"""Trackers: follow a training run in MLflow and on the terminal.

`MlflowTracker` does everything that touches MLflow in a thread of its own, so training neither waits for the import
nor for the database. What is not written there while a training runs, `tasks.publish` writes later from the run folder.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from tasks.parameters import run_step
from tasks.tracking_runs import ROUND_SECONDS, SUPERSEDED, Point, create_run, find_run, log_points, logged_points
from tasks.tracking_store import ensure_experiment, open_client, prepare_database, readable_errors, tracking_uri

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from fedcore.tracking import Tracker

__all__ = [
    "ConsoleTracker",
    "MlflowTracker",
    "MultiTracker",
    "SafeTracker",
    "prepare_database",
    "tracking_uri",
]

Status = Literal["finished", "failed"]


class MlflowTracker:
    """Log a training run live.

    The latest figures are written every now and then: one takes MLflow longer than a fast round takes a GPU. Of a
    training that failed every round is written at the end, as it leaves no run folder to read them from.

    The run is found by its ``run_key``, so a resumed training continues it; rounds it has logged before are not
    logged twice. Training again from nothing what had finished starts a new run and marks the old one superseded.

    Parameters
    ----------
    config : mapping
        Content of the run's ``config.json``; ``experiment``, ``label``, ``seed`` and ``run_key`` are needed.
    lineage : mapping
        Content of ``lineage.json``.
    root : Path
        The project's root folder.
    period : float, seconds
        Of the rounds in such a time the last one is written live.
    patience : float, seconds
        The run is opened when training has lasted this long, or has failed: importing MLflow costs as much as a short
        training. One that finishes sooner is left to `tasks.publish`.
    clock : function returning seconds
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        lineage: Mapping[str, Any],
        root: Path,
        period: float = 2.0,
        patience: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._patience = patience
        self._config, self._lineage, self._root = config, lineage, root
        self._period, self._clock = period, clock
        self._jobs: queue.SimpleQueue[list[Point] | Status] = queue.SimpleQueue()
        self._latest: dict[str, Point] = {}  # by metric, since the last hand-over
        self._all: list[Point] = []
        self._handed_over = self._started = clock()
        self._resumed_at = 0
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self, rounds: int, resumed_at: int) -> None:
        """Open the run, now or when patience ends; returns at once."""
        self._resumed_at, self._started = resumed_at, self._clock()
        if not self._patience:
            self._open()

    def log(self, round: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Keep one round's metrics; hand the latest over when `period` seconds have passed."""
        self._raise_error()
        when, now = time.time_ns() // 1_000_000, self._clock()
        values = {**metrics, ROUND_SECONDS: seconds}
        points = [(name, round, float(value), when) for name, value in values.items() if not math.isnan(value)]
        self._all += points
        self._latest.update((point[0], point) for point in points)
        if now - self._handed_over >= self._period:
            self._jobs.put([*self._latest.values()])  # it waits there until the run is opened
            self._latest.clear()
            self._handed_over = now
        if self._thread is None and now - self._started >= self._patience:
            self._open()

    def end(self, status: Status) -> None:
        """Write the latest figures, or all of a failed training, and close the run; waits for it, a minute at most."""
        if self._thread is None:
            if status == "finished":
                return
            self._open()
        assert self._thread is not None
        self._jobs.put([*self._latest.values()] if status == "finished" else self._all)
        self._jobs.put(status)
        self._thread.join(timeout=60)
        self._raise_error()
        if self._thread.is_alive():
            raise TimeoutError("MLflow did not answer within a minute")

    def _open(self) -> None:
        # Daemon: a training that dies must not wait for a database that does not answer.
        self._thread = threading.Thread(target=self._work, args=(self._resumed_at,), name="mlflow", daemon=True)
        self._thread.start()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self, resumed_at: int) -> None:
        try:
            client = open_client(self._root)
            run_id, logged = self._open_run(client, resumed_at)
            while True:
                job = self._jobs.get()
                if isinstance(job, str):
                    client.set_terminated(run_id, "FINISHED" if job == "finished" else "FAILED")
                    return
                log_points(client, run_id, (point for point in job if point[:2] not in logged))
                logged.update(point[:2] for point in job)
        except Exception as error:
            self._error = error

    def _open_run(self, client: MlflowClient, resumed_at: int) -> tuple[str, set[tuple[str, int]]]:
        """Return the run's id and the points (metric, round) it has already."""
        experiment = ensure_experiment(client, self._config["experiment"], self._root)
        old = find_run(client, experiment, self._config["run_key"])
        if old is not None and (old.info.status != "FINISHED" or resumed_at > 0):
            client.update_run(old.info.run_id, status="RUNNING")
            return old.info.run_id, set(logged_points(client, old))
        new = create_run(client, experiment, self._config, self._lineage)
        if old is not None:
            client.set_tag(old.info.run_id, SUPERSEDED, new)
        return new, set()


class ConsoleTracker:
    """Show people how far a training is.

    On a terminal one line is updated in place; in a log, one line is written about every tenth of the rounds.

    Parameters
    ----------
    name : str
        What is trained, for example ``fedavg-0``.
    stream : text stream or None
        None: standard error.
    clock : function returning seconds
    """

    def __init__(self, name: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._name, self._stream, self._clock = name, stream or sys.stderr, clock
        self._live = self._stream.isatty()
        self._rounds = self._first = self._tenths = self._width = 0
        self._started = self._drawn = clock()
        self._accuracy = ""

    def start(self, rounds: int, resumed_at: int) -> None:
        """Say what begins, and from where it goes on."""
        self._rounds, self._first = rounds, resumed_at
        self._tenths = resumed_at * 10 // rounds
        self._started = self._drawn = self._clock()
        if resumed_at:
            self._write(f"{self._name}: goes on after round {resumed_at} of {rounds}", final=True)

    def log(self, round: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Show the round, the latest accuracies, the rate and the remaining time."""
        self._accuracy = _accuracies(metrics) or self._accuracy
        now, last = self._clock(), round == self._rounds
        tenths = round * 10 // self._rounds
        if self._live:
            due = last or now - self._drawn >= 0.1
        else:
            due = tenths > self._tenths
        if not due:
            return
        self._tenths, self._drawn = tenths, now
        rate = (round - self._first) / max(now - self._started, 1e-9)
        parts = [f"round {round}/{self._rounds}", self._accuracy, f"{rate:.3g} rounds/s"]
        if not last:
            parts.append(f"{_duration((self._rounds - round) / rate)} left" if rate > 0 else "")
        self._write(f"{self._name}: " + ", ".join(part for part in parts if part), final=last)

    def end(self, status: Status) -> None:
        """Say so when the training failed."""
        if status == "failed":
            self._write(f"{self._name}: failed", final=True)

    def _write(self, line: str, final: bool) -> None:
        if self._live:
            self._stream.write("\r" + line.ljust(self._width) + ("\n" if final else ""))
            self._width = 0 if final else len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


class MultiTracker:
    """Pass everything on to several trackers, in order."""

    def __init__(self, *trackers: Tracker):
        self._trackers = trackers

    def start(self, rounds: int, resumed_at: int) -> None:
        """Start every tracker."""
        for tracker in self._trackers:
            tracker.start(rounds, resumed_at)

    def log(self, round: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Log to every tracker."""
        for tracker in self._trackers:
            tracker.log(round, metrics, seconds)

    def end(self, status: Status) -> None:
        """End every tracker."""
        for tracker in self._trackers:
            tracker.end(status)


class SafeTracker:
    """Keep a tracker's failure from ending a training: say it once, leave the tracker alone from then on."""

    def __init__(self, tracker: Tracker, stream: TextIO | None = None):
        self._tracker, self._stream = tracker, stream or sys.stderr
        self._failed = False

    def start(self, rounds: int, resumed_at: int) -> None:
        """Start the tracker."""
        self._guard(lambda: self._tracker.start(rounds, resumed_at))

    def log(self, round: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Log to the tracker."""
        self._guard(lambda: self._tracker.log(round, metrics, seconds))

    def end(self, status: Status) -> None:
        """End the tracker."""
        self._guard(lambda: self._tracker.end(status))

    def _guard(self, call: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            call()
        except Exception as error:
            self._failed = True
            reason = (str(error).splitlines() or [""])[0]
            # The stream itself may be what is broken, for example a pipe whose reader has gone.
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(
                    f"warning: tracking stopped ({type(error).__name__}: {reason}); training goes on, and"
                    " `python -m tasks.publish` adds what is missing\n"
                )
                self._stream.flush()


def _accuracies(metrics: Mapping[str, float]) -> str:
    shown = []
    for view in ("global", "personal"):
        names = (f"{view}/val/accuracy", f"{view}/test/accuracy")
        value = next((metrics[name] for name in names if math.isfinite(metrics.get(name, math.nan))), None)
        if value is not None:
            shown.append(f"{view} {100 * value:.1f} %")
    return ", ".join(shown)


def _duration(seconds: float) -> str:
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def main() -> None:
    """Command line: prepare the tracking database of the project in the current folder."""
    parser = argparse.ArgumentParser(prog="python -m tasks.tracking", description="Prepare the tracking database.")
    parser.add_argument("--prepare", action="store_true", required=True, help="create or upgrade the database")
    parser.parse_args()
    with readable_errors():
        prepare_database(Path.cwd())


if __name__ == "__main__":
    run_step(main)
