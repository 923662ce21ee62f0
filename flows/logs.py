"""Log files of the services: one per service, of bounded size, the older ones kept beside it as ``.1``, ``.2``, ...

The services write to a file that stays open, so a full one is copied and emptied instead of renamed. What is written
between the copy and the emptying, a line or two, is lost.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import IO

LIMIT_BYTES = 10_000_000
KEPT = 3


def open_log(path: Path) -> IO[bytes]:
    """Open a log for a service to append to; what an earlier start wrote becomes ``.1``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size:
        rotate(path)
    return path.open("ab")


def bound(path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Rotate a log that has grown over `limit_bytes`; one that cannot be copied is emptied all the same."""
    if path.exists() and path.stat().st_size > limit_bytes:
        rotate(path)


def rotate(path: Path) -> None:
    """Shift the kept logs by one, copy this one to ``.1`` and empty it, in place."""
    for number in range(KEPT - 1, 0, -1):
        older = _numbered(path, number)
        if older.exists():
            older.replace(_numbered(path, number + 1))
    try:
        shutil.copyfile(path, _numbered(path, 1))
    except OSError:  # a full disk must not keep the log growing
        _numbered(path, 1).unlink(missing_ok=True)
    with path.open("r+b") as file:
        file.truncate(0)


def last_line(path: Path) -> str:
    """Return the last line of a log that says something, a Python traceback's without what rich drew around it."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65_536))
        lines = [line.strip(" │╭╮╰╯─\n") for line in file.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
