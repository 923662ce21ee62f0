"""SCAFFOLD against its Algorithm 1 in plain loops, its invariant, and its reductions."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("control_step", "clients_per_step"), [("share", 5), ("whole", 3)])
def test_equals_the_papers_algorithm(executor, control_step, clients_per_step):
    composed = toys.composition("scaffold", global_step=0.8, control_step=control_step)
    work = toys.training(composed, participation=0.6, executor=executor, dtype=torch.float64)
    lr, x = 0.1, {n: p.clone() for n, p in work.initial.items()}
    c = {n: torch.zeros_like(p) for n, p in x.items()}
    own = [{n: torch.zeros_like(p) for n, p in x.items()} for _ in range(5)]
    for round in range(3):
        clients = work._cohort(round).clients
        dys, dcs = [], []
        for i in clients:
            y, steps = twins.leaves(x), 0
            for inputs, labels in twins.batches(work, i, round):
                g = twins.slopes(cross_entropy(twins.classify(y, twins.features(y, inputs)), labels), y)
                y = twins.leaves({n: y[n] - lr * (g[n] + c[n] - own[i][n]) for n in y})
                steps += 1
            new = {n: own[i][n] - c[n] + (x[n] - y[n].detach()) / (steps * lr) for n in x}
            dys.append({n: y[n].detach() - x[n] for n in x})
            dcs.append({n: new[n] - own[i][n] for n in x})
            own[i] = new
        x = {n: x[n] + 0.8 * sum(d[n] for d in dys) / len(clients) for n in x}
        c = {n: c[n] + sum(d[n] for d in dcs) / clients_per_step for n in x}
    progress = work.run()
    assert toys.distance(progress.server.params, x) < 1e-10
    assert toys.distance(progress.server.state["method"]["c"], c) < 1e-10
    assert toys.distance(progress.store.get(3)["state"]["method"]["c"], own[3]) < 1e-10


@pytest.mark.parametrize("weighting", ["auto", "examples"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_c_is_the_mean_of_all_clients_controls(momentum, weighting):
    settings = {"participation": 0.4, "dtype": torch.float64, "momentum": momentum, "weighting": weighting}
    progress = toys.run(toys.composition("scaffold"), **settings)
    controls = [progress.store.get(i)["state"]["method"]["c"] for i in range(5)]
    weights = [0.2] * 5 if weighting == "auto" else [n / sum(toys.SIZES) for n in toys.SIZES]
    assert toys.distance(progress.server.state["method"]["c"], twins.mean(controls, weights)) < 1e-12


def test_one_full_batch_step_leaves_the_gradient_as_control():
    """After K = 1 on the whole client, c_i is the gradient at x, and x moved as FedAvg's with uniform weights."""
    settings = {"batch_size": 31, "rounds": 1, "dtype": torch.float64}
    work = toys.training(toys.composition("scaffold"), **settings)
    x = twins.leaves(work.initial)
    inputs, labels = twins.rows(work, 3)
    gradient = twins.slopes(cross_entropy(twins.classify(x, twins.features(x, inputs)), labels), x)
    progress = work.run()
    assert toys.distance(progress.store.get(3)["state"]["method"]["c"], gradient) < 1e-12
    assert toys.equal(progress.server.params, toys.run(weighting="uniform", **settings).server.params)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("momentum_state", ["fresh", "kept"])
@pytest.mark.parametrize("sizes", [(31,), (31, 9, 16)])
def test_with_momentum_controls_become_gradients_and_stay_so(executor, momentum_state, sizes):
    """Steps so small that no gradient changes: every c_i comes to its client's gradient at x, and does not grow."""
    settings = {"momentum": 0.9, "momentum_state": momentum_state, "lr": 1e-9, "local_epochs": 4, "batch_size": 31}
    composed, fed = toys.composition("scaffold"), toys.federation(sizes)
    work = toys.training(composed, fed, executor=executor, dtype=torch.float64, rounds=40, **settings)
    x = twins.leaves(work.initial)
    progress = work.run()
    for client in range(len(sizes)):
        inputs, labels = twins.rows(work, client)
        gradient = twins.slopes(cross_entropy(twins.classify(x, twins.features(x, inputs)), labels), x)
        assert toys.distance(progress.store.get(client)["state"]["method"]["c"], gradient) < 1e-3


def test_traffic_is_twice_fedavgs():
    ours, plain = toys.run(toys.composition("scaffold")), toys.run()
    assert ours.download_bytes == 2 * plain.download_bytes
    assert ours.upload_bytes == 2 * plain.upload_bytes


def test_an_absent_clients_control_stays_as_it_was():
    work = toys.training(toys.composition("scaffold"), participation=0.2, rounds=4)
    seen = {c for r in range(4) for c in work._cohort(r).clients}
    progress = work.run()
    assert set(progress.store.clients) == seen < set(range(5))
