"""Keep a Prefect server, the deployments and a worker running: `make serve`; `make stop` or Ctrl-C ends them.

Server and worker are children of this process, under a guard each: they end when it ends, however it ends. So nothing
is left over from a crash but the files, and the lock on the pid file says whether another one is running.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from flows.processes import Guarded, sigterm_raises
from flows.server import address, api_url, is_healthy

POOL = "fedcore"
DEPLOYMENT = "experiment/default"
HEALTHY_SECONDS = 120.0
STOP_SECONDS = 90.0
POLL_SECONDS = 0.5


class ServeError(RuntimeError):
    """Serving could not start, or one of its parts ended."""


def serve(root: Path) -> None:
    """Start server, work pool, deployments and worker, then wait until interrupted or one of them ends.

    Raises
    ------
    ServeError
        When it runs already, the port is taken, or a part does not start; everything started is ended first.
    ValueError
        When the configured address is not on this machine.
    """
    url = api_url()
    host, port = address(url)
    home = root / ".prefect"
    logs = home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    environment = service_environment(root, url)
    python = [sys.executable, "-m"]

    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_raises())
        stack.enter_context(only_one(home / "serve.pid"))
        require_free_port(host, port)

        print("starting the server", flush=True)
        log = stack.enter_context((logs / "server.log").open("wb"))
        command = [*python, "prefect", "server", "start", "--host", host, "--port", str(port)]
        server = stack.enter_context(Guarded(command, environment=environment, output=log))
        wait_until_healthy(url, server, logs / "server.log")

        print("registering the work pool and the deployments", flush=True)
        register(root, environment, logs / "deploy.log")
        mark_lost_runs()

        log = stack.enter_context((logs / "worker.log").open("wb"))
        # One run at a time, as DVC allows in a folder: the worker counts, since a deployment's own limit keeps the slot
        # of a run that was killed and every later run would wait for it.
        command = [*python, "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--limit", "1"]
        # Left last, ended first: a worker whose server is gone would keep trying to reach it.
        worker = stack.enter_context(Guarded(command, environment=environment, output=log, grace=40))

        print(f"pages   {url.removesuffix('/api')}")
        print(f"logs    {logs.relative_to(root)}/server.log, worker.log")
        print(f"run     prefect deployment run '{DEPLOYMENT}' --watch   (or `make flow`)")
        print("end     Ctrl-C here, or `make stop`", flush=True)
        watch({"server": server, "worker": worker}, logs)


def service_environment(root: Path, url: str) -> dict[str, str]:
    """Return the environment of server and worker: state inside the project, nothing sent anywhere."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "PATH": path,
        "FEDCORE_ROOT": str(root),
        "PREFECT_HOME": str(root / ".prefect"),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock on the pid file; the kernel drops it when the process ends, so a stale file does no harm."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ServeError(f"already running (process {file.read().strip()}); `make stop` ends it") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
        file.truncate(0)


def require_free_port(host: str, port: int) -> None:
    """Raise `ServeError` when something listens there already."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=2):
        raise ServeError(
            f"port {port} is taken by another program; end it, or choose another port: "
            f"export PREFECT_API_URL=http://{host}:{port + 1}/api"
        )


def wait_until_healthy(url: str, server: Guarded, log: Path) -> None:
    """Wait for the server's first answer."""
    deadline = time.monotonic() + HEALTHY_SECONDS
    while not is_healthy(url):
        if server.poll() is not None:
            raise ServeError(f"the server ended while starting: {last_line(log)} (all of it: {log})")
        if time.monotonic() > deadline:
            raise ServeError(f"the server did not answer within {HEALTHY_SECONDS:.0f} s: {last_line(log)} (see {log})")
        time.sleep(POLL_SECONDS)


def register(root: Path, environment: dict[str, str], log_path: Path) -> None:
    """Create the work pool unless it is there, and the deployments of prefect.yaml."""
    from flows import gpus

    with log_path.open("w") as log:
        if not command_succeeds(["work-pool", "inspect", POOL], root, environment, log):
            _require(["work-pool", "create", POOL, "--type", "process"], root, environment, log)
        _require(["--no-prompt", "deploy", "--all"], root, environment, log)
    if gpus.is_visible():
        gpus.ensure_limit()


def mark_lost_runs() -> None:
    """Call the runs crashed that an earlier worker of this pool left unfinished: nobody is left to end them."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter, WorkPoolFilterName
    from prefect.states import Crashed

    unfinished = {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}
    with get_client(sync_client=True) as client:
        for lost in client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate(unfinished),
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL])),
        ):
            client.set_flow_run_state(lost.id, Crashed(message="The worker was stopped in this run."), force=True)


def command_succeeds(arguments: list[str], root: Path, environment: dict[str, str], log: IO[str]) -> bool:
    """Run one prefect command with its output in the log."""
    command = [sys.executable, "-m", "prefect", *arguments]
    done = subprocess.run(
        command, cwd=root, env=environment, stdout=log, stderr=log, check=False, timeout=HEALTHY_SECONDS
    )
    return done.returncode == 0


def _require(arguments: list[str], root: Path, environment: dict[str, str], log: IO[str]) -> None:
    if not command_succeeds(arguments, root, environment, log):
        path = Path(log.name)
        raise ServeError(f"`prefect {' '.join(arguments)}` failed: {last_line(path)} (all of it: {path})")


def watch(parts: dict[str, Guarded], logs: Path) -> None:
    """Wait while all parts run."""
    while True:
        for name, part in parts.items():
            if part.poll() is not None:
                log = logs / f"{name}.log"
                raise ServeError(f"the {name} ended: {last_line(log)} (all of it: {log})")
        time.sleep(POLL_SECONDS)


def stop(root: Path) -> None:
    """End the serving process of this project and wait until it is gone; nothing to do when there is none."""
    path = root / ".prefect" / "serve.pid"
    if not path.exists():
        print("not running")
        return
    with path.open("a+") as file:
        if _lock_is_free(file):
            print("not running")
            return
        file.seek(0)
        os.kill(int(file.read()), signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while not _lock_is_free(file):
            if time.monotonic() > deadline:
                raise ServeError(f"still running after {STOP_SECONDS:.0f} s; see {root / '.prefect' / 'logs'}")
            time.sleep(POLL_SECONDS)
    print("stopped")


def _lock_is_free(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True


def last_line(log: Path) -> str:
    """Return the last line of a log that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


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
