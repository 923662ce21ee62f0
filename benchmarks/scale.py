"""Train a federation of many small clients: seconds per round and memory, against the number of clients.

The examples are drawn at random in blocks and dealt evenly, so a million clients need no files. With `--total` the same
number of examples is dealt to any number of clients: what then grows is what the engine spends on a client.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import watch
from benchmarks.options import one_thread, positive, run_command, settings, write_json

_BLOCK = 1_000_000  # examples drawn at once


def main() -> None:
    """Train, print, and write JSON where asked to."""
    arguments = _parser().parse_args()
    if arguments.json_line:
        print(json.dumps(trained(arguments)))
        return
    rows = [measured(arguments, clients) for clients in arguments.clients]
    print(table(rows))
    if arguments.json:
        write_json(arguments.json, rows)


def measured(arguments: argparse.Namespace, clients: int) -> dict[str, Any]:
    """Return what a training takes, in a process of its own."""
    import sys

    given = vars(arguments)
    words = [sys.executable, "-m", "benchmarks.scale", "--json-line", "--clients", str(clients)]
    words += [
        w for key in ("examples", "features", "cohort", "rounds", "method") for w in (f"--{key}", str(given[key]))
    ]
    words += ["--total", str(arguments.total)] * (arguments.total is not None)
    words += ["--model", arguments.model, "--set", *arguments.set]
    peak, found = watch(words)
    return {**found, "peak_bytes": peak}


def trained(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train in this process; return seconds and bytes."""
    one_thread()
    import torch
    from pydantic import TypeAdapter

    from benchmarks.engine import composition
    from fedcore import models
    from fedcore.config import Model, Train, validate_section
    from fedcore.engine.checks import check_training
    from fedcore.engine.executors import make_executor
    from fedcore.engine.local import Examples
    from fedcore.engine.rounds import Training

    (clients,) = arguments.clients
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), clients, _rows(arguments, clients), arguments.features)
        built = time.perf_counter()
        section: Any = TypeAdapter(Model).validate_python(json.loads(arguments.model))
        share = min(1.0, arguments.cohort / clients)
        own = {"rounds": arguments.rounds, "participation": share, "local_epochs": 1, "batch_size": 10, "lr": 0.05}
        train = validate_section(Train, {**own, "device": "cpu", **settings(arguments.set)}, ("train",))
        composed = composition(json.loads(arguments.method))
        data = fed.dataset
        net = models.build(section, data.input_shape, composed.num_outputs(data.num_classes), 0)
        check_training("scale", composed, net, train, fed)  # type: ignore[arg-type]
        examples = Examples(fed.inputs(), data.labels, data.offset, data.scale, torch.device("cpu"))
        executor = make_executor(composed, net, train, examples, fed)  # type: ignore[arg-type]
        training = Training(composed, net, fed, train, 0, executor, examples)  # type: ignore[arg-type]
        ready, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        progress = training.run()
        executor.close()
    timing = progress.timing[1:] or progress.timing
    return {
        "clients": clients,
        "examples": len(data),
        "data_bytes": data.inputs.nbytes,
        "cohort": int(share * clients + 0.5),
        "executor": executor.name,
        "data_seconds": built - began,
        "start_seconds": ready - built,
        "train_seconds": float(np.median([row["train_seconds"] for row in timing])),
        "evaluate_seconds": max(row["evaluate_seconds"] for row in progress.timing),
        "resident_before": before * 1024,
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "state_clients": len(progress.store),
    }


def federation(folder: Path, clients: int, rows: int, features: int) -> Any:
    """Return a federation of random examples that lie in a file of `folder`, dealt evenly, three of ten for testing."""
    from fedcore.data.dataset import Dataset
    from fedcore.data.federation import Federation
    from fedcore.data.partitions import PartitionTable
    from fedcore.seeds import stream

    generator = stream(0, "benchmark/scale")
    path = folder / "inputs.npy"
    inputs = np.lib.format.open_memmap(path, "w+", np.float32, (rows, features))
    labels = np.empty(rows, np.int64)
    weights = generator.normal(size=(features, 10)).astype(np.float32)
    for begin in range(0, rows, _BLOCK):
        block = slice(begin, min(begin + _BLOCK, rows))
        inputs[block] = generator.random((block.stop - begin, features), np.float32) - 0.5
        labels[block] = (inputs[block] @ weights).argmax(1)
    inputs.flush()
    del inputs
    names = tuple(f"class {c}" for c in range(10))
    held = np.load(path, mmap_mode="r", allow_pickle=False)
    data = Dataset("scale", held, labels, names, (0.0,), (1.0,), rows)
    client = (np.arange(rows) * clients // rows).astype(np.int32)
    split: np.ndarray[Any, Any] = np.array([0, 0, 0, 1, 0, 0, 1, 0, 0, 1], np.int8)[np.arange(rows) % 10]
    return Federation(data, PartitionTable(client, split, clients, 0, json.dumps({"scheme": "benchmark"})))


def table(rows: list[Mapping[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| clients | examples | cohort | start s | training s | evaluation s | peak MB | of it data MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        peak = row["peak_bytes"] or row["resident"]
        lines.append(
            f"| {row['clients']:,} | {row['examples']:,} | {row['cohort']:,} | {row['start_seconds']:.2f}"
            f" | {row['train_seconds']:.2f} | {row['evaluate_seconds']:.2f} | {peak / 1e6:,.0f}"
            f" | {row['data_bytes'] / 1e6:,.0f} |"
        )
    return "\n".join(lines)


def _rows(arguments: argparse.Namespace, clients: int) -> int:
    return int(arguments.total or clients * arguments.examples)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=positive, nargs="+", default=[10, 500])
    parser.add_argument("--examples", type=positive, default=10, help="of every client (10)")
    parser.add_argument("--total", type=positive, help="examples of all clients together, instead")
    parser.add_argument("--features", type=positive, default=60)
    parser.add_argument("--cohort", type=positive, default=10, help="clients a round (10)")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--model", default='{"name": "softmax_regression"}', help="the model section, as JSON")
    parser.add_argument("--method", default="{}", help="one line of methods, as JSON")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other keys of the train section")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--json-line", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    run_command(main)
