from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tasks.backup import copy_database
from tasks.tracking_store import (
    artifact_location,
    ensure_experiment,
    open_client,
    prepare_database,
    readable_errors,
    tracking_uri,
)

PROJECT = Path(__file__).parents[2]


def python(code: str, folder: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment["PYTHONPATH"] = str(PROJECT)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_three_processes_on_an_empty_folder_build_one_good_database(tmp_path: Path) -> None:
    code = "from pathlib import Path\nfrom tasks.tracking_store import prepare_database\nprepare_database(Path())"
    processes = [python(code, tmp_path) for _ in range(3)]
    results = [(*process.communicate(), process.returncode) for process in processes]
    assert results == [("", "", 0)] * 3
    assert sorted(path.name for path in (tmp_path / "mlruns").iterdir()) == [".tracking.lock", "mlflow.db"]
    client = open_client(tmp_path)
    assert ensure_experiment(client, "digits", tmp_path) == "1"
    assert client.get_experiment("0").artifact_location == f"{artifact_location(tmp_path)}/0"


def test_an_experiment_asked_for_at_once_is_created_once(client: Any, root: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: ensure_experiment(client, "digits", root), range(8)))
    assert set(found) == {"1"}


def test_a_prepared_database_is_left_alone_without_importing_mlflow(root: Path) -> None:
    file = root / "mlruns" / "mlflow.db"
    before = (file.stat().st_ino, file.read_bytes())
    code = (
        "import sys\nfrom pathlib import Path\nfrom tasks.tracking_store import prepare_database\n"
        "prepare_database(Path())\nprint(sorted({'mlflow', 'alembic', 'sqlalchemy'} & set(sys.modules)))"
    )
    out, error = python(code, root).communicate()
    assert (out, error) == ("[]\n", "")
    assert (file.stat().st_ino, file.read_bytes()) == before


def test_a_database_prepared_for_another_mlflow_is_brought_up_and_keeps_its_runs(root: Path) -> None:
    experiment = ensure_experiment(open_client(root), "digits", root)
    file = root / "mlruns" / "mlflow.db"
    with closing(sqlite3.connect(file)) as connection:
        wanted = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("PRAGMA user_version = 3016000")
        connection.commit()
    inode = file.stat().st_ino
    prepare_database(root)
    assert file.stat().st_ino != inode
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == wanted
        names = connection.execute("SELECT name FROM experiments WHERE experiment_id = ?", [experiment]).fetchall()
    assert names == [("digits",)]


def test_a_file_that_is_no_database_is_named_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "mlruns" / "mlflow.db"
    file.parent.mkdir()
    file.write_bytes(b"not a database, and long enough to be taken for one" * 20)
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"mlflow\.db: not readable as an SQLite database .*move it away"):
        prepare_database(tmp_path)
    assert file.read_bytes() == before


