"""Fetch official files, or say in one line what has to lie where."""

from __future__ import annotations

import http.client
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedcore.config import ConfigError, Problem

# A dead network must not hold a pipeline for minutes.
TIMEOUT_SECONDS = 30.0


def missing(what: str) -> ConfigError:
    """Return the mistake "files are missing"; `what` goes on, and says what to put where."""
    return ConfigError([Problem(("dataset", "root"), f"files are missing{what}")])


def fetch(folder: Path, wanted: str, allowed: bool, download: Callable[[], object]) -> None:
    """Run `download`, which writes elsewhere, after making sure that it may run and that `folder` can be written.

    Parameters
    ----------
    folder : where the files will go
    wanted : "put X into Y", for the messages
    allowed : ``dataset.download``

    Raises
    ------
    ConfigError
        One line ending in `wanted`.
    """
    if not allowed:
        raise missing(f" and dataset.download is false; {wanted}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise missing(f" and {folder} cannot be written ({error.strerror}); {wanted}") from None
    try:
        with _timeout():
            download()
    except (RuntimeError, OSError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise missing(f" and the download failed; {wanted} ({reason})") from None


def put(source: Path, folder: Path) -> None:
    """Copy a file into `folder` in one step."""
    temporary = folder / f".{source.name}.part"
    try:
        shutil.copyfile(source, temporary)
        temporary.replace(folder / source.name)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _timeout() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
