"""Atomic writes: a reader sees the old file or the whole new one, never half of it."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary file beside `path` that replaces it if the block succeeds and vanishes if it fails."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        with _named(target):
            yield temporary
            temporary.chmod(0o644)
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` if the block succeeds and vanishes if it fails.

    A kill leaves a hidden folder beside `path`, which the next write of `path` that succeeds removes.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    lock = os.open(holder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: leftovers stay there
            fcntl.flock(lock, fcntl.LOCK_EX)
        temporary = holder / "new"
        temporary.mkdir()
        with _named(target):
            yield temporary
        temporary.chmod(0o755)
        if target.is_dir():
            target.replace(holder / "was")
        temporary.replace(target)
        _sweep(target)
    finally:
        shutil.rmtree(holder, ignore_errors=True)
        os.close(lock)


def _sweep(target: Path) -> None:
    """Remove what killed writes of `target` left: folders whose lock nobody holds any more."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.????????"):
        with contextlib.suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


@contextmanager
def _named(target: Path) -> Iterator[None]:
    """Give an `OSError` that names no file, as that of a write to a full disk, the name of what was written."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            raise type(error)(error.errno, error.strerror, str(target)) from error
        raise


def atomic_write_bytes(path: Path | str, data: bytes) -> None:
    """Write `data` to `path` in one step."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def atomic_write_text(path: Path | str, text: str) -> None:
    """Write `text` (UTF-8) to `path` in one step."""
    atomic_write_bytes(path, text.encode())


def to_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys; NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: Path | str, value: Any) -> None:
    """Write `value` as JSON, in one step."""
    atomic_write_text(path, to_json(value))


def read_json(path: Path | str) -> Any:
    """Read a JSON file; a missing or broken one is a one-line `ValueError` that names it."""
    try:
        return json.loads(Path(path).read_text())
    except FileNotFoundError:
        raise ValueError(f"{path}: does not exist; run `dvc repro`") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not readable as JSON ({error})") from None
