"""A backup is consistent while others write, complete enough to start again from, and checked before it is restored."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tasks.backup import DATABASES, FOLDERS, backup, cache_folder, newest
from tasks.restore import restore

ROOT = Path(__file__).parent.parent.parent

# Moves money between two accounts for ever; at any moment the sum is 100, in a transaction's middle it is not.
WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
for number in range(10**9):
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE account SET amount = amount - 1 WHERE name = 'a'")
    connection.executemany("INSERT INTO note VALUES (?)", [("x" * 500,)] * 50)
    connection.execute("UPDATE account SET amount = amount + 1 WHERE name = 'b'")
    connection.execute("COMMIT")
    if number == 3:
        print("writing", flush=True)
"""


@pytest.fixture(autouse=True)
def _own_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_DEFAULT_ARTIFACT_ROOT", "DVC_STAGE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What a project keeps: both databases, a model's file, a cached content, parameters."""
    root = tmp_path / "project"
    for name in (".prefect", "mlruns/artifacts/m-1", ".dvc/cache/files/md5/ab"):
        (root / name).mkdir(parents=True)
    for name in (".prefect/prefect.db", "mlruns/mlflow.db"):
        with closing(sqlite3.connect(root / name)) as connection:
            connection.execute("CREATE TABLE account (name VARCHAR(10), amount INTEGER)")
            connection.executemany("INSERT INTO account VALUES (?, ?)", [("a", 100), ("b", 0)])
            connection.execute("CREATE TABLE note (text VARCHAR(500))")
            connection.execute("PRAGMA user_version = 7")
            connection.commit()
    (root / "mlruns/artifacts/m-1/model.safetensors").write_bytes(b"weights")
    content = root / ".dvc/cache/files/md5/ab/cdef"
    content.write_bytes(b"rows")
    content.chmod(0o444)
    (root / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    (root / "dvc.lock").write_text("schema: '2.0'\n")
    (root / "params.yaml").write_text("experiment: digits\n")
    return root


def rows(database: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(statement).fetchall()


def test_a_backup_taken_while_somebody_writes_is_of_one_moment(project: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(project / "mlruns/mlflow.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        written = backup(project, tmp_path / "backups")
        assert writer.poll() is None
        writer.kill()
    copy = written / DATABASES / "mlflow.db"
    ((total, least),) = rows(copy, "SELECT sum(amount), min(amount) FROM account")
    assert total == 100
    ((notes,),) = rows(copy, "SELECT count(*) FROM note")
    ((moved,),) = rows(copy, "SELECT amount FROM account WHERE name = 'b'")
    assert isinstance(moved, int)
    assert moved > 3
    assert (notes, least) == (50 * moved, min(moved, 100 - moved))


def test_everything_comes_back_in_another_folder(project: Path, tmp_path: Path) -> None:
    old = (project / "mlruns" / "artifacts").as_uri()
    with closing(sqlite3.connect(project / "mlruns/mlflow.db")) as connection:
        connection.execute("INSERT INTO note VALUES (?), (?)", (f"{old}/m-1", "s3://bucket/m-2"))
        connection.commit()
    backup(project, tmp_path / "backups")
    shutil.rmtree(project)
    other = tmp_path / "other machine"
    (other / ".dvc").mkdir(parents=True)
    (other / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    lines = restore(other, tmp_path / "backups")
    new = (other / "mlruns" / "artifacts").as_uri()
    assert rows(other / "mlruns/mlflow.db", "SELECT text FROM note") == [(f"{new}/m-1",), ("s3://bucket/m-2",)]
    assert rows(other / "mlruns/mlflow.db", "PRAGMA user_version") == [(7,)]
    assert rows(other / ".prefect/prefect.db", "SELECT * FROM account") == [("a", 100), ("b", 0)]
    assert (other / "mlruns/artifacts/m-1/model.safetensors").read_bytes() == b"weights"
    assert (other / ".dvc/cache/files/md5/ab/cdef").read_bytes() == b"rows"
    assert (other / "params.yaml").read_text() == "experiment: digits\n"
    assert "restored: dvc.lock" in lines


def test_what_is_there_is_moved_aside_or_kept(project: Path, tmp_path: Path) -> None:
    backup(project, tmp_path / "backups")
    with closing(sqlite3.connect(project / "mlruns/mlflow.db")) as connection:
        connection.execute("DELETE FROM account")
        connection.commit()
    (project / "params.yaml").write_text("experiment: another\n")
    content = project / ".dvc/cache/files/md5/ab/cdef"
    content.chmod(0o644)
    content.write_bytes(b"cut")
    (project / ".dvc/cache/files/md5/ab/later").write_bytes(b"later")
    lines = restore(project, tmp_path / "backups")
    assert rows(project / "mlruns/mlflow.db", "SELECT count(*) FROM account") == [(2,)]
    (aside,) = (project / "mlruns").glob("mlflow.db.before-restore-*")
    assert rows(aside, "SELECT count(*) FROM account") == [(0,)]
    assert (project / "params.yaml").read_text() == "experiment: another\n"
    assert [line for line in lines if line.startswith("kept: params.yaml differs from the backup's")]
    assert content.read_bytes() == b"rows"
    assert content.stat().st_mode & 0o777 == 0o444
    assert (project / ".dvc/cache/files/md5/ab/later").exists()


def test_the_database_moved_aside_keeps_what_only_its_journal_holds(project: Path, tmp_path: Path) -> None:
    """As of a server that was killed: SQLite reads the journal when the database is opened the next time."""
    backup(project, tmp_path / "backups")
    database = project / ".prefect/prefect.db"
    killed = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.executemany("INSERT INTO note VALUES (?)", [(str(number),) for number in range(1000)])
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", killed, str(database)], check=False)
    assert database.with_name("prefect.db-wal").stat().st_size > 0
    restore(project, tmp_path / "backups")
    assert rows(database, "SELECT count(*) FROM note") == [(0,)]
    (aside,) = (
        path for path in (project / ".prefect").glob("prefect.db.before-restore-*") if path.suffix[-1].isdigit()
    )
    assert rows(aside, "SELECT count(*) FROM note") == [(1000,)]


def test_the_next_backup_shares_what_did_not_change(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = backup(project, tmp_path / "backups")
    (project / ".dvc/cache/files/md5/ab/new").write_bytes(b"new")
    monkeypatch.setattr("tasks.backup.time.strftime", lambda *_: "20990101-000000")
    second = backup(project, tmp_path / "backups")
    assert newest(tmp_path / "backups") == second
    same = Path(FOLDERS) / "cache/files/md5/ab/cdef"
    assert (first / same).samefile(second / same)
    assert (second / FOLDERS / "cache/files/md5/ab/new").read_bytes() == b"new"
    shutil.rmtree(first)
    assert (second / same).read_bytes() == b"rows"


def test_an_interrupted_backup_is_none(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tasks.backup.copy_folder", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space left"):
            backup(project, tmp_path / "backups")
    assert newest(tmp_path / "backups") is None
    with pytest.raises(ValueError, match="holds no backup"):
        restore(project, tmp_path / "backups")
    backup(project, tmp_path / "backups")
    assert not list((tmp_path / "backups").glob("*.partial"))


NIGHTS = {
    "data/accepted/digits/ledger.json": b"00001-aa 00002-bb",
    "data/accepted/digits/00001-aa/arrays.npz": b"first",
    "data/accepted/digits/00002-bb/arrays.npz": b"second",
    "data/statistics/ab-cd.npz": b"counts",
    "data/archive/00001-monday/a/one.png": b"image",
    "data/rejected/bad.csv.reason.txt": b"no column",
    "reports/nightly/2026-01-31.json": b"{}",
}


def _write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def test_what_nights_took_in_comes_back(project: Path, tmp_path: Path) -> None:
    _write(project, NIGHTS)
    unfinished = {"data/accepted/digits/.00003-cc.x/arrays.npz": b"half", "reports/nightly/.running.json": b"{}"}
    _write(project, unfinished)
    backup(project, tmp_path / "backups")
    shutil.rmtree(project)
    (project / ".dvc").mkdir(parents=True)
    restore(project, tmp_path / "backups")
    assert {name: (project / name).read_bytes() for name in NIGHTS} == NIGHTS
    assert not [name for name in unfinished if (project / name).exists()]


def test_later_nights_are_not_undone_by_an_older_backup(project: Path, tmp_path: Path) -> None:
    _write(project, NIGHTS)
    backup(project, tmp_path / "backups")
    later = {
        "data/accepted/digits/ledger.json": b"00001-aa 00002-bb 00003-cc",
        "data/accepted/digits/00003-cc/arrays.npz": b"third",
    }
    _write(project, later)
    (project / "data/accepted/digits/00001-aa/arrays.npz").unlink()
    lines = restore(project, tmp_path / "backups")
    assert {name: (project / name).read_bytes() for name in {**NIGHTS, **later}} == {**NIGHTS, **later}
    (kept,) = (line for line in lines if line.startswith("kept"))
    assert kept.startswith("kept: data/accepted/digits/ledger.json differs from the backup's")
    assert f"restored: {project / 'data/accepted'}" in lines


def test_a_ledger_in_a_backup_names_no_batch_that_is_not(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is taken in while its data set is copied: its folder first, then its line in the ledger."""
    _write(project, NIGHTS)
    copy = shutil.copyfile

    def another_arrives(source: Path, target: Path, **options: Any) -> None:
        copy(source, target, **options)
        if source.name == "arrays.npz":
            _write(project, {"data/accepted/digits/00003-cc/arrays.npz": b"third"})
            _write(project, {"data/accepted/digits/ledger.json": b"00001-aa 00002-bb 00003-cc"})

    monkeypatch.setattr("tasks.backup.shutil.copyfile", another_arrives)
    accepted = backup(project, tmp_path / "backups") / FOLDERS / "accepted/digits"
    assert (project / "data/accepted/digits/00003-cc").is_dir()
    named = (accepted / "ledger.json").read_text().split()
    assert [name for name in named if (accepted / name / "arrays.npz").is_file()] == named


def test_a_backup_removes_nothing_of_others(project: Path, tmp_path: Path) -> None:
    target = tmp_path / "backups"
    (target / "photos.partial").mkdir(parents=True)
    (target / "photos.partial" / "one.jpg").write_bytes(b"one")
    (target / "film.partial").write_bytes(b"film")
    (target / "20260131-020000.partial" / FOLDERS).mkdir(parents=True)
    written = backup(project, target)
    assert sorted(path.name for path in target.iterdir()) == sorted([written.name, "film.partial", "photos.partial"])
    assert (target / "photos.partial" / "one.jpg").read_bytes() == b"one"


def test_two_backups_at_once_are_one(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tasks.backup

    called = []
    copy = tasks.backup.copy_folder

    def another_meanwhile(*given: Any) -> None:
        monkeypatch.setattr("tasks.backup.copy_folder", copy)
        with pytest.raises(ValueError, match=rf"process {os.getpid()} is writing a backup there"):
            backup(project, tmp_path / "backups")
        called.append(given)
        copy(*given)

    monkeypatch.setattr("tasks.backup.copy_folder", another_meanwhile)
    written = backup(project, tmp_path / "backups")
    assert called
    assert list((tmp_path / "backups").iterdir()) == [written]
    assert (written / FOLDERS / "cache/files/md5/ab/cdef").read_bytes() == b"rows"
    assert (written / DATABASES / "mlflow.db").is_file()


@pytest.mark.parametrize("name", [f"{DATABASES}/mlflow.db", f"{FOLDERS}/cache/files/md5/ab/cdef", "files/dvc.lock"])
def test_a_damaged_backup_changes_nothing(project: Path, tmp_path: Path, name: str) -> None:
    written = backup(project, tmp_path / "backups")
    before = (project / "mlruns/mlflow.db").read_bytes()
    content = bytearray((written / name).read_bytes())
    (written / name).unlink()
    (written / name).write_bytes(content[:-1] if FOLDERS in name or "lock" in name else b"x" * len(content))
    with pytest.raises(ValueError, match=rf"{name}: damaged.*take an older backup"):
        restore(project, written)
    assert (project / "mlruns/mlflow.db").read_bytes() == before
    assert not list((project / "mlruns").glob("*.before-restore-*"))


def test_nothing_is_restored_under_running_services(project: Path, tmp_path: Path) -> None:
    backup(project, tmp_path / "backups")
    with (project / ".prefect" / "serve.pid").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="`make stop` first"):
            restore(project, tmp_path / "backups")


def test_the_cache_is_where_dvc_was_told(project: Path) -> None:
    assert cache_folder(project) == project / ".dvc" / "cache"
    (project / ".dvc/config.local").write_text("[cache]\n    dir = /big/disk\n['remote \"a\"']\n    url = s3://b/%20\n")
    assert cache_folder(project) == Path("/big/disk")


def test_wrong_places_are_refused(project: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is inside the project"):
        backup(project, project / "backups")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="nothing to back up"):
        backup(tmp_path / "empty", tmp_path / "backups")


def test_the_command_line(project: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)

    done = run("tasks.restore", "--from", str(tmp_path / "nowhere"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "holds no backup; expected a folder written by `make backup`" in done.stderr
    done = run("tasks.backup", "--to", str(tmp_path / "backups"))
    assert (done.returncode, done.stderr) == (0, "")
    assert " files, 0.0 MB" in done.stdout
    done = run("tasks.restore", "--from", str(tmp_path / "backups"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("next: `dvc checkout` puts data, runs and reports back from the cache\n")
