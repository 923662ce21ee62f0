"""A PostgreSQL server and an S3-compatible one, started by the tests on free ports of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60.0
PASSWORD = "Tr1cky@pass/word"  # with characters that an address must escape
ESCAPED = "Tr1cky%40pass%2Fword"
ACCESS_KEY, SECRET_KEY = "an-access-key", "a-secret-of-the-store"
BUCKET = "fedcore"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(is_there: Callable[[], bool], server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_there():
        assert server.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.1)


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def postgresql_program(name: str) -> str:
    """Find a program of PostgreSQL: on the path, or where Debian puts the server's."""
    found = shutil.which(name)
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        found = found or shutil.which(name, path=str(folder))
    if found is None:
        pytest.fail(f"PostgreSQL's {name} is not installed, so nothing was tested; `apt-get install postgresql`")
    return found


@dataclass(frozen=True)
class Postgresql:
    """A running server with a user ``fedcore`` who owns the database ``fedcore``."""

    port: int

    def url(self, driver: str, database: str = "fedcore", password: str = ESCAPED) -> str:
        return f"postgresql+{driver}://fedcore:{password}@127.0.0.1:{self.port}/{database}"

    def query(self, statement: str, database: str = "fedcore") -> list[Any]:
        import sqlalchemy

        engine = sqlalchemy.create_engine(self.url("psycopg2", database), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                result = connection.execute(sqlalchemy.text(statement))
                return [tuple(row) for row in result] if result.returns_rows else []
        finally:
            engine.dispose()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Postgresql]:
    # PostgreSQL refuses to run as root; Debian's package brings a user for it, who must be able to read its folder.
    account: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="fedcore-postgresql-"))
    secret, log = folder / "password", folder / "log"
    secret.write_text(PASSWORD)
    log.touch()
    if account:
        for path in (folder, secret, log):
            shutil.chown(path, account["user"], account["group"])
    data, port = folder / "data", free_port()
    initdb = [postgresql_program("initdb"), "-D", str(data), "-U", "fedcore", "-A", "scram-sha-256", "-N"]
    subprocess.run([*initdb, f"--pwfile={secret}", "-E", "UTF8", "--locale=C"], cwd=folder, check=True, **account)
    settings = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", f"unix_socket_directories={folder}"]
    command = [postgresql_program("postgres"), "-D", str(data), "-p", str(port), *settings]
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, **account)
    try:
        wait_for(lambda: answers(port), server, log)
        running = Postgresql(port)
        wait_for(lambda: "ready to accept" in log.read_text(errors="replace"), server, log)
        running.query("create database fedcore", "postgres")
        yield running
    finally:
        server.send_signal(signal.SIGINT)  # SIGTERM would wait for its clients
        server.wait(PATIENCE)
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Store:
    """A running S3-compatible store with an empty bucket."""

    address: str

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to use it; secrets come from nowhere else."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "MLFLOW_S3_ENDPOINT_URL": self.address,
            "AWS_ENDPOINT_URL": self.address,
        }

    def names(self) -> list[str]:
        """Return the names of the objects in the bucket."""
        code = (
            "import boto3; bucket = boto3.resource('s3').Bucket('fedcore');"
            "print(*[one.key for one in bucket.objects.all()], sep='\\n')"
        )
        return self.python(code).split()

    def python(self, code: str) -> str:
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    log, port = tmp_path_factory.mktemp("store") / "log", free_port()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=output, stderr=output
        )
    try:
        wait_for(lambda: answers(port), server, log)
        running = Store(f"http://127.0.0.1:{port}")
        running.python(f"import boto3; boto3.client('s3').create_bucket(Bucket={BUCKET!r})")
        yield running
    finally:
        server.terminate()
        server.wait(PATIENCE)
