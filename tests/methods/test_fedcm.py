"""FedCM against plain loops, its two ends (no mixture; a server's moving average), and what travels."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.trees import flatten
from fedcore.types import ClientInfo, View
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]
ALPHA = {"fedcm": {"alpha": 0.3}}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_equals_plain_loops(executor, momentum):
    """Clients of 1 to 4 steps: a client's direction is its way over its own step mass."""
    work = toys.training(
        toys.composition(add=ALPHA), participation=0.6, executor=executor, dtype=torch.float64, momentum=momentum
    )
    x = {n: p.clone() for n, p in work.initial.items()}
    d = {n: torch.zeros_like(p) for n, p in x.items()}
    for round in range(3):
        cohort = work._cohort(round)
        models, directions = [], []
        for i in cohort.clients:
            w, v, mass, unit = twins.leaves(x), {n: torch.zeros_like(p) for n, p in x.items()}, 0.0, 0.0
            for inputs, labels in twins.batches(work, i, round):
                g = twins.slopes(cross_entropy(twins.classify(w, twins.features(w, inputs)), labels), w)
                v = {n: momentum * v[n] + 0.3 * g[n] + 0.7 * d[n] for n in w}
                w = twins.leaves({n: w[n] - 0.1 * v[n] for n in w})
                unit = momentum * unit + 1
                mass += 0.1 * unit
            models.append({n: p.detach() for n, p in w.items()})
            directions.append({n: (x[n] - p.detach()) / mass for n, p in w.items()})
        x, d = twins.mean(models, cohort.weights), twins.mean(directions, cohort.weights)
    server = work.run().server
    assert toys.distance(server.params, x) < 1e-10
    assert toys.distance(server.state["fedcm"]["direction"], d) < 1e-10


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", ["fedavg", "fedbr", "scaffold"])
def test_alpha_1_is_the_method_without_it_bit_for_bit(executor, method):
    settings = {"participation": 0.6, "executor": executor, "momentum": 0.5}
    plain, off = (toys.run(toys.composition(method, add), **settings) for add in ({}, {"fedcm": {"alpha": 1.0}}))
    assert toys.equal(plain.server.params, off.server.params)
    assert plain.history == off.history  # bytes too: there is nothing to send


def test_with_one_step_and_everybody_the_direction_is_a_moving_average_of_the_mean_gradient():
    """d <- alpha * g + (1 - alpha) * d, and x moves by lr * d: momentum on the server."""
    settings = {"batch_size": 31, "weighting": "uniform", "dtype": torch.float64}
    work = toys.training(toys.composition(add=ALPHA), **settings)
    x, d = dict(work.initial), {n: torch.zeros_like(p) for n, p in work.initial.items()}
    for _ in range(3):
        mean = {n: torch.zeros_like(p) for n, p in x.items()}
        for i in range(5):
            inputs, labels = twins.rows(work, i)
            w = twins.leaves(x)
            g = twins.slopes(cross_entropy(twins.classify(w, twins.features(w, inputs)), labels), w)
            mean = {n: mean[n] + g[n] / 5 for n in x}
        d = {n: 0.3 * mean[n] + 0.7 * d[n] for n in x}
        x = {n: x[n] - 0.1 * d[n] for n in x}
    server = work.run().server
    assert toys.distance(server.params, x) < 1e-10
    assert toys.distance(server.state["fedcm"]["direction"], d) < 1e-10


def test_the_models_parameters_travel_once_more_each_way_and_nothing_personal_does():
    plain, ours = toys.run(), toys.run(toys.composition(add=ALPHA))
    assert ours.upload_bytes == 2 * plain.upload_bytes
    assert ours.download_bytes == 2 * plain.download_bytes
    body = {"body.1.weight", "body.1.bias", "body.3.weight", "body.3.bias"}
    # After a stage in which everything travels some layers stay at home: their direction is not sent any more.
    work = toys.training(toys.composition("lg_fedavg", ALPHA, fedavg_rounds=1), rounds=3)
    work.run()
    (outcome,) = work._local([3], 2, work.composition.phases(work.train), "batches")
    assert {path.split("/")[-1] for path in flatten(outcome.upload["fedcm"])} == {"head.weight", "head.bias"}
    assert set(work.progress.server.state["fedcm"]["direction"]) == {"head.weight", "head.bias"} | body
    personal = toys.training(toys.composition("fedrep", {**ALPHA, "dbe": {"kappa": 1.0}}), rounds=1)
    assert set(personal.run().server.state["fedcm"]["direction"]) == body


def test_set_up_rounds_and_what_fedbr_brings_are_left_alone():
    one, other = (
        toys.run(toys.composition("fedbr", add, pseudo_strength=0.0), rounds=1, dtype=torch.float64)
        for add in ({}, {"fedcm": {"alpha": 0.5}})
    )
    disc = {n for n in one.server.params if n.startswith("disc.")}
    assert set(other.server.state["fedcm"]["direction"]) == set(one.server.params) - disc
    means = [
        toys.run(toys.composition(add={**add, "dbe": {}}), rounds=1).server.state["dbe"]["mean"] for add in ({}, ALPHA)
    ]
    assert torch.equal(*means)


@pytest.mark.parametrize("alpha", [0.0, 1.1, -0.1])
def test_an_alpha_out_of_range_is_refused_by_name(alpha):
    with pytest.raises(ValueError, match=r"methods\.toy\.add\.fedcm\.alpha"):
        toys.composition(add={"fedcm": {"alpha": alpha}})


@pytest.mark.parametrize("order", [("prox", "fedcm"), ("fedcm", "prox")], ids="-".join)
def test_the_damping_is_how_a_steps_gradient_grows_with_the_distance(order):
    """The mixture weakens a proximal term that was there before, and no other."""
    every = {"prox": {"mu": 5.0}, **ALPHA}
    work = toys.training(toys.composition(add={name: every[name] for name in order}), dtype=torch.float64)
    ones = {n: torch.ones_like(p) for n, p in work.initial.items()}
    moved = {n: p + 0.25 for n, p in work.initial.items()}
    one, server = torch.ones(()), {"method": {}, "prox": {}, "fedcm": {"direction": ones}}
    view = View(work.initial, server, {}, {}, None, ClientInfo(one, one), one, one, 0.1, 1, "train")
    composed = work.composition
    found = composed.correct(work.net, ones, moved, {"method": {}, "prox": {}, "fedcm": {}}, view)
    assert all(torch.allclose(g, 1 + composed.damping * 0.25 * ones[n]) for n, g in found.items())
    assert composed.damping == pytest.approx(1.5 if order[0] == "prox" else 5.0)
