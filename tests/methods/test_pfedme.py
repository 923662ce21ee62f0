"""pFedMe against its Algorithm 1 in plain loops, and its envelope on a quadratic."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.engine.checks import check_training
from fedcore.methods.base import named
from fedcore.methods.pfedme import PFedMe
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_the_papers_algorithm(executor, momentum, biased):
    """Also beside a personal bias of DBE's, which takes one step a batch like w."""
    strength, inner_lr, beta, lr = 6.0, 0.05, 1.5, 0.1
    work = toys.training(
        toys.composition(
            "pfedme",
            {"dbe": {"kappa": 0.0}} if biased else {},
            strength=strength,
            inner_steps=3,
            inner_lr=inner_lr,
            beta=beta,
        ),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
        local_epochs=2,
        momentum=momentum,
    )
    x = {n: p.clone() for n, p in work.net.initial_params.items()}
    own = [{n: p.clone() for n, p in x.items()} for _ in range(5)]
    biases = [torch.zeros(6, dtype=torch.float64) for _ in range(5)]
    for round in range(3):
        clients = work._cohort(round).clients
        models = []
        for i in clients:
            w, theta, b = dict(x), twins.leaves(x), biases[i].clone().requires_grad_(biased)
            v = dict.fromkeys([*w, "b"], 0.0)
            for inputs, labels in twins.batches(work, i, round, 2):
                for _ in range(3):
                    loss = cross_entropy(twins.classify(theta, twins.features(theta, inputs) + b), labels)
                    (slope,) = torch.autograd.grad(loss, b, retain_graph=True) if biased else (torch.zeros(()),)
                    loss = loss + strength / 2 * sum(((theta[n] - w[n]) ** 2).sum() for n in w)
                    g = twins.slopes(loss, theta)
                    theta = twins.leaves({n: theta[n] - inner_lr * g[n] for n in theta})
                v = {n: momentum * v[n] + strength * (w[n] - theta[n].detach()) for n in w} | {
                    "b": momentum * v["b"] + slope
                }
                w = {n: w[n] - lr * v[n] for n in w}
                b = (b - lr * v["b"]).detach().requires_grad_(biased)
            own[i], biases[i] = {n: p.detach() for n, p in theta.items()}, b.detach()
            models.append(w)
        mean = twins.mean(models, [1 / len(clients)] * len(clients))
        x = {n: (1 - beta) * x[n] + beta * mean[n] for n in x}
    progress = work.run()
    assert toys.distance(progress.server.params, x) < 1e-10
    for i in range(5):
        kept = progress.store.get(i)["params"]
        assert toys.distance(named(kept, "own."), own[i]) < 1e-10
        if biased:
            torch.testing.assert_close(kept["dbe.bias"], biases[i], rtol=0, atol=1e-10)
    assert max(float(b.abs().max()) for b in biases) > 1e-3 or not biased


def test_many_inner_steps_follow_the_moreau_envelope():
    """theta = (H + lambda I)^-1 (b + lambda w), and w moves by -lr times the envelope's gradient lambda (w - theta)."""
    w = torch.tensor([2.0, 5.0], dtype=torch.float64)
    method = PFedMe(strength=4.0, inner_steps=500, inner_lr=0.1)
    new, _ = method.step(twins.Quadratic(), None, {"w": w, "own.w": w}, {}, None, None)
    theta = torch.linalg.solve(twins.Quadratic.hessian + 4 * torch.eye(2), twins.Quadratic.offset + 4 * w)
    torch.testing.assert_close(new["own.w"], theta)
    torch.testing.assert_close(new["w"], w - 0.1 * 4 * (w - theta))


def test_a_full_step_puts_w_at_theta():
    """lr * lambda = 1 and beta = 1 with one client: the server's model is theta."""
    progress = toys.run(toys.composition("pfedme", strength=10.0), toys.federation((20,)), dtype=torch.float64)
    assert toys.distance(progress.server.params, named(progress.store.get(0)["params"], "own.")) < 1e-12


def test_views_are_theta_and_the_servers_model_and_traffic_is_fedavgs():
    ours = toys.run(toys.composition("pfedme", strength=5.0), participation=0.6)
    plain = toys.run(participation=0.6)
    assert ours.download_bytes == plain.download_bytes
    assert ours.upload_bytes == plain.upload_bytes
    row = ours.history[-1]
    assert row["global/test/loss"] != row["personal/test/loss"]


def test_an_absent_clients_theta_stays_as_it_was():
    work = toys.training(toys.composition("pfedme", strength=5.0), participation=0.2, rounds=4)
    seen = {c for r in range(4) for c in work._cohort(r).clients}
    progress = work.run()
    assert set(progress.store.clients) == seen < set(range(5))
    assert not toys.equal(named(progress.store.get(min(seen))["params"], "own."), work.net.initial_params)


def test_steps_that_overshoot_are_refused():
    work = toys.training(toys.composition("pfedme"))
    with pytest.raises(ValueError, match=r"strength \* train.lr is 1.5, expected at most 1; use strength 10 or a sm"):
        check_training("toy", work.composition, work.net, work.train, work.federation)
