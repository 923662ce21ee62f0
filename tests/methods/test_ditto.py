"""Ditto against its Algorithm 1 in plain loops, and its reductions to FedAvg and Local."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.engine.checks import check_training
from fedcore.methods.base import named
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_equals_the_papers_algorithm(executor):
    strength = 0.7
    work = toys.training(
        toys.composition("ditto", strength=strength, own_epochs=2),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
    )
    x = {n: p.clone() for n, p in work.initial.items() if not n.startswith("own.")}
    own = [{n: p.clone() for n, p in x.items()} for _ in range(5)]
    for round in range(3):
        cohort = work._cohort(round)
        models = []
        for i in cohort.clients:
            y, v = twins.leaves(x), twins.leaves(own[i])
            for inputs, labels in twins.batches(work, i, round):
                g = twins.slopes(cross_entropy(twins.classify(y, twins.features(y, inputs)), labels), y)
                y = twins.leaves({n: y[n] - 0.1 * g[n] for n in y})
            for inputs, labels in twins.batches(work, i, round, 2):
                loss = cross_entropy(twins.classify(v, twins.features(v, inputs)), labels)
                loss = loss + strength / 2 * sum(((v[n] - x[n]) ** 2).sum() for n in v)
                g = twins.slopes(loss, v)
                v = twins.leaves({n: v[n] - 0.1 * g[n] for n in v})
            own[i] = {n: p.detach() for n, p in v.items()}
            models.append({n: p.detach() for n, p in y.items()})
        x = twins.mean(models, cohort.weights)
    progress = work.run()
    assert toys.distance(progress.server.params, x) < 1e-10
    for i in range(5):
        assert toys.distance(named(progress.store.get(i)["params"], "own."), own[i]) < 1e-10


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("strength", [0.0, 2.0])
def test_the_shared_model_is_fedavgs_bit_for_bit(executor, strength):
    settings = {"participation": 0.6, "executor": executor, "momentum": 0.9, "weight_decay": 0.01}
    ours, plain = toys.run(toys.composition("ditto", strength=strength), **settings), toys.run(**settings)
    assert toys.equal(ours.server.params, plain.server.params)
    assert ours.download_bytes == plain.download_bytes
    assert ours.upload_bytes == plain.upload_bytes
    assert ours.history[-1]["global/test/loss"] == plain.history[-1]["global/test/loss"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_strength_zero_is_local_training_bit_for_bit(executor):
    settings = {"executor": executor, "momentum": 0.9, "weight_decay": 0.01, "local_epochs": 2}
    ours = toys.run(toys.composition("ditto", strength=0.0), **settings)
    alone = toys.run(toys.composition("local"), **settings)
    for i in range(5):
        assert toys.equal(named(ours.store.get(i)["params"], "own."), alone.store.get(i)["params"])
    assert ours.history[-1]["personal/test/loss"] == alone.history[-1]["personal/test/loss"]


def test_a_strong_hold_of_one_step_ends_at_the_received_model():
    """lr * lambda = 1: v = x - lr * g, wherever v was."""
    fed = toys.federation((8,))
    work = toys.training(toys.composition("ditto", strength=10.0), fed, rounds=1, dtype=torch.float64)
    work.progress.store.put(
        0,
        {"params": {n: 2 * p for n, p in work.initial.items() if "own." in n}, "buffers": {}, "state": {"method": {}}},
    )
    (outcome,) = work._local([0], 0, work.composition.phases(work.train), "batches")
    x, v = named(work.initial, "own."), twins.leaves({n: 2 * p for n, p in named(work.initial, "own.").items()})
    inputs, labels = next(twins.batches(work, 0, 0))
    g = twins.slopes(cross_entropy(twins.classify(v, twins.features(v, inputs)), labels), v)
    assert toys.distance(named(outcome.params, "own."), {n: x[n] - 0.1 * g[n] for n in x}) < 1e-12


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_an_addon_brings_learns_with_both_models_and_is_not_held(executor):
    """DBE's bias: one plain step on y's batch, then one on v's, with lambda on v alone."""
    strength = 2.0
    fed = toys.federation((8,))
    work = toys.training(
        toys.composition("ditto", {"dbe": {"kappa": 0.0}}, strength=strength),
        fed,
        rounds=2,
        executor=executor,
        dtype=torch.float64,
    )
    x, v = work.net.initial_params, work.net.initial_params
    bias = torch.zeros(6, dtype=torch.float64)
    for round in range(2):
        inputs, labels = next(twins.batches(work, 0, round))
        models, received = [], x
        for model, hold in ((x, 0.0), (v, strength)):
            w = twins.leaves({**model, "b": bias})
            loss = cross_entropy(twins.classify(w, twins.features(w, inputs) + w["b"]), labels)
            g = twins.slopes(loss, w)
            bias = (w["b"] - 0.1 * g["b"]).detach()
            models.append({n: (w[n] - 0.1 * (g[n] + hold * (w[n] - received[n]))).detach() for n in received})
        x, v = models
    progress = work.run()
    kept = progress.store.get(0)["params"]
    assert toys.distance(progress.server.params, x) < 1e-12
    assert toys.distance(named(kept, "own."), v) < 1e-12
    torch.testing.assert_close(kept["dbe.bias"], bias, rtol=0, atol=1e-12)


def test_an_absent_clients_own_model_stays_as_it_was():
    work = toys.training(toys.composition("ditto", strength=0.1), participation=0.2, rounds=4)
    seen = {c for r in range(4) for c in work._cohort(r).clients}
    progress = work.run()
    assert set(progress.store.clients) == seen < set(range(5))
    (stranger, *_) = set(range(5)) - seen
    assert toys.equal(named(progress.store.get(stranger)["params"], "own."), work.net.initial_params)


def test_batch_normalisation_is_refused():
    fed, section = toys.federation(image=True), {"name": "cnn", "norm": "batch"}
    work = toys.training(toys.composition("ditto", strength=0.1), fed, toys.net(section, image=True), last_batch="wrap")
    with pytest.raises(ValueError, match=r"methods\.toy: ditto trains two models per client with one set of buffers"):
        check_training("toy", work.composition, work.net, work.train, fed)
