"""FedGen against its Algorithm 1 in plain loops (with torch's Adam), and its reduction to FedAvg."""

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div

from fedcore.engine.checks import check_training
from fedcore.methods.base import named
from fedcore.methods.fedgen import FedGen
from fedcore.seeds import stream
from fedcore.types import Cohort, Population
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]
SMALL = {"noise": 4, "hidden": 7, "server_batch": 6}


def _generate(g, noise, labels):
    x = torch.cat([noise, torch.eye(3).double()[labels]], 1)
    return torch.relu(x @ g["0.weight"].T + g["0.bias"]) @ g["1.weight"].T + g["1.bias"]


def _labels(lots, prior):
    edges = torch.cumsum(prior, 0)
    return torch.tensor([next((c for c in range(3) if u < edges[c]), 2) for u in lots.tolist()])


def _draws(i, round, steps):
    """What a client draws: labels, noise for samples and noise for its batch, in single precision."""
    generator = stream(0, "draws/method", round, i)
    drawn = [
        generator.random((steps, 8)),
        generator.standard_normal((steps, 8, 4)),
        generator.standard_normal((steps, 8, 4)),
    ]
    return [torch.from_numpy(d).float().double() for d in drawn]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_equals_the_papers_algorithm(executor):
    alpha, beta, decay, diversity, rate = 2.0, 1.5, 0.7, 0.6, 0.01
    work = toys.training(
        toys.composition(
            "fedgen",
            alpha=alpha,
            beta=beta,
            decay=decay,
            diversity=diversity,
            server_lr=rate,
            server_steps=5,
            **SMALL,
        ),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
    )
    x = {n: p.clone() for n, p in work.initial.items() if not n.startswith("gen.")}
    gen = twins.leaves(named(work.initial, "gen."))
    adam = torch.optim.Adam(gen.values(), rate)
    counts = torch.stack([torch.bincount(twins.rows(work, i)[1], minlength=3) for i in range(5)]).double()
    prior = counts.sum(0) / counts.sum()
    for round in range(3):
        cohort = work._cohort(round)
        models = []
        for i in cohort.clients:
            batches = list(twins.batches(work, i, round))
            lots, noise, batch_noise = _draws(i, round, len(batches))
            y = twins.leaves(x)
            for k, (inputs, labels) in enumerate(batches):
                logits = twins.classify(y, twins.features(y, inputs))
                loss = cross_entropy(logits, labels)
                if round > 0:
                    classes = _labels(lots[k], prior)
                    with torch.no_grad():
                        samples = _generate(gen, noise[k], classes)
                        target = twins.classify(y, _generate(gen, batch_noise[k][: len(labels)], labels)).softmax(1)
                    loss = loss + alpha * decay**round * cross_entropy(twins.classify(y, samples), classes)
                    divergence = kl_div(logits.log_softmax(1), target, reduction="batchmean")
                    loss = loss + beta * decay**round * divergence
                g = twins.slopes(loss, y)
                y = twins.leaves({n: y[n] - 0.1 * g[n] for n in y})
            models.append({n: p.detach() for n, p in y.items()})
        x = twins.mean(models, cohort.weights)
        generator = stream(0, "server", round)
        held = counts[list(cohort.clients)]
        for _ in range(5):
            classes = _labels(torch.from_numpy(generator.random(6)), prior)
            noise = torch.from_numpy(generator.standard_normal((6, 4)))
            z = _generate(gen, noise, classes)
            ensemble = 0.0
            for k, model in enumerate(models):
                share = held[k, classes] / held[:, classes].sum(0)
                ensemble = ensemble + share[:, None] * twins.classify(model, z)
            far = [((noise[a] - noise[b]) ** 2).mean() * (z[a] - z[b]).abs().mean() for a in range(6) for b in range(6)]
            loss = cross_entropy(ensemble, classes) + diversity * torch.exp(-sum(far) / 36)
            adam.zero_grad()
            loss.backward()
            adam.step()
    progress = work.run()
    params = progress.server.params
    assert toys.distance({n: params[n] for n in x}, x) < 1e-9
    assert toys.distance(named(params, "gen."), {n: p.detach() for n, p in gen.items()}) < 1e-9


