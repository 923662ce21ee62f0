"""Every workload runs under every executor and agrees with the reference loop; the figures are what they say."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import compare, processes
from benchmarks.alternation import Measured, alternate, ratios, summary
from benchmarks.compare import EXECUTORS
from benchmarks.engine import TimedExecutor, composition, make_train, make_training
from benchmarks.options import run_command
from benchmarks.reference import Reference
from benchmarks.workloads import Workload
from tests.benchmarks.conftest import ROOT

ROUNDS = 2


def measured(workload: Workload, **settings: object) -> Measured:
    train = make_train(workload, rounds=ROUNDS, device="cpu", **settings)
    training = make_training(workload, composition(workload.method), train)
    initial = {**training.initial, **training.net.initial_buffers}
    try:
        return alternate(training, Reference(workload, train, 0, initial, torch.device("cpu")))
    finally:
        training.executor.close()


@pytest.mark.parametrize("executor", [e if e != "ray" else pytest.param(e, marks=pytest.mark.slow) for e in EXECUTORS])
@pytest.mark.parametrize("name", ["w1", "w2", "w3"])
def test_engine_and_reference_agree(tiny: dict[str, Workload], name: str, executor: str) -> None:
    found = measured(tiny[name], executor=executor, workers=2)
    assert len(found.difference) == ROUNDS
    assert max(found.difference) < 1e-5
    assert found.accuracy == pytest.approx(found.reference_accuracy[:ROUNDS], abs=1e-9)


def test_the_reference_is_told_apart(tiny: dict[str, Workload]) -> None:
    """The agreement above can fail: another seed of the batch order moves the weights."""
    train = make_train(tiny["w2"], rounds=1, device="cpu", executor="serial")
    training = make_training(tiny["w2"], composition({}), train)
    other = Reference(tiny["w2"], train, 1, training.initial, torch.device("cpu"))
    assert alternate(training, other).difference[0] > 1e-4


def test_the_reference_goes_first_and_last(tiny: dict[str, Workload]) -> None:
    found = measured(tiny["w2"], executor="stacked")
    assert (len(found.reference), len(found.ours), len(found.parts)) == (ROUNDS + 1, ROUNDS, ROUNDS)
    for parts, seconds in zip(found.parts, found.ours, strict=True):
        assert parts["train"] + parts["evaluate"] <= seconds
        assert parts["jobs"] + parts["steps"] + parts["aggregate"] == pytest.approx(parts["train"])
        assert min(parts.values()) > 0


def test_ratios_by_hand() -> None:
    assert ratios([2.0, 3.0], [1.0, 3.0, 9.0]) == [1.0, 0.5]


def test_the_first_round_is_no_part_of_the_medians() -> None:
    found = Measured(
        ours=[90.0, 1.0, 2.0, 4.0],
        ours_cpu=[90.0, 1.0, 1.0, 1.0],
        reference=[80.0, 8.0, 8.0, 8.0, 4.0],
        reference_cpu=[80.0, 2.0, 2.0, 2.0, 2.0],
        parts=[{"train": 90.0}, {"train": 1.0}, {"train": 2.0}, {"train": 4.0}],
        difference=[1e-8, 2e-8, 3e-8, 4e-8],
        accuracy=[0.1, 0.2, 0.3, 0.4],
        reference_accuracy=[0.1, 0.2, 0.3, 0.4, 0.5],
    )
    short = summary(found)
    assert (short["seconds"], short["reference_seconds"], short["ratio"]) == (2.0, 8.0, 0.25)
    # 1/8, 2/8, 4/6
    assert short["ratio_range"] == [0.125, pytest.approx(2 / 3)]
    assert (short["cpu_ratio"], short["first_round"], short["difference"]) == (0.5, 90.0, 1e-8)
    assert short["reference_accuracy"] == [0.1, 0.2, 0.3, 0.4]


def test_methods_with_set_up_rounds_start_counting_after_them(tiny: dict[str, Workload]) -> None:
    train = make_train(tiny["w2"], rounds=ROUNDS, device="cpu", executor="serial")
    training = make_training(tiny["w2"], composition({"add": {"dbe": {"kappa": 1.0}}}), train)
    found = alternate(training, Reference(tiny["w2"], train, 0, training.initial, torch.device("cpu")))
    assert len(found.ours) == ROUNDS
    assert found.setup > 0
    assert math.isfinite(found.difference[0])


def test_a_timed_executor_is_the_inner_one_otherwise(tiny: dict[str, Workload]) -> None:
    train = make_train(tiny["w2"], rounds=1, device="cpu", executor="serial", workers=2)
    executor = make_training(tiny["w2"], composition({}), train).executor
    assert isinstance(executor, TimedExecutor)
    assert (executor.name, executor.workers) == ("serial", min(2, os.cpu_count() or 1))


def test_memory_of_a_tree_counts_its_children() -> None:
    alone = processes.resident_bytes(os.getpid())
    if not Path("/proc/self/smaps_rollup").exists():
        assert alone is None
        return
    code = "x = b'1' * 50_000_000; print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.pid in processes.tree(os.getpid())
        together = processes.resident_bytes(os.getpid())
        child.communicate(b"\n")
    assert alone is not None
    assert together is not None
    assert together - alone > 45_000_000


# Takes away what a bare GPU machine does not have, then runs the command.
BARE = """
import runpy, sys
absent = ["dvc", "matplotlib", "mlflow", "pandas", "prefect", "psutil", "pyarrow", "ruamel", "sklearn", "tasks",
          "torchvision", "yaml"]
sys.modules.update(dict.fromkeys(absent))
sys.argv = ["compare", *sys.argv[1:]]
runpy.run_module("benchmarks.compare", run_name="__main__")
"""


def test_the_command_needs_torch_numpy_pydantic_and_safetensors_alone(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    options = ["--workloads", "w2", "--scale", "0.05", "--rounds", "1", "--no-memory", "--json", str(out)]
    done = subprocess.run([sys.executable, "-c", BARE, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the global models differ by" in done.stdout
    (result,) = json.loads(out.read_text())["results"]
    assert result["ratio"] == pytest.approx(result["seconds"] / result["reference_seconds"])
    assert str(tmp_path) not in result["command"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--set", "batchsize=5"], r"error: train\.batchsize: .*batch_size"),
        (["--set", "batch_size"], r"error: --set: expected KEY=VALUE of the train section, got 'batch_size'"),
        (["--scale", "0"], r"error: --scale: expected a number above 0 and at most 1, got 0"),
        (["--device", "gpu"], r"error: train\.device: 'gpu' is no device\. Valid: auto, cpu, cuda"),
        (["--workloads", "w1", "--partition", "no.npz", "--data", "random"], r"error: no\.npz: does not exist"),
        (["--workloads", "w3", "--root", "nowhere"], r"error: nowhere/MNIST.*--data random"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare", "--workloads", "w2", *options])
    with pytest.raises(SystemExit) as stopped:
        run_command(compare.main)
    assert stopped.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.match(expected, lines[0])
