"""FedNova against eq. 9 in plain loops, and its reduction to FedAvg when everybody takes the same steps."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_equals_normalised_averaging(executor):
    """With momentum rho, ||a||_1 = (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho)."""
    rho, lr = 0.5, 0.1
    work = toys.training(
        toys.composition("fednova"), participation=0.6, executor=executor, dtype=torch.float64, momentum=rho
    )
    x = {n: p.clone() for n, p in work.initial.items()}
    for round in range(3):
        cohort = work._cohort(round)
        directions, norms = [], []
        for i in cohort.clients:
            y, steps, velocity = twins.leaves(x), 0, {n: torch.zeros_like(p) for n, p in x.items()}
            for inputs, labels in twins.batches(work, i, round):
                g = twins.slopes(cross_entropy(twins.classify(y, twins.features(y, inputs)), labels), y)
                velocity = {n: rho * velocity[n] + g[n] for n in y}
                y = twins.leaves({n: y[n] - lr * velocity[n] for n in y})
                steps += 1
            norms.append((steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho))
            directions.append({n: (x[n] - y[n].detach()) / norms[-1] for n in x})
        effective = sum(p * a for p, a in zip(cohort.weights, norms, strict=True))
        d = twins.mean(directions, cohort.weights)
        x = {n: x[n] - effective * d[n] for n in x}
    assert toys.distance(work.run().server.params, x) < 1e-9


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_equal_steps_are_fedavg(mu):
    fed, add = toys.federation((16, 9, 12)), {"prox": {"mu": mu}}
    nova, plain = (
        toys.run(toys.composition(name, add=add), fed, dtype=torch.float64, momentum=0.9).server.params
        for name in ("fednova", "fedavg")
    )
    assert toys.distance(nova, plain) < 1e-12


def test_unequal_steps_are_not():
    nova, plain = (
        toys.run(toys.composition(name), dtype=torch.float64).server.params for name in ("fednova", "fedavg")
    )
    assert toys.distance(nova, plain) > 1e-3