# One page of cache: what is written goes to the file at once, and the old pages to a journal that is synced before.
KILLED_WRITER = """
import os, signal, sqlite3
connection = sqlite3.connect("mlruns/mlflow.db", isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN")
connection.execute("UPDATE experiments SET name = 'lost'")
connection.execute("CREATE TABLE lost (content)")
for _ in range(100):
    connection.execute("INSERT INTO lost VALUES (zeroblob(4096))")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("reader", ["step", "backup"])
def test_a_writer_killed_in_a_transaction_leaves_a_database_that_opens_as_it_was(root: Path, reader: str) -> None:
    file, journal = root / "mlruns" / "mlflow.db", root / "mlruns" / "mlflow.db-journal"
    before = file.read_bytes()
    process = python(KILLED_WRITER, root)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert file.read_bytes() != before
    assert journal.stat().st_size > 0
    if reader == "step":
        prepare_database(root)
    else:
        copy_database(file, root / "copy.db")
        with closing(sqlite3.connect(root / "copy.db")) as copy:
            assert copy.execute("SELECT name FROM experiments").fetchall() == [("Default",)]
    assert file.read_bytes() == before
    assert not journal.exists()


def test_the_journal_of_a_database_that_was_moved_away_does_not_reach_the_new_one(root: Path) -> None:
    python(KILLED_WRITER, root).communicate()
    (root / "mlruns" / "mlflow.db").rename(root / "away.db")
    prepare_database(root)
    before = (root / "mlruns" / "mlflow.db").read_bytes()
    assert open_client(root).get_experiment("0").name == "Default"
    assert (root / "mlruns" / "mlflow.db").read_bytes() == before
    assert not (root / "mlruns" / "mlflow.db-journal").exists()


def test_a_database_that_cannot_be_opened_now_is_not_called_damaged(root: Path) -> None:
    (root / "mlruns" / "mlflow.db-journal").mkdir()
    with pytest.raises(ValueError, match=r"mlflow\.db: cannot be opened now \(.*\); it need not be damaged"):
        prepare_database(root)


def test_a_database_of_a_newer_mlflow_is_refused_and_kept(root: Path) -> None:
    file = root / "mlruns" / "mlflow.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 9000000")
        connection.execute("UPDATE alembic_version SET version_num = 'from_the_future'")
        connection.commit()
    before = file.read_bytes()
    with pytest.raises(ValueError, match="cannot be used by the installed MLflow"):
        prepare_database(root)
    assert file.read_bytes() == before
    assert not list(file.parent.glob(".mlflow.db.*"))


def test_a_full_disk_is_one_line(root: Path) -> None:
    """A limit on the size of files stands for the disk; what the run folders hold can be published later."""
    code = (
        "import resource\nfrom pathlib import Path\nfrom tasks.parameters import run_step\n"
        "from tasks.tracking_store import ensure_experiment, open_client, readable_errors\n"
        "def main():\n"
        "    with readable_errors():\n"
        "        client = open_client(Path())\n"
        "        experiment = ensure_experiment(client, 'digits', Path())\n"
        "        size = Path('mlruns/mlflow.db').stat().st_size\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))\n"
        "        for _ in range(200):\n"
        "            client.create_run(experiment, tags={'note': 'x' * 4000})\n"
        "run_step(main)"
    )
    process = python(code, root)
    out, error = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert error in ("error: MLflow: database or disk is full\n", "error: MLflow: disk I/O error\n")


def test_the_address_is_absolute_and_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Path()) == f"sqlite:///{tmp_path}/mlruns/mlflow.db"
    assert artifact_location(Path()) == f"file://{tmp_path}/mlruns/artifacts"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://tracking.example")
    assert tracking_uri(Path()) == "https://tracking.example"
    assert artifact_location(Path()) is None
    prepare_database(Path())
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_is_found_again_and_restored_from_deletion(client: Any, root: Path) -> None:
    first = ensure_experiment(client, "digits", root)
    assert client.get_experiment(first).artifact_location == artifact_location(root)
    client.delete_experiment(first)
    assert ensure_experiment(client, "digits", root) == first
    assert client.get_experiment(first).lifecycle_stage == "active"


@pytest.mark.parametrize("is_address_set", [False, True])
def test_a_moved_project_does_not_write_where_it_used_to_be(
    client: Any, root: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch, is_address_set: bool
) -> None:
    first = ensure_experiment(client, "digits", root)
    there = tmp_path_factory.mktemp("there")
    shutil.copytree(root / "mlruns", there / "mlruns")
    if is_address_set:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{there}/mlruns/mlflow.db")
    moved = open_client(there)
    second = ensure_experiment(moved, "digits", there)
    assert second != first
    assert moved.get_experiment(second).artifact_location == artifact_location(there)
    shutil.copy(there / "mlruns" / "mlflow.db", root / "mlruns" / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert ensure_experiment(client, "digits", root) == first


def test_errors_of_mlflow_become_one_line_and_others_pass() -> None:
    from mlflow.exceptions import MlflowException

    with pytest.raises(ValueError, match=r"^MLflow: database is locked$"), readable_errors():
        raise MlflowException("database is locked\n(Background on this error at ...)")
    with pytest.raises(KeyError), readable_errors():
        raise KeyError("ours")


def test_the_command_prepares_the_database_of_the_current_folder(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import tracking

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tracking", "--prepare"])
    (tmp_path / "mlruns").mkdir()
    (tmp_path / "mlruns" / "mlflow.db").touch()
    with closing(sqlite3.connect(prepared)) as old, closing(sqlite3.connect("mlruns/mlflow.db")) as new:
        old.backup(new)
        new.execute("PRAGMA user_version = 1")
        new.commit()
    tracking.main()
    with closing(sqlite3.connect("mlruns/mlflow.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] > 1


@pytest.mark.parametrize("was_on", [True, False])
def test_opening_a_client_leaves_the_garbage_collector_as_it_was(root: Path, was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    try:
        open_client(root)
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


def test_opening_a_client_does_not_wait_for_anything(root: Path) -> None:
    prepare_database(root)
    started = time.perf_counter()
    prepare_database(root)
    assert time.perf_counter() - started < 0.5
