"""The one process that serves a project: it holds the lock on a file that says its number."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from flows.recovery import ServeError


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock on the pid file; the kernel drops it when the process ends, so a stale file does no harm."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ServeError(f"already running (process {file.read().strip()}); `make stop` ends it") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def owner(root: Path) -> int | None:
    """Return the process that serves this project, None when there is none."""
    path = root / ".prefect" / "serve.pid"
    if not path.exists():
        return None
    with path.open("a+") as file:
        if is_free(file):
            return None
        file.seek(0)
        text = file.read().strip()
        return int(text) if text.isdigit() else None


def is_free(file: IO[str]) -> bool:
    """Return whether nobody holds the lock of an open file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True
