"""Play some nights in fast-forward, in a copy of the project: `make night`.

First night: the first champion. Then (a) ordinary new data, (b) data with shuffled labels, (c) a method that crashes
and a trainer that is killed, (d) the whole run killed, found by the night after it. With `ARGS=--pages` the pages of
Prefect and MLflow stay open afterwards, until Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from experiments.alerts import Inbox  # noqa: E402
from flows.processes import Guarded, sigterm_raises  # noqa: E402
from flows.server import is_healthy  # noqa: E402

FIRST, ORDINARY, SHUFFLED, LATER, LAST = (slice(0, 360), *(slice(n, n + 350) for n in (360, 710, 1060, 1410)))
PARAMETERS: dict[str, Any] = {
    "experiment": "night",
    "dataset": {"name": "npz", "files": ["data/first.npz"], "images": True},
    "partition": {"scheme": "stable", "clients": 6, "alpha": 5.0, "test": 0.2, "validation": 0.3},
    "virtual": None,
    "pseudo": None,
    "model": {"name": "mlp", "hidden": [32]},
    "train": {"rounds": 30, "batch_size": 16, "lr": 0.1, "evaluate_every": 10, "executor": "serial"},
    "methods": {"fedavg": {}, "fedprox": {"add": {"prox": {"mu": 0.01}}}},
    "compare": {"seeds": [0], "baseline": "fedavg"},
    "incoming": {"quiet_seconds": 0.0},
    # Six clients are few for an interval, so the rule here is the mean difference alone.
    "gate": {"lowest_difference": -0.5, "worst_decile_margin": 0.5},
    "notify": {"webhook": "NIGHT_WEBHOOK"},
}
POLL_SECONDS = 0.1
START_SECONDS = 300.0
FAULTY = '''"""A method that crashes on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedcore.methods.base import Method


