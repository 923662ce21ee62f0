"""MOON against its Algorithm 1 in plain loops (features instead of projections), and its reductions to FedAvg."""

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from fedcore.addons.moon import Moon
from fedcore.types import Batch, ClientInfo, Output, View
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_equals_the_papers_algorithm(executor):
    mu, temperature = 2.0, 0.3
    work = toys.training(
        toys.composition(add={"moon": {"mu": mu, "temperature": temperature}}),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
        rounds=4,
    )
    x = {n: p.clone() for n, p in work.initial.items()}
    previous, again = {}, 0
    for round in range(4):
        cohort = work._cohort(round)
        models = []
        for i in cohort.clients:
            y, past = twins.leaves(x), previous.get(i, x)
            again += i in previous
            for inputs, labels in twins.batches(work, i, round):
                z = twins.features(y, inputs)
                near = torch.exp(cosine_similarity(z, twins.features(x, inputs)) / temperature)
                far = torch.exp(cosine_similarity(z, twins.features(past, inputs)) / temperature)
                contrast = -torch.log(near / (near + far)).mean()
                g = twins.slopes(cross_entropy(twins.classify(y, z), labels) + mu * contrast, y)
                y = twins.leaves({n: y[n] - 0.1 * g[n] for n in y})
            previous[i] = {n: p.detach() for n, p in y.items()}
            models.append(previous[i])
        x = twins.mean(models, cohort.weights)
    assert again >= 4
    progress = work.run()
    assert toys.distance(progress.server.params, x) < 1e-9
    for i, model in previous.items():
        kept = progress.store.get(i)["state"]["moon"]["previous"]
        assert toys.distance(kept, {n: p for n, p in model.items() if n.startswith("body")}) < 1e-9


@pytest.mark.parametrize("executor", EXECUTORS)
def test_strength_zero_is_fedavg_bit_for_bit(executor):
    settings = {"participation": 0.6, "executor": executor, "momentum": 0.9}
    ours, plain = toys.run(toys.composition(add={"moon": {"mu": 0.0}}), **settings), toys.run(**settings)
    assert toys.equal(ours.server.params, plain.server.params)
    assert ours.history == plain.history


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_first_participation_adds_a_constant(executor):
    """Both references are the received model: the term is log 2 and has no slope. The second time it has one."""
    settings = {"executor": executor, "dtype": torch.float64}
    for rounds, same in ((1, True), (2, False)):
        ours = toys.run(toys.composition(add={"moon": {"mu": 3.0}}), rounds=rounds, **settings)
        plain = toys.run(rounds=rounds, **settings)
        assert (toys.distance(ours.server.params, plain.server.params) < 1e-12) is same
        if same:
            more = ours.history[0]["train/loss"] - plain.history[0]["train/loss"]
            assert more == pytest.approx(3 * math.log(2), abs=1e-6)


def test_a_client_first_drawn_late_compares_with_what_it_receives():
    """Not with the initial model: its first local training is FedAvg's from the model of that round."""
    work = toys.training(toys.composition(add={"moon": {"mu": 3.0}}), dtype=torch.float64)
    moved = {n: p + 0.1 for n, p in work.initial.items()}
    plain = toys.training(dtype=torch.float64)
    for training in (work, plain):
        training.progress.server = type(training.progress.server)(moved, {}, training.progress.server.state)
    phases = work.composition.phases(work.train)
    ours, theirs = (next(iter(t._local([3], 0, phases, "batches"))) for t in (work, plain))
    assert toys.distance(ours.params, theirs.params) < 1e-12


def test_features_of_zeros_do_no_harm():
    """A body that is dead for every input: similarity 0, finite gradients."""
    work = toys.training(toys.composition(add={"moon": {"mu": 5.0}}))
    work.progress.server.params["body.3.bias"] = torch.full((6,), -100.0)
    progress = work.run()
    assert all(torch.isfinite(p).all() for p in progress.server.params.values())


def test_it_costs_no_traffic_and_keeps_a_body_per_client():
    ours = toys.run(toys.composition(add={"moon": {}}), participation=0.6)
    plain = toys.run(participation=0.6)
    assert ours.download_bytes == plain.download_bytes
    assert ours.upload_bytes == plain.upload_bytes
    state = ours.store.get(ours.store.clients[0])["state"]["moon"]
    assert sum(p.numel() for p in state["previous"].values()) == 198
    assert float(state["seen"]) == 1


def test_references_do_not_move_running_statistics():
    """Averaged statistics are FedAvg's after a first round, in which the term has no slope."""
    fed, section = toys.federation(image=True), {"name": "cnn", "channels": [4, 6], "hidden": 8, "norm": "batch"}
    ours, plain = (
        toys.run(
            toys.composition(add=add),
            fed,
            toys.net(section, image=True),
            last_batch="wrap",
            rounds=1,
            dtype=torch.float64,
        )
        for add in ({"moon": {"mu": 1.0}}, {})
    )
    assert toys.distance(ours.server.buffers, plain.server.buffers) < 1e-10


def test_references_are_in_evaluation_mode():
    """Normalised with running statistics, whatever batch they are in; the trained body with its batch's."""
    net = toys.net({"name": "cnn", "channels": [4, 6], "hidden": 8, "norm": "batch"}, image=True)
    generator = torch.Generator().manual_seed(0)
    x, mask = torch.randn(6, 1, 8, 8, generator=generator), torch.tensor([1.0, 1, 1, 1, 0, 0])
    y, received, past = (
        net.initial_params,
        *(
            {n: p + 0.1 * torch.randn(p.shape, generator=generator) for n, p in net.initial_params.items()}
            for _ in "rp"
        ),
    )
    bound, one = net.bind(net.initial_buffers, training=True), torch.tensor(1.0)
    output = Output(bound.features(y, x), torch.zeros(6, 3))
    view = View(received, {}, {}, {}, None, ClientInfo(one, one), one, one, 0.1, 1, "train")
    batch = Batch(x, torch.zeros(6, dtype=torch.int64), mask, {})
    term, _ = Moon(2.0, 0.5).penalty(bound, y, {"previous": past, "seen": one}, batch, output, None, view)
    z = output.features
    near, far = (
        torch.cat(
            [cosine_similarity(z[k], net.bind(bound.buffers, training=False).features(p, x[[k]])) for k in range(4)]
        )
        for p in (received, past)
    )
    expected = 2.0 * torch.log(1 + torch.exp((far - near) / 0.5)).mean()
    torch.testing.assert_close(term, expected)


@pytest.mark.parametrize("add", [{"dbe": {"kappa": 5.0}}, {"prox": {"mu": 0.1}}])
@pytest.mark.parametrize("method", ["scaffold", "fedrep"])
def test_goes_with_other_parts(method, add):
    one, other = (
        toys.run(toys.composition(method, add={"moon": {}, **add}), executor=e, dtype=torch.float64) for e in EXECUTORS
    )
    assert toys.distance(one.server.params, other.server.params) < 1e-9
