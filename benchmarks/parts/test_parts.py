"""One part of a round at a time: `make bench-parts`. Random data, so no files are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.engine import composition, make_train, make_training
from benchmarks.images import Sources
from benchmarks.plan import plan_round
from benchmarks.reference import Reference
from benchmarks.workloads import Workload, build
from fedcore.config import Train
from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.evaluate import Scorer
from fedcore.engine.progress import save
from fedcore.engine.rounds import Training
from fedcore.engine.server import Reduction

_HERE = Path(__file__).parents[1]
_SOURCES = Sources(_HERE, _HERE / "w1_partition.npz", is_random=True)
_SCALE = {"w1": 0.05, "w2": 1.0, "w3": 1.0}  # a round of each under a second
_EXECUTORS = ("serial", "stacked")


@pytest.fixture(scope="module", params=list(_SCALE))
def workload(request: pytest.FixtureRequest) -> Workload:
    torch.set_num_threads(1)
    return build(request.param, _SOURCES, _SCALE[request.param])


def make(workload: Workload, **settings: Any) -> Training:
    return make_training(workload, composition({}), make_train(workload, rounds=1, device="cpu", **settings))


def test_batch_order_of_a_round(benchmark: BenchmarkFixture, workload: Workload) -> None:
    benchmark(plan_round, make_train(workload), workload.federation, 0, 0)


def test_reference_round(benchmark: BenchmarkFixture, workload: Workload) -> None:
    training = make(workload)
    initial = {**training.initial, **training.net.initial_buffers}
    reference = Reference(workload, training.train, 0, initial, torch.device("cpu"))
    reference.prepare(0)
    benchmark.pedantic(reference.round, rounds=5, warmup_rounds=1)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("executor", _EXECUTORS)
def test_round(benchmark: BenchmarkFixture, workload: Workload, executor: str) -> None:
    benchmark.pedantic(  # type: ignore[no-untyped-call]
        Training.run, setup=lambda: ((make(workload, executor=executor),), {}), rounds=5, warmup_rounds=1
    )


def test_evaluation(benchmark: BenchmarkFixture, workload: Workload) -> None:
    training = make(workload)
    scorer: Scorer = training.scorer
    clients = range(workload.federation.num_clients)
    benchmark(scorer.shared, training.initial, training.net.initial_buffers, clients, "test")


def test_gathering_a_client(benchmark: BenchmarkFixture, workload: Workload) -> None:
    examples = make(workload).examples
    benchmark(examples.gather, workload.federation.rows(0, "train"))


def test_aggregation_of_twenty(benchmark: BenchmarkFixture, workload: Workload) -> None:
    upload = {"parts": make(workload).initial}

    def aggregate() -> None:
        reduction = Reduction([0.05] * 20)
        for _ in range(20):
            reduction.add(upload)

    benchmark(aggregate)


def test_checkpoint(benchmark: BenchmarkFixture, workload: Workload, tmp_path: Path) -> None:
    training = make(workload)
    training.run()
    benchmark(save, training.progress, Checkpoint(tmp_path / "checkpoint.safetensors", "key"))


def test_section_is_checked(benchmark: BenchmarkFixture, workload: Workload) -> None:
    assert isinstance(benchmark(make_train, workload, rounds=3), Train)
