"""Peak memory of one side alone: a process of its own that trains two rounds, watched from outside."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import processes

_ROOT = Path(__file__).parent.parent
_PERIOD = 0.1  # seconds between two looks; each stops the process for a millisecond or more


def watch(command: list[str]) -> tuple[int | None, dict[str, Any]]:
    """Run a command that prints JSON; return the peak memory of its processes in bytes, and what it printed.

    Raises
    ------
    ValueError
        If it fails.
    """
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        peak: int | None = None
        while child.poll() is None:
            now = processes.resident_bytes(child.pid)
            peak = max(peak or 0, now) if now else peak
            time.sleep(_PERIOD)
        output, errors = child.communicate()
    if child.returncode:
        raise ValueError(f"measuring memory failed: {errors.strip().splitlines()[-1] if errors.strip() else command}")
    return peak, json.loads(output)


def peaks(options: list[str]) -> dict[str, Any]:
    """Return the peak bytes of the engine and of the reference loop, on the host and on a GPU.

    Parameters
    ----------
    options : list of str
        Command-line options of this module, without ``--side``.
    """
    found: dict[str, Any] = {}
    for side in ("ours", "reference"):
        host, printed = watch([sys.executable, "-m", "benchmarks.memory", "--side", side, *options])
        found[side] = {"host": host, "gpu": printed["gpu"]}
    return found


def main() -> None:
    """Train two rounds of one side."""
    from benchmarks.options import add_data_options, add_engine_options, chosen_sources, one_thread, settings
    from benchmarks.workloads import build

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=["ours", "reference"], required=True)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--method", default="{}", help="one line of methods, as JSON")
    add_data_options(parser, default=[])
    add_engine_options(parser)
    arguments = parser.parse_args()
    one_thread()
    import torch

    from benchmarks.engine import composition, make_train, make_training
    from benchmarks.reference import Reference
    from fedcore import models
    from fedcore.engine.executors import resolve_device

    (name,) = arguments.workloads
    workload = build(name, chosen_sources(arguments), arguments.scale)
    train = make_train(workload, **{"rounds": 2, "device": arguments.device, **settings(arguments.set)})
    if arguments.side == "ours":
        training = make_training(workload, composition(json.loads(arguments.method)), train, arguments.seed)
        training.run()
        training.executor.close()
    else:
        data = workload.federation.dataset
        net = models.build(workload.model_config, data.input_shape, data.num_classes, arguments.seed)
        initial = {**net.initial_params, **net.initial_buffers}
        reference = Reference(workload, train, arguments.seed, initial, resolve_device(arguments.device))
        for number in range(2):
            reference.prepare(number)
            reference.round()
    print(json.dumps({"gpu": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None}))


if __name__ == "__main__":
    from benchmarks.options import run_command

    run_command(main)
