"""Bring a backup back, checked before anything is touched: `make restore FROM=...`.

The databases that are there are moved aside with their journals, the DVC cache and the files of models are added to,
never removed from. Of parameters and of what nights took in, files that are missing come back; others stay. After
that the addresses of models' files are those of this folder, wherever the backup was made.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import filecmp
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

from tasks.backup import (
    DATABASES,
    FILES,
    FOLDERS,
    MANIFEST,
    NIGHTLY,
    copy_database,
    copy_folder,
    digest,
    folders,
    newest,
)
from tasks.files import atomic_path, read_json
from tasks.parameters import run_step
from tasks.tracking_store import database_file


def restore(root: Path, source: Path) -> list[str]:
    """Bring a backup back into a project; return what was done as lines.

    Parameters
    ----------
    root
        The project, with its code; its results may be missing.
    source
        A backup, or the folder of several, then the newest.

    Raises
    ------
    ValueError
        When there is no backup or it is damaged, or `make serve` runs: then nothing is changed.
    """
    found = source if (source / MANIFEST).is_file() else newest(source)
    if found is None:
        raise ValueError(f"FROM={source}: holds no backup; expected a folder written by `make backup`")
    manifest = check(found)
    if is_serving(root):
        raise ValueError("`make serve` is running; `make stop` first")
    lines = []
    targets = {"prefect.db": root / ".prefect" / "prefect.db", "mlflow.db": database_file(root)}
    for name in manifest["databases"]:
        target = targets[name]
        if target is None:
            lines.append(f"left out: {name}, MLFLOW_TRACKING_URI names a server")
            continue
        lines += _replace_database(found / DATABASES / name, target, str(manifest["project"]), root)
    there = folders(root)
    for name in sorted(path.name for path in (found / FOLDERS).glob("*")):
        if name in NIGHTLY:
            lines += _return_folder(found / FOLDERS / name, there[name], root)
        elif name in there:
            copy_folder(found / FOLDERS / name, there[name], None)
            lines.append(f"restored: {there[name]}")
    for path in sorted(path for path in (found / FILES).rglob("*") if path.is_file()):
        lines += _return_file(path, root / path.relative_to(found / FILES), root)
    return lines


def check(backup: Path) -> dict[str, Any]:
    """Return a backup's manifest after comparing every file with it.

    Raises
    ------
    ValueError
        When a file is missing or another one than was written.
    """
    manifest = read_json(backup / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != 1:
        raise ValueError(f"{backup / MANIFEST}: format 1 was expected; restore with the version that wrote it")
    for name, size in manifest["sizes"].items():
        path = backup / name
        if not path.is_file() or path.stat().st_size != size:
            raise ValueError(f"{path}: damaged, {size} bytes were written; take an older backup")
    for name, expected in manifest["databases"].items():
        if digest(backup / DATABASES / name) != expected:
            raise ValueError(f"{backup / DATABASES / name}: damaged, its content has changed; take an older backup")
    return manifest


def is_serving(root: Path) -> bool:
    """Return whether `make serve` runs here: it holds the lock on its pid file."""
    path = root / ".prefect" / "serve.pid"
    if not path.exists():
        return False
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _replace_database(source: Path, target: Path, old_root: str, root: Path) -> list[str]:
    fresh = target.with_name(f".{target.name}.restored")
    fresh.unlink(missing_ok=True)
    copy_database(source, fresh)
    _move_addresses(fresh, Path(old_root), root)
    lines = [f"restored: {target}"]
    aside = target.with_name(f"{target.name}.before-restore-{time.strftime('%Y%m%d-%H%M%S')}")
    if target.exists():
        target.replace(aside)
        lines.append(f"moved aside: {aside}")
    for journal in ("-wal", "-shm", "-journal"):  # after a crash they hold what was committed last
        part = target.with_name(target.name + journal)
        if part.exists():
            part.replace(aside.with_name(aside.name + journal))
    fresh.replace(target)
    return lines


def _move_addresses(database: Path, old_root: Path, root: Path) -> None:
    """Let every address of a file below the old project's folder name this one."""
    old, new = (f"{(folder / 'mlruns').as_uri()}/" for folder in (old_root, root.resolve()))
    if old == new:
        return
    with contextlib.closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for _, column, kind, *_ in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
                if kind.upper().startswith(("VARCHAR", "TEXT")):
                    connection.execute(
                        f'UPDATE "{table}" SET "{column}" = ? || substr("{column}", ?)'
                        f' WHERE substr("{column}", 1, ?) = ?',
                        (new, len(old) + 1, len(old), old),
                    )
        connection.commit()


def _return_folder(source: Path, target: Path, root: Path) -> list[str]:
    """Copy the files that are missing, ledgers last: what one names is there when it is."""
    paths = sorted(
        (path for path in source.rglob("*") if path.is_file()), key=lambda path: (path.name == "ledger.json", path)
    )
    lines = [line for path in paths for line in _return_file(path, target / path.relative_to(source), root)]
    kept = [line for line in lines if line.startswith("kept")]
    return ([f"restored: {target}"] if len(kept) < len(lines) else []) + kept


def _return_file(source: Path, target: Path, root: Path) -> list[str]:
    """Copy a file that is missing; one that is there and differs is a person's to decide about."""
    if not target.exists():
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
        shutil.copystat(source, target)
        return [f"restored: {target.relative_to(root)}"]
    if filecmp.cmp(source, target, shallow=False):
        return []
    return [f"kept: {target.relative_to(root)} differs from the backup's; compare it with {source}"]


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True, help="a backup, or the folder of several")
    arguments = parser.parse_args()
    for line in restore(Path.cwd(), arguments.source):
        print(line)
    print("next: `dvc checkout` puts data, runs and reports back from the cache")


if __name__ == "__main__":
    run_step(main)