@pytest.mark.parametrize("executor", EXECUTORS)
def test_without_its_terms_it_is_fedavg_bit_for_bit(executor):
    settings = {"participation": 0.6, "executor": executor, "momentum": 0.9}
    ours = toys.run(toys.composition("fedgen", alpha=0.0, beta=0.0, **SMALL), **settings)
    plain = toys.run(**settings)
    assert toys.equal({n: ours.server.params[n] for n in plain.server.params}, plain.server.params)
    assert ours.history[-1]["global/test/loss"] == plain.history[-1]["global/test/loss"]


def test_the_first_round_is_fedavgs():
    """The generator has learnt nothing yet: no term; from the second round on there is one."""
    one, plain = toys.run(toys.composition("fedgen", **SMALL), rounds=1), toys.run(rounds=1)
    assert toys.equal({n: one.server.params[n] for n in plain.server.params}, plain.server.params)
    two, plain = toys.run(toys.composition("fedgen", **SMALL), rounds=2, lr=0.01), toys.run(rounds=2, lr=0.01)
    assert toys.distance({n: two.server.params[n] for n in plain.server.params}, plain.server.params) > 1e-4


def test_the_generator_learns_what_a_frozen_head_knows():
    """With one client and no diversity, the cross-entropy of its samples falls from round to round."""
    work = toys.training(toys.composition("fedgen", diversity=0.0, server_lr=0.01, **SMALL), toys.federation((20,)))
    method, shared = FedGen(diversity=0.0, server_lr=0.01, **SMALL), work.initial
    counts = torch.tensor([7.0, 7.0, 6.0])
    server = method.init_server(work.net, shared, Population(1, counts, stream(0, "server")))
    delta = {n: torch.zeros_like(p) for n, p in shared.items() if not n.startswith("gen.")}
    noise, labels = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 3
    losses = []
    for round in range(5):
        cohort = Cohort((0,), (1.0,), 1, round, stream(0, "s", round), {}, ({"delta": delta, "counts": counts},))
        shared, server = method.aggregate(shared, server, {"delta": delta}, cohort)
        z = _generate({n: p.double() for n, p in named(shared, "gen.").items()}, noise.double(), labels).float()
        losses.append(float(cross_entropy(twins.classify(shared, z), labels)))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]
    assert toys.equal({n: shared[n] for n in delta}, {n: work.initial[n] for n in delta})


def test_the_generator_travels_down_only():
    """(4 + 3) * 7 + 7 + 7 * 6 + 6 = 104 scalars of the generator, 3 of the label shares; 3 label counts up."""
    ours = toys.run(toys.composition("fedgen", **SMALL), participation=0.6)
    assert ours.download_bytes == 3 * 3 * (219 + 104 + 3) * 4
    assert ours.upload_bytes == 3 * 3 * (219 + 3) * 4
    assert not ours.store.clients


def test_the_kl_term_moves_no_running_statistics():
    fed, section = toys.federation(image=True), {"name": "cnn", "channels": [4, 6], "hidden": 8, "norm": "batch"}
    settings = {"last_batch": "wrap", "rounds": 2, "lr": 1e-9, "dtype": torch.float64}
    ours, plain = (
        toys.run(composed, fed, toys.net(section, image=True), **settings)
        for composed in (toys.composition("fedgen", **SMALL), toys.composition())
    )
    assert toys.distance(ours.server.buffers, plain.server.buffers) < 1e-6


def test_a_head_that_is_not_linear_is_refused():
    work = toys.training(toys.composition("fedgen"))
    work.net.module_types["head.weight"] = torch.nn.Bilinear
    with pytest.raises(ValueError, match=r"methods\.toy: fedgen needs a model whose head is one linear layer"):
        check_training("toy", work.composition, work.net, work.train, work.federation)
