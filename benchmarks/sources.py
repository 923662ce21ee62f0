"""What the data sources cost: prepare each one that is at hand, train one round on it, print a table for docs/data.md.

Run it from the project's folder: ``python -m benchmarks.sources --root data/raw``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PERIOD = 0.1  # seconds between two looks at a process's memory
PROJECT = Path(__file__).resolve().parent.parent
SKEWED = {"scheme": "dirichlet", "alpha": 0.1, "clients": 100, "min_examples": 10}
TWENTY = {"scheme": "dirichlet", "alpha": 0.1, "clients": 20, "min_examples": 10}
MILD = {"scheme": "dirichlet", "alpha": 0.5, "clients": 20, "min_examples": 10}
NATURAL = {"scheme": "natural"}
SMALL_CNN = {"name": "cnn", "channels": [16, 32], "hidden": 128}


@dataclass(frozen=True)
class Case:
    """A source with what suits it; `files` is what must lie under the root for it to be measured."""

    dataset: dict[str, Any]
    files: str | None
    partition: dict[str, Any]
    model: dict[str, Any]
    method: str
    add: dict[str, Any] = field(default_factory=dict)
    participation: float = 0.1


CASES = (
    Case({"name": "digits"}, None, TWENTY, SMALL_CNN, "fedavg", participation=1.0),
    Case({"name": "mnist"}, "MNIST/raw", SKEWED, SMALL_CNN, "lg_fedavg"),
    Case({"name": "fashion_mnist"}, "FashionMNIST/raw", SKEWED, SMALL_CNN, "fedavg", {"dbe": {"kappa": 5.0}}),
    Case({"name": "cifar10"}, "cifar10", SKEWED, SMALL_CNN, "fedavg", {"calibration": {"missing": "clamp"}}),
    Case({"name": "cifar100"}, "cifar100", SKEWED, SMALL_CNN, "scaffold"),
    Case({"name": "tiny_imagenet"}, "tinyimagenet20", TWENTY, SMALL_CNN, "fedavg"),
    Case({"name": "svhn"}, "svhn", SKEWED, SMALL_CNN, "fedavg"),
    Case({"name": "emnist"}, "EMNIST/raw", SKEWED, SMALL_CNN, "fedavg"),
    Case({"name": "imagenet"}, "imagenet/train", TWENTY, SMALL_CNN, "fedavg"),
    Case({"name": "femnist"}, "femnist/train", NATURAL, SMALL_CNN, "fedavg"),
    Case({"name": "har"}, "har", NATURAL, {"name": "har_cnn"}, "fedavg", participation=0.2),
    Case({"name": "ag_news"}, "agnews", TWENTY, {"name": "fast_text"}, "fedavg"),
    Case({"name": "adult"}, "adult", MILD, {"name": "mlp"}, "fedavg", {"adversary": {}}, participation=1.0),
    Case({"name": "synthetic", "alpha": 1.0, "beta": 1.0}, None, NATURAL, {"name": "softmax_regression"}, "fedavg"),
)
MILLION = Case(
    {"name": "synthetic", "clients": 1_000_000, "examples_per_client": 10},
    None,
    NATURAL,
    {"name": "softmax_regression"},
    "fedavg",
    participation=0.0001,
)
HEADER = (
    "source",
    "examples",
    "classes",
    "seconds",
    "MB on disk",
    "MB of memory",
    "one round of",
    "seconds",
    "accuracy",
)


def main() -> None:
    """Print a row for every source, as soon as it is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sources", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("data/raw"), help="folder with the files of the sources")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these sources; default all")
    parser.add_argument("--million", action="store_true", help="a million synthetic clients instead, prepared only")
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}", flush=True)
    for case in (MILLION,) if arguments.million else CASES:
        if arguments.only is None or case.dataset["name"] in arguments.only:
            cells = measure(case, arguments.root.resolve(), trains=not arguments.million)
            print(f"| {' | '.join(cells)} |", flush=True)


def measure(case: Case, root: Path, trains: bool) -> list[str]:
    """Return the cells of a source's row; of one whose files are not there, the name alone."""
    title = f"`{case.dataset['name']}`"
    if case.files is not None and not (root / case.files).exists():
        return [title, "fixture only", *[""] * (len(HEADER) - 2)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_parameters(case, root, folder)
        seconds, memory = run(folder, "tasks.prepare", "--out", "set")
        meta = json.loads((folder / "set" / "meta.json").read_text())
        size = sum(path.stat().st_size for path in (folder / "set").iterdir())
        examples = length(folder / "set" / "labels.npy")
        cells = [title, f"{examples:,}", str(meta["num_classes"]), f"{seconds:.1f}", f"{size / 1e6:,.1f}"]
        return [*cells, f"{memory / 1e6:,.0f}", *(train(case, folder) if trains else ["", "", ""])]


def write_parameters(case: Case, root: Path, folder: Path) -> None:
    """Write the ``params.yaml`` of one round."""
    dataset = case.dataset if case.files is None else {**case.dataset, "root": str(root)}
    parameters = {
        "experiment": "sources",
        "dataset": dataset,
        "partition": {**case.partition, "seed": 0},
        "model": case.model,
        "train": {"rounds": 1, "participation": case.participation, "batch_size": 32, "lr": 0.05},
        "methods": {"trial": {"method": case.method, "add": case.add}},
        "compare": {"seeds": [0], "baseline": "trial"},
    }
    # Every JSON document is YAML.
    (folder / "params.yaml").write_text(json.dumps(parameters))


def train(case: Case, folder: Path) -> list[str]:
    """Train one round; return method, seconds from the partition on, and accuracy of the clients' own models."""
    seconds, _ = run(folder, "benchmarks.one_round")
    accuracy = json.loads((folder / "run" / "metrics.json").read_text())["personal/test/accuracy"]
    return [" + ".join([case.method, *case.add]), f"{seconds:.1f}", f"{accuracy:.2f}"]


def run(folder: Path, module: str, *arguments: str) -> tuple[float, int]:
    """Run a step in `folder`; return its seconds of processor time and its peak of own memory in bytes.

    Own memory is what no file backs: neither the libraries' code nor a memory-mapped data set counts.
    """
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    child = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL
    )
    peak = 0
    while True:
        peak = max(peak, own_bytes(child.pid))
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(PERIOD)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{module} failed with exit code {child.returncode}")
    return usage.ru_utime + usage.ru_stime, peak


def own_bytes(pid: int) -> int:
    """Return the resident memory of a process that no file backs, as Linux counts it; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")]
    return 1024 * sum(found)


def length(path: Path) -> int:
    """Return how many rows an ``.npy`` file has."""
    import numpy as np

    return len(np.load(path, mmap_mode="r", allow_pickle=False))


if __name__ == "__main__":
    main()
