"""The Prefect server on PostgreSQL: runs are there after a restart, and nothing is kept in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.served_project import served
from tests.services.conftest import ESCAPED, PASSWORD, Postgresql

pytestmark = pytest.mark.services


def test_the_server_keeps_its_records_in_postgresql(tmp_path: Path, postgresql: Postgresql) -> None:
    postgresql.query("create database prefect")
    url = postgresql.url("asyncpg", "prefect")
    with served(tmp_path, PREFECT_SERVER_DATABASE_CONNECTION_URL=url) as project:
        project.start()
        run = project.run(name="first")
        project.wait(lambda: project.state(run) == "COMPLETED")
        assert postgresql.query("select count(*) from flow_run", "prefect") == [(1,)]
        project.stop()
        project.start()
        assert project.state(run) == "COMPLETED"
    assert not list((tmp_path / ".prefect").glob("*.db*"))
    for log in (tmp_path / ".prefect" / "logs").iterdir():
        for secret in (PASSWORD, ESCAPED):
            assert secret not in log.read_text(errors="replace"), log
