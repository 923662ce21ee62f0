"""Keep a Prefect server, the deployments and a worker running: `make serve`; `make stop` or Ctrl-C ends them.

Server and worker are children of this process, under a guard each: they end when it ends, however it ends. One that
ends by itself is started again, until it does so too often. The lock on the pid file says whether another one is
running; what a crash left behind is put right at the next start (`flows.recovery`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from flows import recovery
from flows.instance import is_free, only_one
from flows.logs import last_line
from flows.processes import sigterm_raises
from flows.recovery import ServeError
from flows.server import address, api_url, is_healthy
from flows.services import Service, watch

POOL = "fedcore"
DEPLOYMENT = "experiment/default"
HEALTHY_SECONDS = 240.0  # a busy machine takes a minute
STOP_SECONDS = 90.0
POLL_SECONDS = 0.5
# What the server says when its database, readable as such, is none it can use: killed while building it, for example.
UNUSABLE_DATABASE = ("already exists", "no such table", "no such column", "database disk image is malformed")


def serve(root: Path) -> None:
    """Start server, work pool, deployments and worker, then wait until interrupted; restart what ends meanwhile.

    Raises
    ------
    ServeError
        When it runs already, the port is taken, a part does not start or ends too often; everything is ended first.
    ValueError
        When the configured address is not on this machine.
    """
    url = api_url()
    host, port = address(url)
    home = root / ".prefect"
    logs = home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    environment = service_environment(root, url)
    python = [sys.executable, "-m", "prefect"]

    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_raises())
        stack.enter_context(only_one(home / "serve.pid"))
        tell(recovery.end_leftovers(root))
        require_free_port(host, port)
        database = recovery.database_file(home, database_url())
        if database:
            tell(recovery.mend_database(database))
        recovery.forget_leases(home)

        print("starting the server", flush=True)
        command = [*python, "server", "start", "--host", host, "--port", str(port)]
        server = Service("server", command, environment, logs / "server.log")
        stack.callback(server.stop)
        start_server(server, url, database)

        print("registering the work pool and the deployments", flush=True)
        register(root, environment, logs / "deploy.log")
        tell(recovery.mark_lost_runs(POOL))
        tell(recovery.return_lost_slots())

        # One run at a time, as DVC allows in a folder: the worker counts, since a deployment's own limit keeps the slot
        # of a run that was killed and every later run would wait for it.
        command = [*python, "worker", "start", "--pool", POOL, "--type", "process", "--limit", "1"]
        # Left last, ended first: a worker whose server is gone would keep trying to reach it.
        worker = Service("worker", command, environment, logs / "worker.log", grace=40)
        stack.callback(worker.stop)
        worker.start()

        print(f"pages   {url.removesuffix('/api')}")
        print(f"logs    {logs.relative_to(root)}/server.log, worker.log")
        print(f"run     prefect deployment run '{DEPLOYMENT}' --watch   (or `make flow`)")
        print("state   make status")
        print("end     Ctrl-C here, or `make stop`", flush=True)
        watch(
            [server, worker],
            ready={"server": lambda: wait_until_healthy(url, server)},
            mend={"worker": mark_lost_runs},
        )


def mark_lost_runs() -> None:
    """Call the runs of an ended worker crashed; a server that is ending too must not keep the worker from starting."""
    import httpx
    from prefect.exceptions import PrefectException

    try:
        tell(recovery.mark_lost_runs(POOL))
    except (httpx.HTTPError, PrefectException, RuntimeError, OSError) as error:
        print(f"could not mark the runs of the ended worker as crashed: {error}", flush=True)


def tell(lines: list[str]) -> None:
    """Print what a recovery did."""
    for line in lines:
        print(f"recovered: {line}", flush=True)


def database_url() -> str | None:
    """Return the configured address of the Prefect server's database, None for its SQLite file."""
    from prefect.settings import get_current_settings

    value = get_current_settings().server.database.connection_url
    return value.get_secret_value() if value else None


def start_server(server: Service, url: str, database: Path | None) -> None:
    """Start it and wait for its first answer; a database it cannot use is set aside, once."""
    server.start()
    try:
        wait_until_healthy(url, server)
    except ServeError:
        said = server.log.read_text(errors="replace").splitlines()
        if any("Can't locate revision" in line for line in said):
            where = database or "the server's database"
            raise ServeError(f"{where}: made by a newer Prefect than the installed one; install that one") from None
        reason = next((line for line in said if any(words in line for words in UNUSABLE_DATABASE)), None)
        if database is None or reason is None:
            raise
        server.stop()
        tell([recovery.set_aside(database, reason)])
        server.start()
        wait_until_healthy(url, server)


