"""One process at a time: whoever comes second waits, says for whom, and a killed holder holds nobody up."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tasks import train
from tasks.locks import alone
from tests.pipeline.conftest import Project
from tests.pipeline.test_full_disk import make_inputs

ROOT = Path(__file__).parents[2]
SETTINGS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

# Says what happens on one pipe, and goes on when the other one is closed.
HOLDER = """
import subprocess, sys
from pathlib import Path
from tasks.locks import alone
with alone(Path(sys.argv[1]), lambda who: print("waits for", who, flush=True)) as has_waited:
    child = subprocess.Popen(["cat"])  # ends with this process's standard input, not with this process
    print("holds", has_waited, flush=True)
    sys.stdin.read()
"""


class Process:
    """A process that is told to go on by the end of its standard input."""

    def __init__(self, *command: str):
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **SETTINGS},
        )

    def line(self) -> str:
        """Wait for the next line it says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def until(self, word: str) -> str:
        """Wait for a line with this word, or for the end; return that line."""
        line = self.line()
        while line and word not in line:
            line = self.line()
        return line

    def end(self) -> str:
        """Let it go on to its end; return what else it says."""
        return self.process.communicate()[0]


@pytest.fixture
def start() -> Iterator[type[Process]]:
    started = []

    class Started(Process):
        def __init__(self, *command: str):
            super().__init__(*command)
            started.append(self.process)

    yield Started
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_second_waits_for_the_first(tmp_path: Path, start: type[Process], is_killed: bool) -> None:
    lock = tmp_path / "new" / "a.lock"
    one = start("-c", HOLDER, str(lock))
    assert one.line() == "holds False"
    two = start("-c", HOLDER, str(lock))
    assert two.line() == f"waits for process {one.process.pid}"
    if is_killed:
        one.process.kill()
    one.end()
    assert two.line() == "holds True"
    three = start("-c", HOLDER, str(lock))
    assert three.line() == f"waits for process {two.process.pid}"
    two.end()
    assert three.line() == "holds True"
    three.end()
    assert [process.process.returncode for process in (two, three)] == [0, 0]
    assert not list(lock.parent.iterdir())


def test_a_child_of_a_killed_holder_does_not_hold_the_lock(tmp_path: Path, start: type[Process]) -> None:
    one = start("-c", HOLDER, str(tmp_path / "lock"))
    assert one.line() == "holds False"
    one.process.kill()
    one.process.wait()
    two = start("-c", HOLDER, str(tmp_path / "lock"))
    assert two.line() == "holds False"


def test_whoever_does_not_want_to_wait_raises(tmp_path: Path) -> None:
    def refuse(holder: str) -> NoReturn:
        raise ValueError(f"held by {holder}")

    with alone(tmp_path / "lock", refuse):
        with pytest.raises(ValueError, match=f"held by process {os.getpid()}"), alone(tmp_path / "lock", refuse):
            pytest.fail("two hold it")
        assert (tmp_path / "lock").exists()


def test_a_file_system_without_locks_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    said = rf"No locks available; it needs file locks: '{tmp_path}/lock'"
    with pytest.raises(OSError, match=said), alone(tmp_path / "lock", str):
        pytest.fail("nothing is held")


def training(out: str) -> list[str]:
    where = ["--plan", "data/plans/scaffold.json", "--dataset", "data/set", "--partition", "data/p.npz"]
    return [*where, "--seed", "0", "--out", out, "--no-tracking"]


@pytest.fixture
def prepared(project: Project, step: Callable[..., tuple[int, list[str]]]) -> Project:
    """A training whose clients' states lie in a file, and that run untouched."""
    settings = {"rounds": 20, "batch_size": 32, "lr": 0.1, "checkpoint_every": 1, "store": "disk", "workers": 2}
    project.parameters["methods"] = {"scaffold": {}}
    project.parameters["compare"]["baseline"] = "scaffold"
    project.edit("train", settings)
    make_inputs(step)
    assert step(train.main, *training("untouched"))[0] == 0
    return project


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_training_that_an_earlier_start_is_at_still_ends_in_the_same_bytes(
    prepared: Project, start: type[Process], is_killed: bool
) -> None:
    """As when DVC is killed alone and started again."""
    one = start("-m", "tasks.train", *training("run"))
    assert one.until("round 2/20")
    one.process.send_signal(signal.SIGSTOP)
    two = start("-m", "tasks.train", *training("run"))
    assert two.line() == f"note: scaffold-0: waiting for process {one.process.pid}, which is training it"
    one.process.send_signal(signal.SIGKILL if is_killed else signal.SIGCONT)
    one.end()
    said = two.end()
    assert two.process.returncode == 0, said
    if is_killed:
        assert "scaffold seed 0: goes on after round" in said
    else:
        assert said == "note: scaffold-0: that process has finished it\n"
    for name in ("metrics.json", "history.csv", "model.safetensors", "personal.safetensors", "clients.parquet"):
        there = (prepared.folder / "run" / name).read_bytes()
        assert there == (prepared.folder / "untouched" / name).read_bytes(), name
    assert not list((prepared.folder / ".checkpoints").iterdir())
