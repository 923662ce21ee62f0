"""FedAvg, Local, fine-tuned FedAvg and the proximal term: reductions bit for bit, and FedProx against plain loops."""

import numpy as np
import pytest
import torch

from fedcore.seeds import stream
from tests import toys

EXECUTORS = ["serial", "stacked"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_prox_of_strength_zero_is_fedavg_bit_for_bit(executor):
    settings = {"participation": 0.6, "executor": executor, "momentum": 0.9}
    plain = toys.run(**settings)
    prox = toys.run(toys.composition(add={"prox": {"mu": 0.0}}), **settings)
    assert toys.equal(plain.server.params, prox.server.params)
    assert plain.history == prox.history


@pytest.mark.parametrize("executor", EXECUTORS)
def test_prox_is_the_squared_penalty_of_the_paper(executor):
    """Plain loops that differentiate F_i(y) + mu/2 ||y - x||^2, three rounds with 3 of 5 clients."""
    mu, settings = 0.7, {"participation": 0.6, "executor": executor, "dtype": torch.float64, "local_epochs": 2}
    work = toys.training(toys.composition(add={"prox": {"mu": mu}}), **settings)
    world = {n: p.clone() for n, p in work.initial.items()}
    data = work.federation.dataset
    for round in range(3):
        cohort = work._cohort(round)
        new = {n: torch.zeros_like(p) for n, p in world.items()}
        for client, weight in zip(cohort.clients, cohort.weights, strict=True):
            rows = work.federation.rows(client, "train")
            x = torch.from_numpy(np.array(data.inputs[rows])).double()
            y = torch.from_numpy(np.array(data.labels[rows]))
            own = {n: p.clone().requires_grad_() for n, p in world.items()}
            for epoch in range(2):
                order = stream(0, f"batches/{epoch}", round, client).permutation(len(rows))
                for start in range(0, len(rows), 8):
                    picked = order[start : start + 8]
                    hidden = torch.relu(x[picked] @ own["body.1.weight"].T + own["body.1.bias"])
                    hidden = torch.relu(hidden @ own["body.3.weight"].T + own["body.3.bias"])
                    logits = hidden @ own["head.weight"].T + own["head.bias"]
                    loss = torch.nn.functional.cross_entropy(logits, y[picked])
                    loss = loss + mu / 2 * sum(((own[n] - world[n]) ** 2).sum() for n in own)
                    slopes = torch.autograd.grad(loss, list(own.values()))
                    with torch.no_grad():
                        for p, g in zip(own.values(), slopes, strict=True):
                            p -= 0.1 * g
            for n in new:
                new[n] += weight * own[n].detach()
        world = new
    assert toys.distance(work.run().server.params, world) < 1e-10


def test_a_strong_prox_keeps_models_near_the_received_one():
    weak, strong = (
        toys.run(toys.composition(add={"prox": {"mu": mu}}), lr=0.05, rounds=1).server.params for mu in (0.0, 10.0)
    )
    start = toys.training().initial
    assert 0 < toys.distance(strong, start) < toys.distance(weak, start)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_one_client_alone_is_local_training(executor):
    fed = toys.federation((20,))
    shared = toys.run(toys.composition("fedavg"), fed, executor=executor, dtype=torch.float64)
    alone = toys.run(toys.composition("local"), fed, executor=executor, dtype=torch.float64)
    assert toys.distance(shared.server.params, alone.store.get(0)["params"]) < 1e-12


def test_local_trains_everybody_whatever_the_participation():
    progress = toys.run(toys.composition("local"), participation=0.2)
    assert progress.participations.tolist() == [3] * 5
    assert not any(name.startswith(("global", "unseen")) for name in progress.history[-1])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_fine_tuning_leaves_training_alone(executor):
    plain = toys.run(participation=0.6, executor=executor)
    tuned = toys.run(toys.composition("fedavg_ft", epochs=5), participation=0.6, executor=executor)
    assert toys.equal(plain.server.params, tuned.server.params)
    ours, theirs = tuned.history[-1], plain.history[-1]
    assert ours["global/test/loss"] == theirs["global/test/loss"]
    assert ours["personal/val/loss"] != theirs["personal/val/loss"]
    untuned = toys.run(toys.composition("fedavg_ft", epochs=0), participation=0.6, executor=executor)
    assert untuned.history == plain.history


def test_identical_clients_with_full_batches_are_one_client():
    """Full-batch gradient descent: averaging five copies of one client is that client (McMahan et al., sec. 2)."""
    fed = toys.federation((20,))
    one = toys.run(None, fed, batch_size=20, dtype=torch.float64)
    mean = toys.training(None, toys.federation(), batch_size=31, dtype=torch.float64, rounds=1)
    total = sum(toys.SIZES)
    pooled = {n: torch.zeros_like(p) for n, p in mean.initial.items()}
    for outcome, size in zip(
        mean._local(range(5), 0, mean.composition.phases(mean.train), "b"), toys.SIZES, strict=True
    ):
        pooled = {n: pooled[n] + outcome.params[n] * size / total for n in pooled}
    assert toys.distance(mean.run().server.params, pooled) < 1e-12
    assert one.participations.tolist() == [3]
