"""Serving a real project: each part killed in turn, a database destroyed, and what is there afterwards."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.flows.served_project import Served, served

pytestmark = pytest.mark.slow


def slots(project: Served) -> list[int]:
    return [limit["active_slots"] for limit in project.api("/v2/concurrency_limits/filter", {})]


def start_long_run(project: Served) -> str:
    (project.root / "started").unlink(missing_ok=True)
    run = project.run(name="long", seconds=600)
    project.wait((project.root / "started").exists)
    return run


def kill(project: Served, *words: str) -> None:
    (process,) = project.processes(*words)
    process.kill()


def test_killed_in_turn(tmp_path: Path) -> None:
    with served(tmp_path) as project:
        project.start()
        assert "recovered" not in project.said

        # The worker: its run ends with it and is called crashed, its slot is free, a new worker takes the next run.
        run = start_long_run(project)
        assert slots(project) == [1]
        kill(project, "worker start")
        project.wait(lambda: project.state(run) == "CRASHED")
        assert slots(project) == [0]
        assert "the worker ended (killed by signal 9); starting it again" in project.said

        # The server: a new one goes on, and the run with it.
        run = start_long_run(project)
        kill(project, "server start")
        project.wait(lambda: "the server ended (killed by signal 9); starting it again" in project.said)
        project.wait(lambda: bool(project.processes("server start")))
        project.wait(lambda: is_answering(project))
        assert project.state(run) == "RUNNING"
        assert slots(project) == [1]

        # The parent: everything ends with it, at the latest at the next start.
        assert project.process is not None
        project.process.kill()
        project.process.wait()
        project.process = None
        project.start()
        assert "recovered: marked as crashed, their worker is gone: " in project.said
        assert project.state(run) == "CRASHED"
        assert slots(project) == [0]
        run = project.run(name="short")
        project.wait(lambda: project.state(run) == "COMPLETED")

        # The database: a new one is made, the deployment is in it.
        assert project.stop() == "stopped\n"
        database = tmp_path / ".prefect" / "prefect.db"
        database.write_bytes(b"no database at all")
        project.start()
        assert "recovered: prefect.db was unusable" in project.said
        assert len(list(database.parent.glob("prefect.db.broken-*[0-9]"))) == 1
        run = project.run(name="again")
        project.wait(lambda: project.state(run) == "COMPLETED")


def is_answering(project: Served) -> bool:
    try:
        return bool(project.api("/health"))
    except OSError:
        return False


def test_an_older_database_is_upgraded_and_a_newer_one_refused(tmp_path: Path) -> None:
    with served(tmp_path) as project:
        for change in (["upgrade"], ["downgrade", "-r", "-1"]):
            done = project.command("prefect", "server", "database", *change, "-y")
            assert done.returncode == 0, done.stdout + done.stderr
        database = tmp_path / ".prefect" / "prefect.db"
        older = revision(database)
        project.start()
        run = project.run(name="short")
        project.wait(lambda: project.state(run) == "COMPLETED")
        assert revision(database) != older
        project.stop()

        with closing(sqlite3.connect(database)) as connection:
            connection.execute("UPDATE alembic_version SET version_num = 'from_the_future'")
            connection.commit()
        done = project.command("flows.serve")
        assert done.returncode == 1
        assert done.stderr == f"error: {database}: made by a newer Prefect than the installed one; install that one\n"
        assert revision(database) == "from_the_future"


def revision(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])
