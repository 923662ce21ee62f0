"""The next start puts right what a crash left, and says so."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from flows import recovery
from flows.recovery import ServeError


@pytest.fixture
def left_behind(tmp_path: Path) -> Iterator[int]:
    """A process of an earlier start that does not listen to SIGTERM."""
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    # Started by a process that ends at once: it must not be a child of this one.
    starter = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE);"
        "p.stdout.readline(); print(p.pid, flush=True)"
    )
    environment = {**os.environ, recovery.MARK: str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", starter, code], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    pid = int(done.stdout)
    yield pid
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_processes_of_an_earlier_start_are_ended(tmp_path: Path, left_behind: int) -> None:
    assert recovery.leftovers(tmp_path / "other") == []
    assert [process.pid for process in recovery.leftovers(tmp_path)] == [left_behind]
    (line,) = recovery.end_leftovers(tmp_path, grace=0.2)
    assert re.fullmatch(rf"ended what an earlier start had left: .* \(process {left_behind}\)", line)
    assert recovery.leftovers(tmp_path) == []
    assert recovery.end_leftovers(tmp_path) == []


def test_own_processes_are_none_of_an_earlier_start(tmp_path: Path) -> None:
    environment = {**os.environ, recovery.MARK: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as child:
        assert recovery.leftovers(tmp_path) == []
        assert child.poll() is None
        child.kill()


def test_who_has_a_port_is_named() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        assert recovery.listener(server.getsockname()[1]) is None
        server.listen()
        named = recovery.listener(server.getsockname()[1])
    assert named is not None
    assert named.endswith(f"(process {os.getpid()})")


def test_the_database_is_the_servers_own_file_or_the_one_configured(tmp_path: Path) -> None:
    assert recovery.database_file(tmp_path, None) == tmp_path / "prefect.db"
    assert recovery.database_file(tmp_path, "sqlite+aiosqlite:////var/a%20b/p.db") == Path("/var/a b/p.db")
    assert recovery.database_file(tmp_path, "postgresql+asyncpg://me@127.0.0.1/prefect") is None


@pytest.fixture
def database(tmp_path: Path) -> Path:
    file = tmp_path / "prefect.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("create table flow (name text)")
        connection.executemany("insert into flow values (?)", [("x" * 100,)] * 1000)
        connection.commit()
    return file


def test_a_good_database_stays(database: Path) -> None:
    before = database.read_bytes()
    assert recovery.mend_database(database) == []
    assert database.read_bytes() == before
    assert recovery.mend_database(database.with_name("absent.db")) == []


@pytest.mark.parametrize("damage", ["header", "middle"])
def test_a_broken_database_is_set_aside_with_its_journals(database: Path, damage: str) -> None:
    content = bytearray(database.read_bytes())
    start = 0 if damage == "header" else 3 * 4096
    content[start : start + 8192] = b"x" * 8192
    database.write_bytes(content)
    database.with_name("prefect.db-wal").write_bytes(b"")
    (line,) = recovery.mend_database(database)
    assert line.startswith("prefect.db was unusable (")
    assert "moved to prefect.db.broken-" in line
    assert not list(database.parent.glob("prefect.db-*"))
    (aside,) = database.parent.glob("prefect.db.broken-*[0-9]")
    assert aside.read_bytes() == bytes(content)


def test_who_locks_the_database_is_named(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "LOCK_SECONDS", 0.1)
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('begin exclusive');"
        "print('ready', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ServeError, match=rf"prefect\.db: locked by .*\(process {holder.pid}\); end that first"):
            recovery.mend_database(database)
        holder.kill()
    assert recovery.mend_database(database) == []


def test_leases_of_an_ended_server_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / recovery.LEASES).mkdir()
    (tmp_path / recovery.LEASES / "expirations.json").write_text("{}")
    recovery.forget_leases(tmp_path)
    recovery.forget_leases(tmp_path)
    assert list(tmp_path.iterdir()) == []
