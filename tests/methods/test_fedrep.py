"""FedRep against its Algorithm 1 in plain loops, and what its phases leave alone."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_equals_the_papers_algorithm(executor):
    work = toys.training(
        toys.composition("fedrep", head_epochs=2, body_epochs=3),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
    )
    body = {n: p.clone() for n, p in work.initial.items() if n.startswith("body")}
    heads = [{n: p.clone() for n, p in work.initial.items() if n.startswith("head")} for _ in range(5)]

    def descend(fixed, moving, batches):
        for inputs, labels in batches:
            moving = twins.leaves(moving)
            whole = {**fixed, **moving}
            g = twins.slopes(cross_entropy(twins.classify(whole, twins.features(whole, inputs)), labels), moving)
            moving = {n: (moving[n] - 0.1 * g[n]).detach() for n in moving}
        return moving

    for round in range(3):
        cohort = work._cohort(round)
        bodies = []
        for i in cohort.clients:
            heads[i] = descend(body, heads[i], twins.batches(work, i, round, 2))
            bodies.append(descend(heads[i], body, twins.batches(work, i, round, 3, first=2)))
        body = twins.mean(bodies, cohort.weights)
    progress = work.run()
    assert toys.distance(progress.server.params, body) < 1e-10
    for i in range(5):
        assert toys.distance(progress.store.get(i)["params"], heads[i]) < 1e-10


@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_phase_leaves_the_other_part_alone(executor):
    work = toys.training(toys.composition("fedrep"), executor=executor, momentum=0.9, weight_decay=0.01)
    phases = work.composition.phases(work.train)
    for phase, trained in zip(phases, ("head", "body"), strict=True):
        for outcome in work._local(range(5), 0, (phase,), "batches"):
            moved = {n for n, p in outcome.params.items() if not torch.equal(p, work.initial[n])}
            assert moved == {n for n in work.initial if n.startswith(trained)}


def test_an_add_ons_set_up_round_trains_everything():
    ours, plain = (toys.run(toys.composition(name, add={"dbe": {}}), rounds=1) for name in ("fedrep", "fedavg"))
    assert torch.equal(ours.server.state["dbe"]["mean"], plain.server.state["dbe"]["mean"])


def test_heads_never_travel():
    """5*16+16 + 16*6+6 = 198 parameters of the body; the head's 21 stay."""
    progress = toys.run(toys.composition("fedrep"), participation=0.6)
    assert not [n for n in progress.server.params if n.startswith("head")]
    assert progress.download_bytes == progress.upload_bytes == 198 * 4 * 3 * 3
    assert not any(name.startswith("global") for name in progress.history[-1])


def test_an_absent_clients_head_stays_as_it_was():
    work = toys.training(toys.composition("fedrep"), participation=0.2, rounds=4)
    seen = {c for r in range(4) for c in work._cohort(r).clients}
    progress = work.run()
    assert set(progress.store.clients) == seen < set(range(5))
    one, other = sorted(seen)[:2]
    assert not toys.equal(progress.store.get(one)["params"], progress.store.get(other)["params"])
