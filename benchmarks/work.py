"""How much there is to do in a round: steps, examples, floating-point operations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.plan import plan_round
from benchmarks.reference import plain_module
from benchmarks.workloads import Workload
from fedcore.config import Train
from fedcore.engine.lanes import enough_lanes
from fedcore.engine.lanes import plan as place
from fedcore.trees import count


class Work(NamedTuple):
    """One round of FedAvg on a workload.

    Attributes
    ----------
    parameters : int
    clients, cohort : int
        Of the federation, and of one round.
    steps, longest : int
        Local steps of all clients together, and of the one with the most.
    lanes, lane_steps : int
        Lanes on which they take about as long as the longest alone, and the steps of all those lanes: idle ones too.
    examples : int
        Examples trained on, as often as they are seen.
    tested : int
        Test rows.
    train_gflop, evaluate_gflop : float
        Multiplications and additions of convolutions and matrix products, 10**9.
    """

    parameters: int
    clients: int
    cohort: int
    steps: int
    longest: int
    lanes: int
    lane_steps: int
    examples: int
    tested: int
    train_gflop: float
    evaluate_gflop: float

    @property
    def gflop(self) -> float:
        """Training and evaluation."""
        return self.train_gflop + self.evaluate_gflop

    def described(self) -> str:
        """Return one line for people."""
        return (
            f"{self.parameters:,} parameters; {self.cohort} of {self.clients:,} clients a round,"
            f" {self.steps:,} local steps (longest client {self.longest};"
            f" on {self.lanes} lanes {self.lane_steps:,}), {self.examples:,} examples,"
            f" {self.train_gflop:.4g} GFLOP;"
            f" {self.tested:,} tested, {self.evaluate_gflop:.3g} GFLOP"
        )


def count_work(workload: Workload, train: Train, seed: int = 0, round: int = 0) -> Work:
    """Return what a round of FedAvg takes; operations are counted by torch on one batch."""
    federation = workload.federation
    plans = plan_round(train, federation, seed, round)
    examples = sum(plan.examples for plan in plans)
    steps = [len(plan.batches) for plan in plans]
    lanes = enough_lanes(steps)
    tested = int(federation.sizes("test")[: federation.num_clients].sum())
    forward, both = _flop_per_example(workload)
    return Work(
        parameters=count(dict(plain_module(workload).named_parameters())),
        clients=federation.num_clients,
        cohort=len(plans),
        steps=sum(steps),
        longest=max(steps),
        lanes=lanes,
        lane_steps=lanes * place(steps, lanes).length,
        examples=examples,
        tested=tested,
        train_gflop=examples * both / 1e9,
        evaluate_gflop=tested * forward / 1e9,
    )


def _flop_per_example(workload: Workload) -> tuple[float, float]:
    """Return the operations of a forward pass, and of one with its gradient."""
    rows = 4
    model = plain_module(workload)
    x = torch.zeros(rows, *workload.federation.dataset.input_shape)
    y = torch.zeros(rows, dtype=torch.int64)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(x)
    with FlopCounterMode(display=False) as both:
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    return forward.get_total_flops() / rows, both.get_total_flops() / rows
