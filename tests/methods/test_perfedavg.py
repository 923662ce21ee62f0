"""Per-FedAvg against its Algorithm 1 in plain loops, and its second-order term on a quadratic."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.methods.perfedavg import PerFedAvg
from fedcore.seeds import stream
from fedcore.types import Batch
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]
COUNTS = {"first_order": 2, "hessian_free": 3}


def _steps(work, client, round, count):
    """A client's meta-steps: `count` batches of 8 each, the last filled up from the start of the order."""
    x, y = twins.rows(work, client)
    order = stream(work.seed, "batches/0", round, client).permutation(len(y))
    full = -(-len(y) // (8 * count)) * 8 * count
    for picked in np.resize(order, full).reshape(-1, count, 8):
        yield [(x[part], y[part]) for part in picked]


def _gradient(w, batch):
    w = twins.leaves(w)
    inputs, labels = batch
    return twins.slopes(cross_entropy(twins.classify(w, twins.features(w, inputs)), labels), w)


def _shifted(w, direction, distance):
    return {n: w[n] + distance * direction[n] for n in w}


def _twin(work, alpha, variant, delta=1e-3):
    x, count = {n: p.clone() for n, p in work.initial.items()}, COUNTS[variant]
    for round in range(3):
        clients = work._cohort(round).clients
        models = []
        for i in clients:
            w = dict(x)
            for batches in _steps(work, i, round, count):
                u = _gradient(_shifted(w, _gradient(w, batches[0]), -alpha), batches[1])
                d = u
                if variant == "hessian_free":
                    above = _gradient(_shifted(w, u, delta), batches[2])
                    below = _gradient(_shifted(w, u, -delta), batches[2])
                    d = {n: u[n] - alpha * (above[n] - below[n]) / (2 * delta) for n in w}
                w = _shifted(w, d, -0.1)
            models.append(w)
        x = twins.mean(models, [1 / len(clients)] * len(clients))
    return x


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", COUNTS)
@pytest.mark.parametrize("alpha", [0.3, 0.0])
def test_equals_the_papers_algorithm(executor, variant, alpha):
    """With alpha = 0 this is FedAvg, uniform weights, on the second batch of each step."""
    work = toys.training(
        toys.composition("perfedavg", alpha=alpha, variant=variant),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
    )
    expected = _twin(work, alpha, variant)
    assert toys.distance(work.run().server.params, expected) < 1e-10


@pytest.mark.parametrize("executor", EXECUTORS)
def test_alpha_zero_is_fedavg_bit_for_bit_when_both_batches_are_the_same(executor):
    """Clients of 8 examples: D is the order's first 8 rows, D' the same again; FedAvg sees them once."""
    fed, settings = toys.federation((8, 8, 8)), {"executor": executor, "participation": 0.6}
    ours = toys.run(toys.composition("perfedavg", alpha=0.0), fed, **settings)
    assert toys.equal(ours.server.params, toys.run(None, fed, **settings).server.params)


@pytest.mark.parametrize("delta", [1e-3, 0.1, 5.0])
def test_on_a_quadratic_the_hessian_free_step_is_exact(delta):
    """The gradient of F(w - alpha grad F(w)) is (I - alpha H) grad F(w - alpha grad F(w))."""
    batch = Batch(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64), torch.ones(3), {})
    w, h, alpha = torch.tensor([2.0, 5.0], dtype=torch.float64), twins.Quadratic.hessian, 0.2
    view = SimpleNamespace(phase="train", round=0)
    new, _ = PerFedAvg(alpha, "hessian_free", delta).step(twins.Quadratic(), None, {"w": w}, {}, batch, view)
    inner = w - alpha * (h @ w - twins.Quadratic.offset)
    exact = (torch.eye(2) - alpha * h) @ (h @ inner - twins.Quadratic.offset)
    torch.testing.assert_close(new["w"], w - 0.1 * exact)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("steps", [1, 3])
def test_clients_adapt_by_steps_of_rate_alpha_from_the_servers_model(executor, steps):
    work = toys.training(
        toys.composition("perfedavg", alpha=0.2, adapt_steps=steps), executor=executor, dtype=torch.float64
    )
    progress = work.run()
    for outcome in work._own_models(range(5), 2, work.composition.method.adapt_phases(work.train)):
        i, w = outcome.client, dict(progress.server.params)
        x, y = twins.rows(work, i)
        batches = []
        for epoch in range(3):
            order = stream(0, f"adapt/{epoch}", 2, i).permutation(len(y))
            batches += [order[start : start + 8] for start in range(0, len(y), 8)]
        for picked in batches[:steps]:
            w = _shifted(w, _gradient(w, (x[picked], y[picked])), -0.2)
        assert toys.distance(outcome.params, w) < 1e-12
        assert outcome.steps == steps
    row = progress.history[-1]
    assert row["global/test/loss"] != row["personal/test/loss"]


def test_an_add_ons_set_up_round_is_a_plain_one():
    """With short batches there, of which there would not even be two parts."""
    ours, plain = (
        toys.run(toys.composition(name, add={"dbe": {}}), weighting="uniform", rounds=1)
        for name in ("perfedavg", "fedavg")
    )
    assert torch.equal(ours.server.state["dbe"]["mean"], plain.server.state["dbe"]["mean"])


def test_traffic_is_fedavgs_and_nothing_is_kept():
    ours, plain = toys.run(toys.composition("perfedavg"), participation=0.6), toys.run(participation=0.6)
    assert ours.download_bytes == plain.download_bytes
    assert ours.upload_bytes == plain.upload_bytes
    assert not ours.store.clients
