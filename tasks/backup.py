"""Copy what cannot be made again into a folder of its own, while everything runs: `make backup TO=...`.

That is the tracking database and registry with their files, the history of flow runs, the DVC cache with dvc.lock, the
parameters, and what nights took in, counted and reported, which is neither in git nor in the cache. The databases are
copied by SQLite's own backup, which is consistent while somebody writes. Files that did not change are shared with the
backup before (hard links) where that is possible.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import hashlib
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from tasks.files import atomic_path, read_json, write_json
from tasks.locks import alone
from tasks.parameters import run_step
from tasks.tracking_store import artifact_folder, database_file, open_database

MANIFEST = "backup.json"
DATABASES, FOLDERS, FILES = "databases", "folders", "files"
SMALL = ("params.yaml", "dvc.yaml", "dvc.lock", ".dvc/config", ".dvc/config.local")
# What the nightly run keeps at its default places, by the name in a backup; its files may be replaced by newer ones.
NIGHTLY = {
    "accepted": "data/accepted",
    "statistics": "data/statistics",
    "archive": "data/archive",
    "rejected": "data/rejected",
    "nights": "reports/nightly",
}
_UNFINISHED = re.compile(r"\d{8}-\d{6}\.partial")


def backup(root: Path, target: Path) -> Path:
    """Write a backup of a project into a new folder below `target`; return that folder.

    It appears in one step: an interrupted one leaves only a folder ``<time>.partial``, which the next removes.

    Raises
    ------
    ValueError
        When the project has nothing to keep, `target` is inside it, or another backup is being written there.
    """
    if target.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"TO={target}: is inside the project; a backup belongs on another disk")
    databases = {name: file for name, file in _databases(root).items() if file.is_file()}
    if not databases and not (root / ".dvc").is_dir():
        raise ValueError(f"{root}: nothing to back up; run from the project's root folder")
    with alone(target / ".backup.lock", lambda holder: _refuse(target, holder)):
        return _write(root, target, databases)


def _refuse(target: Path, holder: str) -> NoReturn:
    raise ValueError(f"TO={target}: {holder} is writing a backup there; wait for its end")


def _write(root: Path, target: Path, databases: dict[str, Path]) -> Path:
    for left in target.glob("*.partial"):
        if _UNFINISHED.fullmatch(left.name):
            shutil.rmtree(left)
    earlier = newest(target)
    final = target / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    if final.exists():
        raise ValueError(f"{final}: exists already; wait a second")
    partial = final.with_name(f"{final.name}.partial")
    # Databases before files, dvc.lock before the cache: what a copied record names was there when it was copied.
    for name, file in databases.items():
        copy_database(file, partial / DATABASES / name)
    copied = [name for name in SMALL if (root / name).is_file()]
    for name in copied:
        (partial / FILES / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, partial / FILES / name)
    for name, folder in folders(root).items():
        if folder.is_dir():
            shared = None if earlier is None else earlier / FOLDERS / name
            copy_folder(folder, partial / FOLDERS / name, shared, name not in NIGHTLY)
    write_json(
        partial / MANIFEST,
        {
            "format": 1,
            "project": str(root.resolve()),
            "versions": {name: metadata.version(name) for name in ("mlflow", "prefect", "dvc")},
            "databases": {name: digest(partial / DATABASES / name) for name in databases},
            "sizes": {path.relative_to(partial).as_posix(): path.stat().st_size for path in _files(partial)},
        },
    )
    partial.replace(final)
    return final


def folders(root: Path) -> dict[str, Path]:
    """Return the folders of a project that a backup holds, by the name they have there; some may not exist."""
    artifacts = artifact_folder(root)
    nightly = {name: root / folder for name, folder in NIGHTLY.items()}
    return {"cache": cache_folder(root), **({"artifacts": artifacts} if artifacts else {}), **nightly}


def cache_folder(root: Path) -> Path:
    """Return where DVC keeps the contents of outputs: ``cache.dir`` of its project settings, or its default place."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read([root / ".dvc" / "config", root / ".dvc" / "config.local"])
    return root / ".dvc" / settings.get("cache", "dir", fallback="cache")


def newest(target: Path) -> Path | None:
    """Return the newest finished backup below `target`."""
    found = sorted(path.parent for path in target.glob(f"*/{MANIFEST}") if not path.parent.name.endswith(".partial"))
    return found[-1] if found else None


def copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database as it is between two of its writers' transactions.

    Raises
    ------
    ValueError
        When the source is no database.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            contextlib.closing(open_database(source)) as old,
            contextlib.closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
            new.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{source}: cannot be copied ({error})") from None


def copy_folder(source: Path, target: Path, shared: Path | None, with_hidden: bool = True) -> None:
    """Copy a folder's files; those that `shared` has with the same size and time are linked to it.

    Ledgers come first: what a copied one names was there when it was copied. What is hidden may be half written.
    """
    for is_ledger in (True, False):
        for path in _files(source):
            relative = path.relative_to(source)
            is_hidden = any(part.startswith(".") for part in relative.parts)
            if (path.name == "ledger.json") is is_ledger and (with_hidden or not is_hidden):
                _copy(path, target / relative, shared and shared / relative)


def _copy(path: Path, copy: Path, earlier: Path | None) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    if _is_same(path, copy) or (earlier and _is_same(path, earlier) and _linked(earlier, copy)):
        return
    with contextlib.suppress(FileNotFoundError):  # a temporary file that is gone again
        with atomic_path(copy) as temporary:
            shutil.copyfile(path, temporary)
        shutil.copystat(path, copy)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _databases(root: Path) -> dict[str, Path]:
    tracking = database_file(root)
    return {"prefect.db": root / ".prefect" / "prefect.db", **({"mlflow.db": tracking} if tracking else {})}


def _is_same(path: Path, earlier: Path) -> bool:
    if not (path.is_file() and earlier.is_file()):
        return False
    one, other = path.stat(), earlier.stat()
    return (one.st_size, int(one.st_mtime)) == (other.st_size, int(other.st_mtime))


def _linked(earlier: Path, copy: Path) -> bool:
    try:
        os.link(earlier, copy)
    except OSError:  # a file system without hard links
        return False
    return True


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, required=True, help="folder that holds the backups")
    arguments = parser.parse_args()
    written = backup(Path.cwd(), arguments.to)
    sizes = read_json(written / MANIFEST)["sizes"]
    print(f"{written}: {len(sizes)} files, {sum(sizes.values()) / 1e6:.1f} MB")
    if database_file(Path.cwd()) is None:
        print("not in it: the tracking database, it is on a server; use its own tool, such as pg_dump")
    if artifact_folder(Path.cwd()) is None:
        print("not in it: models and artifacts, they are in a store of their own")


if __name__ == "__main__":
    run_step(main)