@dataclass(frozen=True)
class Faulty(Method):
    """Crashes when it is to average."""

    def aggregate(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("this method crashes")
'''


class Stage:
    """A copy of the project with its own small data, parameters and Prefect server.

    Parameters
    ----------
    folder : Path
        Where to put it; must not exist.
    say : callable
        Gets every line of the nights' logs.
    webhook : str
        Where the nights send their alerts.

    Attributes
    ----------
    seconds : mapping
        What each night took, from the start of its process to its end.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], webhook: str):
        self.folder, self.say, self.webhook = folder, say, webhook
        self.seconds: dict[str, float] = {}
        self.parameters: dict[str, Any] = json.loads(json.dumps(PARAMETERS))
        for name in ("fedcore", "tasks", "flows"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("dvc.yaml", "pyproject.toml", ".dvcignore"):
            shutil.copy(ROOT / name, folder / name)
        for name in (".dvc", ".prefect", "data/accepted", "data/incoming", "mlruns"):
            (folder / name).mkdir(parents=True)
        (folder / "data" / "accepted" / ".gitkeep").touch()
        (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
        self.write()
        self._pixels, self._labels = examples()
        self.save("data/first.npz", FIRST)
        self.port = free_port()

    @property
    def tracking(self) -> str:
        """The address of MLflow's database."""
        return f"sqlite:///{self.folder}/mlruns/mlflow.db"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of everything that runs here."""
        own = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "FEDCORE_ROOT": str(self.folder),
            "PREFECT_HOME": str(self.folder / ".prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "MLFLOW_TRACKING_URI": self.tracking,
            "DVC_SITE_CACHE_DIR": str(self.folder / ".cache" / "dvc"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "NIGHT_WEBHOOK": self.webhook,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "DO_NOT_TRACK": "1",
            "DVC_NO_ANALYTICS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "",  # sixteen processes a night would compile the copy again
            "OMP_NUM_THREADS": "1",
        }
        return {**os.environ, **own}

    def write(self) -> None:
        """Write params.yaml."""
        with (self.folder / "params.yaml").open("w") as file:
            YAML().dump(self.parameters, file)

    def save(self, path: str, rows: slice, shuffled: bool = False) -> None:
        """Write some of the examples; `shuffled` moves every label on by three classes."""
        labels = (self._labels[rows] + 3 * shuffled) % 10
        np.savez(self.folder / path, inputs=self._pixels[rows], labels=labels)

    def server(self) -> Guarded:
        """Start the Prefect server."""
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        log = self.folder / ".prefect" / "server.log"
        server = self.start(command, log)
        deadline = time.monotonic() + START_SECONDS
        while not is_healthy(str(self.environment["PREFECT_API_URL"])):
            if server.poll() is not None or time.monotonic() > deadline:
                server.stop()
                raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
            time.sleep(POLL_SECONDS)
        return server

    def pages(self) -> tuple[Guarded, str]:
        """Start MLflow's pages; return the server and their address."""
        port = free_port()
        command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
        server = self.start([*command, "--backend-store-uri", self.tracking], self.folder / "mlruns" / "pages.log")
        return server, f"http://127.0.0.1:{port}"

    def start(self, command: list[str], log: Path | None = None) -> Guarded:
        """Start a command in the copy."""
        inside = [sys.executable, "-c", "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"]
        arguments = [*inside, str(self.folder), *command]
        if log is None:
            return Guarded(arguments, environment=self.environment)
        with log.open("wb") as file:
            return Guarded(arguments, environment=self.environment, output=file)

    def run(self, module: str, *arguments: str) -> int:
        """Run a module of the copy to its end."""
        with self.start([sys.executable, "-m", module, *arguments]) as process:
            for line in process.lines():
                self.say(line)
            return process.wait()

    def night(self, name: str, kill: tuple[str, str] | None = None) -> int:
        """Play a night; `kill` is a run to wait for and the module whose process is then killed."""
        began = time.monotonic()
        with self.start([sys.executable, "-m", "flows.nightly", "--night", name]) as process:
            for line in process.lines():
                self.say(line)
                if kill is not None and f"Running stage 'train@{kill[0]}'" in line:
                    self.kill(kill[1])
                    kill = None
            code = process.wait()
        self.seconds[name] = time.monotonic() - began
        if kill is not None:
            raise RuntimeError(f"night {name}: {kill[0]} was not trained, so nothing could be killed")
        return code

    def kill(self, module: str, within: float = START_SECONDS) -> None:
        """Kill the process of the copy that runs a module with SIGKILL, as soon as it is there.

        Raises
        ------
        RuntimeError
            When there is none within so many seconds.
        """
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            for process in psutil.process_iter(["cmdline", "cwd"]):
                words = process.info["cmdline"] or []
                if process.info["cwd"] == str(self.folder) and words[1:3] == ["-m", module]:
                    with suppress(psutil.NoSuchProcess):
                        process.send_signal(signal.SIGKILL)
                    return
            time.sleep(POLL_SECONDS)
        raise RuntimeError(f"no process runs {module} in {self.folder}")

    def report(self, name: str) -> dict[str, Any]:
        """Return what a night left."""
        found: dict[str, Any] = json.loads((self.folder / "reports" / "nightly" / f"{name}.json").read_text())
        return found


def examples() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's digits as bytes [n, 1, 8, 8], in an order that mixes the writers, and their labels."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.argsort((np.arange(len(bunch.target)) * 7919) % 10007)
    return (bunch.images[order] * 15).astype(np.uint8)[:, None], bunch.target[order].astype(np.int64)


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def play(stage: Stage) -> Iterator[dict[str, Any]]:
    """Play the nights, with the server running; yield their reports in order, each as soon as it is written."""
    stage.run("tasks.tracking", "--prepare")
    stage.night("first")
    yield stage.report("first")
    stage.save("data/incoming/ordinary.npz", ORDINARY)
    stage.night("a-ordinary")
    yield stage.report("a-ordinary")
    stage.save("data/incoming/shuffled.npz", SHUFFLED, shuffled=True)
    stage.night("b-shuffled")
    yield stage.report("b-shuffled")
    stage.run("tasks.intake", "--withdraw", "2", "--reason", "the labels were shuffled")
    stage.save("data/incoming/later.npz", LATER)
    (stage.folder / "fedcore" / "methods" / "faulty.py").write_text(FAULTY)
    stage.parameters["methods"]["faulty"] = {}
    stage.write()
    stage.night("c-crash", kill=("fedavg-0", "tasks.train"))
    yield stage.report("c-crash")
    del stage.parameters["methods"]["faulty"]
    stage.write()
    stage.save("data/incoming/last.npz", LAST)
    stage.night("d-killed", kill=("fedavg-0", "flows.nightly"))
    stage.night("e-after")
    yield stage.report("d-killed")
    yield stage.report("e-after")


def main() -> None:
    """Play in a temporary folder; print each night's end, its time and the alerts that were sent."""
    parser = argparse.ArgumentParser(prog="python experiments/night.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("--verbose", action="store_true", help="print the nights' logs too")
    parser.add_argument("--pages", action="store_true", help="leave the pages of Prefect and MLflow open, until Ctrl-C")
    arguments = parser.parse_args()
    with sigterm_raises(), ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="nights-", ignore_cleanup_errors=True))
        inbox = opened.enter_context(Inbox())
        say = print if arguments.verbose else lambda _: None
        stage = Stage(Path(folder).resolve() / "project", say, inbox.url)
        opened.enter_context(stage.server())
        print("playing six nights; some minutes (--verbose shows their logs)", flush=True)
        for night in play(stage):
            tell(night, stage.seconds[night["name"]], inbox)
        if arguments.pages:
            server, url = stage.pages()
            opened.enter_context(server)
            print(f"\nPrefect  http://127.0.0.1:{stage.port}\nMLflow   {url}\nend      Ctrl-C", flush=True)
            with suppress(KeyboardInterrupt):
                server.wait()


def tell(night: Mapping[str, Any], seconds: float, inbox: Inbox) -> None:
    """Print how a night ended."""
    print(f"\n{night['name']}: {night['status']} ({seconds:.0f} s)\n  {night['message']}")
    for line in night["warnings"]:
        print(f"  warning: {line}")
    for alert in inbox.alerts:
        if alert["name"] == night["name"]:
            print(f"  alert sent: {alert['text']}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
