"""FedAdam against Algorithm 2 of Reddi et al. in plain loops, a hand trace, and its reduction to FedAvg."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.methods.fedadam import FedAdam
from fedcore.seeds import stream
from fedcore.types import Population
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_equals_the_papers_algorithm(executor):
    beta1, beta2, tau, eta = 0.8, 0.95, 0.01, 0.05
    work = toys.training(
        toys.composition("fedadam", beta1=beta1, beta2=beta2, tau=tau, server_lr=eta),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
    )
    x = {n: p.clone() for n, p in work.initial.items()}
    m, v = {n: torch.zeros_like(p) for n, p in x.items()}, {n: torch.full_like(p, tau**2) for n, p in x.items()}
    for round in range(3):
        cohort = work._cohort(round)
        deltas = []
        for i in cohort.clients:
            y = twins.leaves(x)
            for inputs, labels in twins.batches(work, i, round):
                g = twins.slopes(cross_entropy(twins.classify(y, twins.features(y, inputs)), labels), y)
                y = twins.leaves({n: y[n] - 0.1 * g[n] for n in y})
            deltas.append({n: y[n].detach() - x[n] for n in x})
        d = twins.mean(deltas, cohort.weights)
        for n in x:
            m[n] = beta1 * m[n] + (1 - beta1) * d[n]
            v[n] = beta2 * v[n] + (1 - beta2) * d[n] * d[n]
            x[n] = x[n] + eta * m[n] / (torch.sqrt(v[n]) + tau)
    progress = work.run()
    assert toys.distance(progress.server.params, x) < 1e-10
    assert toys.distance(progress.server.state["method"]["m"], m) < 1e-10
    assert toys.distance(progress.server.state["method"]["v"], v) < 1e-10


def test_three_rounds_by_hand():
    """beta1 = .5, beta2 = .75, tau = .5, eta_g = 1; deltas 1, 0, -2 on one scalar, v from .25.

    m: .5, .25, -.875;  v: .4375, .328125, 1.24609375;  no bias correction.
    """
    method, net = FedAdam(server_lr=1.0, beta1=0.5, beta2=0.75, tau=0.5), toys.net()
    like = next(iter(net.initial_params))
    state = method.init_server(net, {like: torch.tensor(0.0)}, Population(1, torch.ones(3), stream(0, "server")))
    x = 0.0
    for delta, m, v in ((1.0, 0.5, 0.4375), (0.0, 0.25, 0.328125), (-2.0, -0.875, 1.24609375)):
        shared, state = method.aggregate({like: torch.tensor(x)}, state, {"delta": {like: torch.tensor(delta)}}, None)
        assert float(state["m"][like]) == m
        assert float(state["v"][like]) == v
        assert float(shared[like]) == pytest.approx(x + m / (v**0.5 + 0.5))
        x = float(shared[like])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_with_v_frozen_at_tau_squared_it_is_fedavg_bit_for_bit(executor):
    """beta1 = 0, v = tau^2 for ever: the step is eta_g d / (2 tau)."""
    settings = {"participation": 0.6, "executor": executor}
    frozen = toys.run(toys.composition("fedadam", beta1=0.0, beta2=1.0, tau=0.25, server_lr=0.5), **settings)
    assert toys.equal(frozen.server.params, toys.run(**settings).server.params)


def test_traffic_is_fedavgs_and_momentum_is_not():
    ours, plain = toys.run(toys.composition("fedadam")), toys.run()
    assert ours.download_bytes == plain.download_bytes
    assert ours.upload_bytes == plain.upload_bytes
    assert not toys.equal(ours.server.params, plain.server.params)
    assert not ours.store.clients


def test_what_add_ons_bring_along_gets_the_plain_mean():
    progress = toys.run(toys.composition("fedadam", add={"dbe": {"kappa": 1.0}}))
    assert set(progress.server.state["method"]["m"]) == set(progress.server.params)
    method, net = FedAdam(), toys.net()
    like = next(iter(net.initial_params))
    x = {like: torch.tensor(1.0), "extra": torch.tensor(1.0)}
    state = method.init_server(net, x, Population(1, torch.ones(3), stream(0, "server")))
    shared, _ = method.aggregate(x, state, {"delta": {n: torch.tensor(0.5) for n in x}}, None)
    assert float(shared["extra"]) == 1.5
    assert float(shared[like]) != 1.5
