"""What a crash of `make serve` leaves behind, and how the next start puts it right; every mend is told in one line.

Left behind can be: processes (a service whose guard was killed too), a database that SQLite cannot read, flow runs that
nobody will end, and concurrency slots that nobody will give back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil

MARK = "FEDCORE_SERVICE"  # in the environment of everything that is started here; its value is the project's folder
GRACE_SECONDS = 20.0
LOCK_SECONDS = 5.0
LEASES = "concurrency_leases"  # where Prefect's file storage of leases keeps them, below its home
UNFINISHED = {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}


class ServeError(RuntimeError):
    """Serving could not start, or one of its parts ended; one line for a person."""


# --- processes ---


def leftovers(root: Path) -> list[psutil.Process]:
    """Return the processes that an earlier start for this project left, this process's own descendants apart."""
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in own and process.environ().get(MARK) == str(root):
                found.append(process)
    return found


def end_leftovers(root: Path, grace: float = GRACE_SECONDS) -> list[str]:
    """End them: SIGTERM, a grace, SIGKILL; return what was done as lines."""
    found = leftovers(root)
    names = [describe(process) for process in found]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=grace)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=grace)
    return [f"ended what an earlier start had left: {', '.join(names)}"] if names else []


def describe(process: psutil.Process) -> str:
    """Return a process for a person: ``prefect server start (process 123)``."""
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        if len(words) > 2 and words[1] == "-m":
            words = words[2:5]
        elif len(words) > 1 and Path(words[0]).name.startswith("python") and not words[1].startswith("-"):
            words = [Path(words[1]).name, *words[2:3]]
        return f"{' '.join(words[:3])[:60] or process.name()} (process {process.pid})"
    return f"process {process.pid}"


def listener(port: int) -> str | None:
    """Return who listens on a TCP port of this machine, as far as this user may know."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return describe(psutil.Process(connection.pid))
    return None


# --- the server's database ---


def database_file(home: Path, url: str | None) -> Path | None:
    """Return the SQLite file of the Prefect server; None when its database is elsewhere.

    Parameters
    ----------
    home
        PREFECT_HOME.
    url
        The configured address of the database, None for the default one.
    """
    if not url:
        return home / "prefect.db"
    parts = urlsplit(url)
    if not parts.scheme.startswith("sqlite") or ":memory:" in url:
        return None
    return Path(unquote(parts.path)[1:])


def mend_database(file: Path) -> list[str]:
    """Set a database aside that SQLite cannot read; return what was done as lines.

    Raises
    ------
    ServeError
        When another program holds its lock.
    """
    if not file.exists():
        return []
    try:
        with contextlib.closing(sqlite3.connect(file, timeout=LOCK_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise ServeError(f"{file}: cannot be used ({error}); check its rights and the free space") from None
        who = ", ".join(holders(file)) or "another program"
        raise ServeError(f"{file}: locked by {who}; end that first") from None
    except sqlite3.DatabaseError as error:
        found = str(error)
    return [] if found == "ok" else [set_aside(file, found)]


def set_aside(file: Path, reason: str) -> str:
    """Rename a database with its journals, so that a new one can take its place; return a line that says so."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = file.with_name(f"{file.name}.broken-{stamp}")
    file.replace(aside)
    for journal in ("-wal", "-shm", "-journal"):
        part = file.with_name(file.name + journal)
        if part.exists():
            part.replace(aside.with_name(aside.name + journal))
    return (
        f"{file.name} was unusable ({' '.join(reason.split())[:120]}): moved to {aside.name}, a new one is made. "
        "Flow runs of the past are in the moved one; deployments come from prefect.yaml"
    )


def holders(file: Path) -> list[str]:
    """Return the processes of this user that have a file open."""
    wanted = str(file.resolve())
    return [describe(process) for process in _processes_but_this() if wanted in _open_paths(process)]


def _processes_but_this() -> Iterator[psutil.Process]:
    return (process for process in psutil.process_iter() if process.pid != os.getpid())


def _open_paths(process: psutil.Process) -> set[str]:
    with contextlib.suppress(psutil.Error, OSError):
        return {entry.path for entry in process.open_files()}
    return set()


# --- the server's records ---


def mark_lost_runs(pool: str) -> list[str]:
    """Call the flow runs crashed that an earlier worker of this pool left: nobody is left to end them.

    The server gives the slots of their deployments back with that. Returns what was done as lines.
    """
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter, WorkPoolFilterName
    from prefect.states import Crashed

    names = []
    with get_client(sync_client=True) as client:
        while True:
            lost = client.read_flow_runs(
                flow_run_filter=FlowRunFilter.model_validate(UNFINISHED),
                work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
            )
            if not lost:
                break
            for run in lost:
                client.set_flow_run_state(run.id, Crashed(message="The worker was stopped in this run."), force=True)
            names += [run.name for run in lost]
    return [f"marked as crashed, their worker is gone: {', '.join(names)}"] if names else []


def forget_leases(home: Path) -> None:
    """Remove the server's leases of concurrency slots; to be called before it starts, when nothing of it runs."""
    shutil.rmtree(home / LEASES, ignore_errors=True)


def return_lost_slots() -> list[str]:
    """Free every slot of the global concurrency limits, deployments' included, when no flow runs yet.

    A slot whose lease is gone would be taken for good. Returns what was done as lines.
    """
    from prefect import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate

    lines = []
    with get_client(sync_client=True) as client:
        for limit in client.read_global_concurrency_limits(limit=200):
            if limit.active_slots:
                client.update_global_concurrency_limit(limit.name, GlobalConcurrencyLimitUpdate(active_slots=0))
                lines.append(f"freed {limit.active_slots} of {limit.limit} slots of the limit '{limit.name}'")
    return lines
