"""A command ends with whoever started it, and takes all its descendants with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.processes import Guarded, run, sigterm_raises

PATIENCE = 20.0

# A process that starts a child in a session of its own, as a Prefect worker does, says both ids, then waits for ever.
FAMILY = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""
# One that does not listen to SIGTERM.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(600)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_gone(pid: int) -> bool:
    """Wait for the end of any process; a zombie has ended."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        _, alive = psutil.wait_procs([process], timeout=PATIENCE)
        return not alive or alive[0].status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def family() -> Iterator[tuple[Guarded, int]]:
    with Guarded(python(FAMILY), grace=5) as process:
        yield process, int(next(process.lines()))


def test_run_hands_over_lines_and_the_exit_code() -> None:
    lines: list[str] = []
    code = run(python("import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"), on_line=lines.append)
    assert code == 3
    assert sorted(lines) == ["one", "two"]


def test_run_passes_exactly_the_environment_given() -> None:
    lines: list[str] = []
    command = python("import os; print(os.environ.get('FEDCORE_FLOW_RUN'), 'HOME' in os.environ)")
    run(command, on_line=lines.append, environment={"FEDCORE_FLOW_RUN": "abc"})
    assert lines == ["abc False"]


def test_death_by_signal_is_no_success() -> None:
    assert run(python("import os; os.kill(os.getpid(), 9)"), on_line=lambda _: None) == 128 + 9


def test_stop_ends_descendants_in_other_sessions(family: tuple[Guarded, int]) -> None:
    process, grandchild = family
    process.stop()
    assert is_gone(grandchild)


def test_what_ignores_sigterm_is_killed_after_the_grace() -> None:
    with Guarded(python(STUBBORN), grace=0.2) as process:
        pid = int(next(process.lines()))
    assert is_gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to the guard")
def test_what_a_killed_command_leaves_behind_is_ended() -> None:
    """A worker ended by the kernel cannot end its flow runs, which have sessions of their own."""
    with Guarded(python(FAMILY), grace=5) as process:
        grandchild = int(next(process.lines()))
        psutil.Process(grandchild).parent().kill()
        assert process.wait(PATIENCE) == 128 + 9
        assert is_gone(grandchild)


def test_an_exception_while_reading_ends_the_command() -> None:
    pids = []

    def on_line(line: str) -> None:
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(python(FAMILY), on_line=on_line, grace=5)
    assert is_gone(pids[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_command_does_not_outlive_a_killed_owner(number: int) -> None:
    """Also not after SIGKILL, which the owner cannot answer: the guard sees its pipe close."""
    owner = f"from flows.processes import run; run({python(FAMILY)!r}, on_line=lambda l: print(l, flush=True), grace=5)"
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(python(owner), stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        process.send_signal(number)
        process.wait(PATIENCE)
        assert is_gone(grandchild)


def test_a_background_jobs_command_still_listens_to_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        lines: list[str] = []
        run(python("import signal; print(signal.getsignal(signal.SIGINT) != signal.SIG_IGN)"), on_line=lines.append)
    finally:
        signal.signal(signal.SIGINT, before)
    assert lines == ["True"]


def test_sigterm_becomes_an_exit_meanwhile_and_is_put_back() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as exit_, sigterm_raises():
            signal.raise_signal(signal.SIGTERM)
        assert exit_.value.code == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_handler_of_sigterm_stays() -> None:
    def theirs(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, theirs)
    try:
        with sigterm_raises():
            assert signal.getsignal(signal.SIGTERM) is theirs
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)
