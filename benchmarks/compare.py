"""Time the engine against the reference loop: one round of each in turn, in one process tree.

The first round of both is a warm-up, reported apart. Medians over the others, and their ratio: below 1 we are faster.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks import machine, memory
from benchmarks.alternation import alternate, summary
from benchmarks.engine import composition, make_train, make_training
from benchmarks.options import (
    add_data_options,
    add_engine_options,
    chosen_sources,
    one_thread,
    positive,
    run_command,
    settings,
    write_json,
)
from benchmarks.reference import Reference
from benchmarks.report import report
from benchmarks.work import count_work
from benchmarks.workloads import SIMULATORS, Workload, build
from fedcore.config import Train
from fedcore.engine.executors import resolve_device

EXECUTORS = get_args(Train.model_fields["executor"].annotation)


def main() -> None:
    """Measure, print, and write JSON where asked to."""
    arguments = _parser().parse_args()
    one_thread()
    device = resolve_device(arguments.device)
    facts, peak = machine.facts(), _peak(device)
    print(_headline(facts, peak, device), flush=True)
    results = []
    for name in arguments.workloads:
        workload = build(name, chosen_sources(arguments), arguments.scale)
        for executor in arguments.executor:
            result = measure(workload, arguments, executor, peak)
            print(report(result), flush=True)
            results.append(result)
    if arguments.json:
        write_json(arguments.json, {"machine": facts, "peak_gflops": peak, "results": results})


def measure(workload: Workload, arguments: argparse.Namespace, executor: str, peak: dict[str, float]) -> dict[str, Any]:
    """Return what one workload takes under one executor."""
    own = {"executor": executor, "workers": arguments.workers, **settings(arguments.set)}
    train = make_train(workload, **{**own, "rounds": arguments.rounds + 1, "device": arguments.device})
    method = dict(workload.method)
    training = make_training(workload, composition(method), train, arguments.seed)
    initial = {**training.initial, **training.net.initial_buffers}
    device = training.examples.device
    reference = Reference(workload, train, arguments.seed, initial, device)
    before = machine.load_average()
    try:
        found = summary(alternate(training, reference))
    finally:
        training.executor.close()
    work = count_work(workload, train, arguments.seed, round=1)
    return {
        **found,
        "workload": workload.name,
        "title": workload.title,
        "method": method,
        "executor": training.executor.name,
        "asked": executor,
        "workers": train.workers,
        "device": device.type,
        "rounds": arguments.rounds,
        "scale": arguments.scale,
        "random_data": workload.is_random,
        "load": [before, machine.load_average()],
        "work": work._asdict(),
        "gflops": work.gflop / found["seconds"],
        "of_peak": {name: work.gflop / found["seconds"] / value for name, value in peak.items()},
        "memory": memory.peaks(_memory_options(workload, arguments, own)) if arguments.memory else None,
        "command": _command(workload, arguments, executor),
    }


def _memory_options(workload: Workload, arguments: argparse.Namespace, own: dict[str, Any]) -> list[str]:
    pairs = [f"{key}={json.dumps(value)}" for key, value in own.items()]
    return [
        *("--workloads", workload.name, "--data", arguments.data, "--scale", str(arguments.scale)),
        *("--root", str(arguments.root.absolute()), "--partition", str(arguments.partition.absolute())),
        *("--device", arguments.device, "--seed", str(arguments.seed)),
        *("--method", json.dumps(workload.method), "--set", *pairs),
    ]


def _command(workload: Workload, arguments: argparse.Namespace, executor: str) -> str:
    """Return the command that repeats a measurement, without the folders of this machine."""
    words = [f"python -m benchmarks.compare --workloads {workload.name} --executor {executor}"]
    words += [f"--workers {arguments.workers} --rounds {arguments.rounds} --device {arguments.device}"]
    words += [f"--scale {arguments.scale:g}"] * (arguments.scale != 1) + ["--data random"] * (
        arguments.data == "random"
    )
    words += ["--set " + " ".join(arguments.set)] * bool(arguments.set)
    return " ".join(words)


def _peak(device: torch.device) -> dict[str, float]:
    cores = int(machine.facts()["cores"])
    peak = {"one thread": machine.peak_gflops(1), "all threads": machine.peak_gflops(cores)}
    return {"gpu": machine.gpu_peak_gflops()} if device.type == "cuda" else peak


def _headline(facts: dict[str, Any], peak: dict[str, float], device: torch.device) -> str:
    products = ", ".join(f"{value:,.0f} ({name})" for name, value in peak.items())
    where = facts.get("gpu") if device.type == "cuda" else f"{facts['processor']}, {facts['cores']} cores"
    return f"{where}; torch {facts['torch']}; torch.mm {products} GFLOP/s; load {machine.load_average():.1f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, default=SIMULATORS)
    add_engine_options(parser)
    parser.add_argument("--executor", nargs="+", choices=EXECUTORS, default=["auto"])
    parser.add_argument("--workers", type=positive, default=os.cpu_count() or 1, help="clients at a time (all cores)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other keys of the train section")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="skip the runs that measure memory")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


if __name__ == "__main__":
    run_command(main)
