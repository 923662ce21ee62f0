"""Train one method with one seed, from its checkpoint if it was interrupted, and write its run folder."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.files import atomic_folder, read_json
from tasks.locks import alone
from tasks.parameters import run_step

if TYPE_CHECKING:
    from fedcore.data.federation import Federation
    from fedcore.data.partitions import PartitionTable
    from fedcore.engine.rounds import Training
    from fedcore.tracking import Tracker


_PATIENCE = 15.0  # seconds; a shorter training is published by a later stage instead of followed live


def main() -> None:
    """Read the command line, train, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="the method's plan file")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--partition", type=Path, required=True, help="partition file")
    parser.add_argument("--out", type=Path, required=True, help="run folder to write")
    parser.add_argument("--checkpoints", type=Path, default=Path(".checkpoints"))
    parser.add_argument("--no-tracking", action="store_true", help="train without MLflow")
    arguments = parser.parse_args()
    from tasks.lineage import Watch

    plan = read_json(arguments.plan)
    resources = [Path(entry["folder"]) for entry in plan["resources"].values()]
    watch = Watch([Path(__file__), arguments.plan, arguments.dataset, arguments.partition, *resources])
    # One thread per client: results do not depend on the machine's core count, and small kernels gain nothing.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(".cache/compiled").resolve()))
    import torch

    from fedcore.data import dataset, partitions
    from fedcore.data.federation import Federation
    from fedcore.engine.checkpoint import Checkpoint
    from fedcore.engine.executors import remarks
    from tasks.run_writer import write_run

    torch.set_num_threads(1)
    data, table = dataset.load(arguments.dataset), partitions.load(arguments.partition)
    training = make_training(plan, arguments.seed, Federation(data, table))
    if training.examples.device.type == "cuda":
        # On a CPU with one thread everything is deterministic as it is, and this call alone imports for two seconds.
        torch.use_deterministic_algorithms(True)
    config, lineage = describe(plan, arguments.seed, training, table)
    key = config["run_key"]
    name = f"{plan['label']}-{arguments.seed}"
    checkpoint = Checkpoint(arguments.checkpoints / f"{name}-{key[:16]}.safetensors", key, _warn)
    # By name, not by key: one that goes on with other settings would write the same run folder. The processes of an
    # executor were forked before, so that none of them keeps the lock when this process is gone.
    lock = alone(arguments.checkpoints / f"{name}.lock", partial(_wait, name))
    with closing(training.executor), lock as has_waited:
        if has_waited and is_finished(arguments.out, lineage | watch.verdict()):
            print(f"note: {name}: that process has finished it", file=sys.stderr)
            return
        tracker = make_tracker(config, lineage, arguments.no_tracking)
        try:
            progress = training.run(tracker, checkpoint)
            lineage |= watch.verdict()
            for remark in remarks(training.executor, training.train, training.examples.device, training.federation):
                print(f"note: {remark}", file=sys.stderr)
            if not lineage["clean"]:
                again = f"run `dvc repro -f train@{name}` for a clean one"
                print(f"warning: this run is marked as not clean: {lineage['why']}; {again}", file=sys.stderr)
            with atomic_folder(arguments.out) as folder:
                write_run(folder, config, lineage, training, progress)
        except BaseException:
            tracker.end("failed")
            raise
        tracker.end("finished")
        checkpoint.clear()


def is_finished(run: Path, lineage: dict[str, Any]) -> bool:
    """Return whether a run folder is that of a clean run with this very lineage."""
    try:
        return bool(lineage["clean"] and read_json(run / "lineage.json") == lineage)
    except ValueError:
        return False


def _wait(name: str, holder: str) -> None:
    print(f"note: {name}: waiting for {holder}, which is training it", file=sys.stderr, flush=True)


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def make_training(plan: dict[str, Any], seed: int, federation: Federation) -> Training:
    """Build what a plan describes, on its device."""
    from pydantic import TypeAdapter

    from fedcore import models
    from fedcore.compose import build
    from fedcore.config import MethodBlock, Train
    from fedcore.config import Model as ModelConfig
    from fedcore.data import resources
    from fedcore.engine.checks import check_training
    from fedcore.engine.executors import make_executor, resolve_device
    from fedcore.engine.local import Examples
    from fedcore.engine.rounds import Training

    block = MethodBlock(method=plan["method"], add=plan["add"], **plan["settings"])
    composition = build(plan["label"], block)
    train = Train.model_validate(plan["train"])
    model: Any = TypeAdapter(ModelConfig).validate_python(plan["model"])
    device = resolve_device(train.device)
    data = federation.dataset
    net = models.build(model, data.input_shape, composition.num_outputs(data.num_classes), seed).to(device)
    check_training(plan["label"], composition, net, train, federation, frozenset(plan["resources"]))
    examples = Examples(federation.inputs(), data.labels, data.offset, data.scale, device, protected=data.protected)
    executor = make_executor(composition, net, train, examples, federation)
    held = {name: resources.load(Path(entry["folder"]), data, device) for name, entry in plan["resources"].items()}
    return Training(composition, net, federation, train, seed, executor, examples, held)


def describe(
    plan: dict[str, Any], seed: int, training: Training, table: PartitionTable
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the run's resolved configuration, with its key, and its lineage."""
    from tasks.lineage import engine_hash, git_state, versions

    federation, method = training.federation, training.composition.method
    data = federation.dataset
    config = {
        **plan,
        "seed": seed,
        "dataset": {"name": data.name},
        "partition": json.loads(table.scheme),
        "input": {
            "shape": list(data.input_shape),
            "class_names": list(data.class_names),
            "offset": list(data.offset),
            "scale": list(data.scale),
            **({} if data.num_tokens is None else {"num_tokens": data.num_tokens}),
        },
        "clients": {"training": federation.num_clients, "unseen": federation.num_unseen},
        "views": ["global"] * method.has_global
        + ["personal"]
        + ["unseen"] * (federation.num_unseen > 0 and method.has_global and not training.train.newcomer_rounds),
    }
    device = training.examples.device
    runs_on = str(device) if device.type == "cpu" else f"cuda ({_gpu_name()})"
    lineage = {
        "dataset_hash": data.content_hash,
        "partition_hash": table.content_hash,
        "plan_hash": _digest(plan),
        "code_hash": engine_hash(),
        "seed": seed,
        "versions": versions(),
        "device": runs_on,
        "executor": training.executor.name,
        "threads": 1,
    }
    key = _digest({"config": config, "lineage": lineage})
    return {**config, "run_key": key}, {**lineage, **git_state(), "run_key": key}


def make_tracker(config: dict[str, Any], lineage: dict[str, Any], silent: bool) -> Tracker:
    """Return the console's tracker, with MLflow's unless `silent`."""
    from tasks.tracking import ConsoleTracker, MlflowTracker, MultiTracker, SafeTracker

    console = SafeTracker(ConsoleTracker(f"{config['label']} seed {config['seed']}"))
    if silent:
        return console
    return MultiTracker(console, SafeTracker(MlflowTracker(config, lineage, Path.cwd(), patience=_PATIENCE)))


def _gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    run_step(main)
