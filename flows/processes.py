"""Run a command that never outlives the process that started it, not even when that one is killed.

DVC leaves its running stage behind when it is terminated, and a retry would then train beside it; a Prefect worker
leaves its flow runs behind. So the command runs in a process group of its own under a small guard. The guard holds the
reading end of a pipe; when the pipe closes, because `Guarded.stop` closed it or because its owner died, the guard ends
the command and all its descendants: SIGTERM, a grace, SIGKILL. It does the same when the command ends by itself and
leaves something behind; on Linux that includes what left the command's process group and session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import psutil

# How Python ends a traceback: the exception's name at the beginning of the line, then what it says.
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt)(: |$)")


class Complaint:
    """The first line of a command's output that says what went wrong; what follows it is mostly a consequence.

    Attributes
    ----------
    text : str
        Empty as long as there was none.
    """

    def __init__(self) -> None:
        self.text = ""

    def hear(self, line: str) -> None:
        """Take the next line of the output."""
        if not self.text and (line.lower().startswith("error") or _EXCEPTION.match(line)):
            self.text = line.removeprefix("error: ").removeprefix("ERROR: ")


class Guarded:
    """A running command, ended with everything it started when this object, or its process, goes away.

    Parameters
    ----------
    command
        Program and arguments.
    environment
        The whole environment of the command; None for this process's own.
    output
        Where its output goes, errors included: an open file, or ``subprocess.PIPE`` to read it from `lines`.
    grace
        Seconds between SIGTERM and SIGKILL.
    keep_open
        File descriptors that stay open until everything has ended, also when this process ends before.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: int | IO[Any] = subprocess.PIPE,
        grace: float = 15.0,
        keep_open: Sequence[int] = (),
    ):
        self.grace = grace
        self._guard = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(grace), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            pass_fds=keep_open,
            start_new_session=True,  # a Ctrl-C in the terminal reaches us only, and we end the command in order
        )

    def lines(self) -> Iterator[str]:
        """Yield the command's output line by line until it ends."""
        assert self._guard.stdout is not None, "the output goes to a file"
        for line in self._guard.stdout:
            yield line.decode(errors="replace").rstrip()

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs."""
        return self._guard.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code (128 + the signal's number when a signal ended it)."""
        return self._guard.wait(timeout)

    def stop(self) -> None:
        """End the command and all it started; returns when they are gone."""
        if self._guard.stdin and not self._guard.stdin.closed:
            self._guard.stdin.close()
        try:
            self._guard.wait(self.grace + 10)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        if self._guard.stdout:
            self._guard.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def run(
    command: Sequence[str],
    *,
    on_line: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    grace: float = 15.0,
    keep_open: Sequence[int] = (),
) -> int:
    """Run `command` to its end, hand over its output line by line, return its exit code.

    Whatever ends the wait early (an exception, Ctrl-C, SIGTERM) ends the command and all it started first.
    """
    with sigterm_raises(), Guarded(command, environment=environment, grace=grace, keep_open=keep_open) as process:
        for line in process.lines():
            on_line(line)
        return process.wait()


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Turn SIGTERM into `SystemExit` meanwhile, unless somebody else handles it already (Prefect does in a worker)."""
    is_ours = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if is_ours:
        signal.signal(signal.SIGTERM, _raise_exit)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


# --- the guard: this file run as a script ----------------------------------------------------------------------------


def _guard(grace: float, command: Sequence[str]) -> int:
    # A shell's background jobs ignore Ctrl-C, and children inherit that; a Prefect worker then could not be ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _adopt_orphans()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    signal.signal(signal.SIGTERM, lambda *_: _exit_after_ending(child.pid, grace))
    # The handler above runs in the main thread only, so the watching thread asks for it by a signal to ourselves.
    threading.Thread(target=_signal_at_end_of_input, daemon=True).start()
    code = _wait_reaping(child.pid)
    _end(child.pid, grace)
    return code if code >= 0 else 128 - code


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that they can still be found and ended."""
    if sys.platform == "linux":
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _wait_reaping(pid: int) -> int:
    while True:
        ended, status = os.wait()  # adopted orphans too, or they would stay as zombies
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _signal_at_end_of_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _exit_after_ending(pid: int, grace: float) -> None:
    _end(pid, grace)
    os._exit(128 + signal.SIGTERM)


def _end(pid: int, grace: float) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    found = {*_with_descendants(pid), *_with_descendants(os.getpid())[1:]}
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=grace)
    # Whoever ignored SIGTERM, and what they started since.
    for process in {one for survivor in alive for one in _with_descendants(survivor.pid)}:
        with contextlib.suppress(psutil.Error):
            process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _with_descendants(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


if __name__ == "__main__":
    sys.exit(_guard(float(sys.argv[1]), sys.argv[2:]))
