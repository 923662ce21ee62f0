"""Play some nights in fast-forward, in a copy of the project: `make night`.

First night: the first champion. Then (a) ordinary new data, (b) data with shuffled labels, (c) a method that crashes
and a trainer that is killed, (d) the whole run killed, found by the night after it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from flows.processes import Guarded  # noqa: E402
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
}
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
    """

    def __init__(self, folder: Path, say: Callable[[str], None]):
        self.folder, self.say = folder, say
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
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = int(listener.getsockname()[1])

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of everything that runs here."""
        own = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "FEDCORE_ROOT": str(self.folder),
            "PREFECT_HOME": str(self.folder / ".prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder}/mlruns/mlflow.db",
            "DVC_SITE_CACHE_DIR": str(self.folder / ".cache" / "dvc"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "DVC_NO_ANALYTICS": "1",
            "PYTHONUNBUFFERED": "1",
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
        while not is_healthy(str(self.environment["PREFECT_API_URL"])):
            if server.poll() is not None:
                raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
        return server

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
        with self.start([sys.executable, "-m", "flows.nightly", "--night", name]) as process:
            for line in process.lines():
                self.say(line)
                if kill is not None and f"Running stage 'train@{kill[0]}'" in line:
                    self.kill(kill[1])
                    kill = None
            return process.wait()

    def kill(self, module: str) -> None:
        """Kill the process of the copy that runs a module with SIGKILL, as soon as it is there."""
        while True:
            for process in psutil.process_iter(["cmdline", "cwd"]):
                line = process.info["cmdline"] or []
                if module in line and process.info["cwd"] == str(self.folder) and "-m" in line:
                    process.send_signal(signal.SIGKILL)
                    return

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


def play(stage: Stage) -> list[dict[str, Any]]:
    """Play the nights; return their reports in order."""
    stage.run("tasks.tracking", "--prepare")
    with stage.server():
        stage.night("first")
        stage.save("data/incoming/ordinary.npz", ORDINARY)
        stage.night("a-ordinary")
        stage.save("data/incoming/shuffled.npz", SHUFFLED, shuffled=True)
        stage.night("b-shuffled")
        stage.run("tasks.intake", "--withdraw", "2", "--reason", "the labels were shuffled")
        stage.save("data/incoming/later.npz", LATER)
        (stage.folder / "fedcore" / "methods" / "faulty.py").write_text(FAULTY)
        stage.parameters["methods"]["faulty"] = {}
        stage.write()
        stage.night("c-crash", kill=("fedavg-0", "tasks.train"))
        del stage.parameters["methods"]["faulty"]
        stage.write()
        stage.save("data/incoming/last.npz", LAST)
        stage.night("d-killed", kill=("fedavg-0", "flows.nightly"))
        stage.night("e-after")
    names = ("first", "a-ordinary", "b-shuffled", "c-crash", "d-killed", "e-after")
    return [stage.report(name) for name in names]


def main() -> None:
    """Play in a temporary folder and print a table."""
    is_loud = "--verbose" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder).resolve() / "project", print if is_loud else lambda _: None)
        print("playing six nights; some minutes (--verbose shows their logs)", flush=True)
        for night in play(stage):
            print(f"\n{night['name']:<12} {night['status']}\n  {night['message']}")
            for line in night["warnings"]:
                print(f"  warning: {line}")


if __name__ == "__main__":
    main()