def service_environment(root: Path, url: str) -> dict[str, str]:
    """Return the environment of server and worker: state inside the project, nothing sent anywhere."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "PATH": path,
        "FEDCORE_ROOT": str(root),
        recovery.MARK: str(root),
        "PREFECT_HOME": str(root / ".prefect"),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # On disk, so that a server that is started again still knows which slots are taken, and by whom.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def require_free_port(host: str, port: int) -> None:
    """Raise `ServeError` when something listens there already."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=2):
        raise ServeError(
            f"port {port} is taken by {recovery.listener(port) or 'another program'}; end it, or choose another port: "
            f"export PREFECT_API_URL=http://{host}:{port + 1}/api"
        )


def wait_until_healthy(url: str, server: Service) -> None:
    """Wait for the server's first answer."""
    deadline = time.monotonic() + HEALTHY_SECONDS
    while not is_healthy(url):
        if server.poll() is not None:
            raise ServeError(f"the server ended while starting: {last_line(server.log)} (all of it: {server.log})")
        if time.monotonic() > deadline:
            raise ServeError(
                f"the server did not answer within {HEALTHY_SECONDS:.0f} s: {last_line(server.log)} (see {server.log})"
            )
        time.sleep(POLL_SECONDS)


def register(root: Path, environment: dict[str, str], log_path: Path) -> None:
    """Create the work pool unless it is there, and the deployments of prefect.yaml."""
    with log_path.open("w") as log:
        if not command_succeeds(["work-pool", "inspect", POOL], root, environment, log):
            _require(["work-pool", "create", POOL, "--type", "process"], root, environment, log)
        _require(["--no-prompt", "deploy", "--all"], root, environment, log)


def command_succeeds(arguments: list[str], root: Path, environment: dict[str, str], log: IO[str]) -> bool:
    """Run one prefect command with its output in the log; one that does not end in time has failed."""
    command = [sys.executable, "-m", "prefect", *arguments]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, stdout=log, stderr=log, check=False, timeout=HEALTHY_SECONDS
        )
    except subprocess.TimeoutExpired:
        log.write(f"it did not end within {HEALTHY_SECONDS:.0f} s\n")
        log.flush()
        return False
    return done.returncode == 0


def _require(arguments: list[str], root: Path, environment: dict[str, str], log: IO[str]) -> None:
    if not command_succeeds(arguments, root, environment, log):
        path = Path(log.name)
        raise ServeError(f"`prefect {' '.join(arguments)}` failed: {last_line(path)} (all of it: {path})")


def stop(root: Path) -> None:
    """End the serving process of this project and all it started; nothing to do when there is none."""
    path = root / ".prefect" / "serve.pid"
    ended = path.exists() and _stop_owner(path)
    tell(left := recovery.end_leftovers(root))
    print("stopped" if ended or left else "not running")


def _stop_owner(path: Path) -> bool:
    """End the process that holds the lock, by force when it does not answer; False when there is none."""
    with path.open("a+") as file:
        if is_free(file):
            return False
        file.seek(0)
        text = file.read().strip()
        if not text.isdigit():  # it is about to write its number, or about to end
            raise ServeError(f"{path} says {text!r}, not which process serves; try again, or end it by hand")
        pid = int(text)
        _signal(pid, signal.SIGTERM)
        if not _wait_for_lock(file, STOP_SECONDS):
            tell([f"process {pid} did not end within {STOP_SECONDS:.0f} s: killed"])
            _signal(pid, signal.SIGKILL)
            if not _wait_for_lock(file, STOP_SECONDS):
                raise ServeError(f"process {pid} cannot be ended; see {path.parent / 'logs'}")
    return True


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_for_lock(file: IO[str], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_free(file):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stop", action="store_true", help="end the one that runs")
    arguments = parser.parse_args()
    root = Path.cwd()
    try:
        if not (root / "prefect.yaml").exists():
            raise ServeError(f"{root} holds no prefect.yaml; run from the project's root folder")
        stop(root) if arguments.stop else serve(root)
    except (ServeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped")
    except SystemExit:
        print("stopped")


if __name__ == "__main__":
    main()
