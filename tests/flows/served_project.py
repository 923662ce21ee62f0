"""A project of one small flow, served as `make serve` does it, for tests that kill parts of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib import request

import psutil

from flows.recovery import MARK

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 400.0
FLOW = """
import time
from pathlib import Path
from prefect import flow

@flow
def wait(name: str = "go", seconds: float = 0.0):
    Path("started").write_text(name)
    time.sleep(seconds)
"""
SETTINGS = """
name: small
pull:
  - prefect.deployments.steps.set_working_directory:
      directory: "{{ $FEDCORE_ROOT }}"
deployments:
  - name: default
    entrypoint: small.py:wait
    work_pool: {name: fedcore}
    concurrency_limit: {limit: 1, collision_strategy: CANCEL_NEW}
"""


@dataclass
class Served:
    """The project's folder, its port and its `flows.serve`."""

    root: Path
    port: int
    extra: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Of every command: this checkout's code, this project's state."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "FEDCORE_"))}
        own = {"PYTHONPATH": str(ROOT), "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api"}
        return {**kept, **own, "PREFECT_HOME": str(self.root / ".prefect"), "DO_NOT_TRACK": "1", **self.extra}

    @property
    def said(self) -> str:
        """All that the last start printed."""
        return (self.root / "serve.out").read_text()

    def start(self) -> None:
        """Start serving and wait until it says that it does."""
        with (self.root / "serve.out").open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.serve"],
                cwd=self.root,
                env=self.environment,
                stdout=output,
                stderr=output,
                text=True,
            )
        self.wait(lambda: "make stop" in self.said)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a module of Python to its end."""
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False, timeout=PATIENCE
        )

    def stop(self) -> str:
        """Stop serving as `make stop` does; return what it said."""
        done = self.command("flows.serve", "--stop")
        if self.process is not None:
            self.process.wait(PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def api(self, path: str, body: Any = None) -> Any:
        """Ask the server; a body makes it a POST."""
        data = None if body is None else json.dumps(body).encode()
        address = f"http://127.0.0.1:{self.port}/api{path}"
        asked = request.Request(address, data=data, headers={"content-type": "application/json"})
        with request.build_opener(request.ProxyHandler({})).open(asked, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def run(self, **parameters: Any) -> str:
        """Ask for a run of the flow; return its id."""
        deployment = self.api("/deployments/name/wait/default")["id"]
        return str(self.api(f"/deployments/{deployment}/create_flow_run", {"parameters": parameters})["id"])

    def state(self, run: str) -> str:
        """Return the state of a run, ``COMPLETED`` for example."""
        return str(self.api(f"/flow_runs/{run}")["state"]["type"])

    def processes(self, *words: str) -> list[psutil.Process]:
        """Return the service's processes whose command has all the words, guards apart."""
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
                if process.environ().get(MARK) == str(self.root) and "processes.py" not in line:
                    found += [process] if all(word in line for word in words) else []
            except (psutil.Error, OSError):
                continue
        return found

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so; fail with what was printed when it takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < deadline, self.said
            assert self.process is None or self.process.poll() is None or is_so(), self.said
            time.sleep(0.2)


@contextmanager
def served(root: Path, **extra: str) -> Iterator[Served]:
    """Write the project; end whatever is left of it afterwards."""
    (root / "small.py").write_text(FLOW)
    (root / "prefect.yaml").write_text(SETTINGS)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    project = Served(root, port, extra)
    try:
        yield project
    finally:
        project.stop()
        assert project.processes() == []
