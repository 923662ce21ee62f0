"""Atomic writes: a reader sees the old file or the whole new one, never half of it."""

from __future__ import annotations

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
    """Yield a temporary folder beside `path` that replaces it if the block succeeds and vanishes if it fails."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        with _named(target):
            yield temporary
        temporary.chmod(0o755)
        if target.is_dir():
            old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
            target.replace(old / "was")
            temporary.replace(target)
            shutil.rmtree(old)
        else:
            temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
