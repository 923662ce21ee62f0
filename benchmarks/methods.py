"""What every method and add-on costs, and how much of FedAvg's speed-up it keeps.

Each runs in the plain way (one client at a time) and in the fast one, the reference loop between its rounds; both are
measured in rounds of that loop, so that a machine's moods cancel. Speed-up is plain over fast; what is kept of it is
that over FedAvg's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.alternation import alternate, summary
from benchmarks.engine import composition, make_train, make_training
from benchmarks.options import (
    add_data_options,
    add_engine_options,
    chosen_sources,
    one_thread,
    run_command,
    settings,
    write_json,
)
from benchmarks.reference import Reference
from benchmarks.report import seconds
from benchmarks.workloads import SIMULATORS, Workload, build
from fedcore import discovery
from fedcore.data.federation import Federation
from fedcore.data.partitions import PartitionTable
from fedcore.seeds import stream

BASELINE = "fedavg"
# Hyper-parameters without a default; all others are at theirs.
_REQUIRED: Mapping[str, Mapping[str, Any]] = {"prox": {"mu": 0.01}, "ditto": {"strength": 0.1}}


def main() -> None:
    """Measure, print, and write JSON where asked to."""
    arguments = _parser().parse_args()
    one_thread()
    facts, rows = machine.facts(), []
    for name in arguments.workloads:
        workload = with_attributes(build(name, chosen_sources(arguments), arguments.scale))
        print(f"\n{name}  {workload.title}, scale {arguments.scale:g}", flush=True)
        baseline: dict[str, Any] | None = None
        for method in [BASELINE, *(m for m in arguments.methods if m != BASELINE)]:
            row = {"workload": name, "scale": arguments.scale, "method": method}
            row.update(measure(workload, method, arguments))
            baseline = baseline or row
            compare(row, baseline)
            print(line(row), flush=True)
            rows.append(row)
            if arguments.json:
                write_json(arguments.json, {"machine": facts, "methods": rows})


def known() -> list[str]:
    """Return the names of all methods and add-ons."""
    return [*discovery.method_names(), *discovery.addon_names()]


def block(name: str) -> dict[str, Any]:
    """Return the line of ``methods`` that runs a method, or FedAvg with an add-on."""
    own = dict(_REQUIRED.get(name, {}))
    return {"method": name, **own} if name in discovery.method_names() else {"method": "fedavg", "add": {name: own}}


def measure(workload: Workload, method: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the rounds of the reference loop that a round takes in either way; the reason if it cannot run."""
    found: dict[str, Any] = {"fast": " ".join(arguments.fast), "plain": " ".join(arguments.plain)}
    for way in ("plain", "fast"):
        own = {"rounds": arguments.rounds + 1, "device": arguments.device, **settings(getattr(arguments, way))}
        train = make_train(workload, **own)
        try:
            training = make_training(workload, composition(block(method)), train, arguments.seed)
        except ValueError as error:
            return {**found, "reason": str(error).split(": ", 1)[-1]}
        reference = Reference(workload, train, arguments.seed, _initial(workload, arguments), training.examples.device)
        try:
            short = summary(alternate(training, reference))
        finally:
            training.executor.close()
        found[f"{way}_seconds"], found[f"{way}_ratio"] = short["seconds"], short["ratio"]
        found[f"{way}_cpu_ratio"] = short["cpu_ratio"]
        found[f"{way}_executor"] = training.executor.name
    return found


def compare(row: dict[str, Any], baseline: Mapping[str, Any]) -> None:
    """Add cost, speed-up and the share of FedAvg's speed-up that is kept to a row that could run."""
    if "reason" in row:
        return
    row["cost"] = row["plain_ratio"] / baseline["plain_ratio"]
    row["speed_up"] = row["plain_ratio"] / row["fast_ratio"]
    row["kept"] = row["speed_up"] / (baseline["plain_ratio"] / baseline["fast_ratio"])
    cpu, baseline_cpu = (r["plain_cpu_ratio"] / r["fast_cpu_ratio"] for r in (row, baseline))
    row["kept_cpu"] = cpu / baseline_cpu


def line(row: Mapping[str, Any]) -> str:
    """Return a row for people."""
    if "reason" in row:
        return f"  {row['method']:20s} does not run here: {row['reason']}"
    return (
        f"  {row['method']:20s} plain {seconds(row['plain_seconds'])} ({row['cost']:.2f} x FedAvg),"
        f" fast {seconds(row['fast_seconds'])} ({row['fast_executor']}), speed-up {row['speed_up']:.2f},"
        f" keeps {100 * row['kept']:.0f} % ({100 * row['kept_cpu']:.0f} % of CPU seconds)"
    )


def with_attributes(workload: Workload) -> Workload:
    """Return a workload whose examples have two random protected attributes, for the method that hides such."""
    federation = workload.federation
    protected = stream(0, "benchmark/protected").integers(0, 2, (len(federation.dataset), 2), np.uint8)
    data = replace(federation.dataset, protected=protected, protected_names=("first", "second"))
    return replace(workload, federation=Federation(data, _table(federation)))


def _table(federation: Federation) -> PartitionTable:
    """Return the partition that a federation was made from."""
    client = np.full(len(federation.dataset), -1)
    split = np.full(len(federation.dataset), -1)
    for number in range(federation.num_clients):
        for code, name in enumerate(("train", "test", "val")):
            rows = federation.rows(number, name)  # type: ignore[arg-type]
            client[rows], split[rows] = number, code
    return PartitionTable(client, split, federation.num_clients, federation.num_unseen, "{}", federation.rotation)


def _initial(workload: Workload, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the weights the reference loop starts from: FedAvg's, as a method may bring others."""
    training = make_training(workload, composition({}), make_train(workload, device=arguments.device), arguments.seed)
    return {**training.initial, **training.net.initial_buffers}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, default=SIMULATORS)
    add_engine_options(parser)
    parser.set_defaults(scale=0.1, rounds=3)
    parser.add_argument("--methods", nargs="+", choices=known(), default=known(), metavar="NAME")
    plain, fast = ["executor=serial", "workers=1"], ["executor=auto", f"workers={os.cpu_count() or 1}"]
    parser.add_argument("--plain", nargs="+", metavar="KEY=VALUE", default=plain, help="train section (serial)")
    parser.add_argument("--fast", nargs="+", metavar="KEY=VALUE", default=fast, help="train section (auto)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


if __name__ == "__main__":
    run_command(main)
