"""One process at a time: a lock of the operating system on a file that says who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def alone(path: Path, when_held: Callable[[str], object]) -> Iterator[bool]:
    """Hold the lock on a file for the block, which finds out whether it had to wait; wait for whoever holds it.

    The lock is free as soon as its holder has ended, however it ended. The file is removed with the block.

    Parameters
    ----------
    path
        The file; its folder is made.
    when_held
        Called before waiting with who holds the lock, as ``process 123``; what it raises is raised instead of waiting.

    Raises
    ------
    OSError
        When the file cannot be written, or its file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    has_waited = False
    while True:
        with path.open("a+b", buffering=0) as file:
            if not _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
                when_held(_holder(file))
                has_waited = True
                _lock(file, fcntl.LOCK_EX)
            if not _is(file, path):  # its holder removed it meanwhile, and the next one makes another
                continue
            with contextlib.suppress(OSError):  # a full disk; the lock holds without the number
                file.truncate(0)
                file.write(f"{os.getpid()}\n".encode())
            try:
                yield has_waited
            finally:
                path.unlink(missing_ok=True)
            return


def _lock(file: IO[bytes], how: int) -> bool:
    """Return whether the lock could be had."""
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    except OSError as error:
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}; it needs file locks", str(file.name)) from None
    return True


def _holder(file: IO[bytes]) -> str:
    file.seek(0)
    number = file.read().decode(errors="replace").strip()
    return f"process {number}" if number.isdigit() else "another process"


def _is(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
