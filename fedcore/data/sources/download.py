"""Fetch official files, or say in one line what has to lie where."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedcore.config import ConfigError, Problem
from fedcore.data.sources.progress import OnProgress, Progress

# A dead network must not hold a pipeline for minutes.
TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class Remote:
    """An official file: its name, its MD5 (32 hex digits), and the addresses to try, in this order."""

    name: str
    md5: str
    urls: tuple[str, ...]


def missing(what: str) -> ConfigError:
    """Return the mistake "files are missing"; `what` goes on, and says what to put where."""
    return ConfigError([Problem(("dataset", "root"), f"files are missing{what}")])


def md5_of(path: Path) -> str:
    """Return the MD5 of a file, 32 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def check_official(path: Path, md5: str) -> None:
    """Raise a ValueError that names the file unless it is the official one."""
    found = md5_of(path)
    if found != md5:
        raise ValueError(
            f"{path}: damaged or not the official file ({path.stat().st_size} bytes, MD5 {found}; official MD5 {md5});"
            " replace it, or delete it to have it downloaded"
        )


def fetch(
    folder: Path, files: Sequence[Remote], wanted: str, allowed: bool, on_progress: OnProgress | None = None
) -> None:
    """Download files into `folder`, each in one step once it is whole and its checksum is right.

    Until then it grows in ``.<name>.part``. What an interrupted download left there is kept, and the next one goes on
    behind it.

    Parameters
    ----------
    folder : made if it does not exist
    files : those that are missing
    wanted : "put X into Y", for the messages
    allowed : ``dataset.download``
    on_progress : called for every chunk of a file

    Raises
    ------
    ConfigError
        One line with `wanted`: downloads are not allowed, the folder cannot be written, or the download failed.
    """
    if not allowed:
        raise missing(f" and dataset.download is false; {wanted}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise missing(f" and {folder} cannot be written ({error.strerror}); {wanted}") from None
    for file in files:
        part = folder / f".{file.name}.part"
        try:
            _fetch(file, folder / file.name, part, on_progress)
        except (OSError, http.client.HTTPException) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            kept = part.stat().st_size if part.is_file() else 0
            if kept:
                reason += f"; {kept:,} bytes of {file.name} are kept, run again to go on"
            else:
                part.unlink(missing_ok=True)
            raise missing(f" and the download failed; {wanted} ({reason})") from None


def _fetch(file: Remote, target: Path, part: Path, on_progress: OnProgress | None) -> None:
    with part.open("ab") as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"another process is downloading {file.name}; wait for it") from None
        if target.is_file():  # another process has just finished it
            part.unlink(missing_ok=True)
            return
        is_rest = out.tell() > 0
        _transfer_from_any(file, out, on_progress)
        found = md5_of(part)
        if found != file.md5 and is_rest:
            # The beginning may be of another file, or of a version that is gone.
            _empty(out)
            _transfer_from_any(file, out, on_progress)
            found = md5_of(part)
        if found != file.md5:
            part.unlink()
            raise OSError(f"{file.name} came with MD5 {found}, the official one is {file.md5}")
        part.chmod(0o644)
        part.replace(target)


def _transfer_from_any(file: Remote, out: BinaryIO, on_progress: OnProgress | None) -> None:
    for url in file.urls:
        try:
            _transfer(url, f"download {file.name}", out, on_progress)
            return
        except (OSError, http.client.HTTPException) as error:
            failure = error
    raise failure


def _transfer(url: str, what: str, out: BinaryIO, on_progress: OnProgress | None) -> None:
    """Append what is missing; a connection that breaks is followed by another as long as they bring something."""
    longest = out.tell()
    while True:
        try:
            total = _connect(url, what, out, on_progress)
            if total is None or out.tell() >= total:
                return
            cut: Exception = ConnectionError(f"the connection to {url} ended early")
        except (OSError, http.client.HTTPException) as error:
            cut = error
        if out.tell() <= longest:
            raise cut
        longest = out.tell()


def _connect(url: str, what: str, out: BinaryIO, on_progress: OnProgress | None) -> int | None:
    """Append what one connection brings; return how long the whole file is, None if the server does not say."""
    have = out.tell()
    headers = {"User-Agent": "fedcore", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if have and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return have  # nothing is behind it: the checksum says whether that is right
        raise
    with response:
        if have and not str(response.headers.get("Content-Range", "")).startswith(f"bytes {have}-"):
            have = _empty(out)  # the server sends the whole file
        total = None if response.length is None else have + int(response.length)
        try:
            while chunk := response.read(CHUNK_BYTES):
                out.write(chunk)
                if on_progress is not None:
                    on_progress(Progress(what, "bytes", out.tell(), total))
        finally:
            out.flush()
    return total


def _empty(out: BinaryIO) -> int:
    out.seek(0)
    return out.truncate()
