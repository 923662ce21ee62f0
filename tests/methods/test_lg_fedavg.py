"""LG-FedAvg against plain loops, its two ends (FedAvg and local training), and what travels."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore import models
from fedcore.config import Mlp
from fedcore.trees import flatten
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]
BODY = {f"body.{i}.{kind}" for i in (1, 3) for kind in ("weight", "bias")}
HEAD = {"head.weight", "head.bias"}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_equals_plain_loops(executor, stage):
    """`stage` rounds of FedAvg on everything, copied to all clients; then the head alone is averaged, uniformly."""
    work = toys.training(
        toys.composition("lg_fedavg", global_layers=["head"], fedavg_rounds=stage),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
        rounds=4,
        momentum=0.5,
    )
    models = [{n: p.clone() for n, p in work.initial.items()} for _ in range(5)]
    for round in range(4):
        clients = work._cohort(round).clients
        for i in clients:
            w, v = twins.leaves(models[i]), {n: torch.zeros_like(p) for n, p in models[i].items()}
            for inputs, labels in twins.batches(work, i, round):
                g = twins.slopes(cross_entropy(twins.classify(w, twins.features(w, inputs)), labels), w)
                v = {n: 0.5 * v[n] + g[n] for n in w}
                w = twins.leaves({n: w[n] - 0.1 * v[n] for n in w})
            models[i] = {n: p.detach() for n, p in w.items()}
        for name in work.initial if round < stage else HEAD:
            mean = sum(models[i][name] for i in clients) / len(clients)
            for model in models:
                model[name] = mean
    progress = work.run()
    for i in range(5):
        own = {**progress.server.params, **progress.store.get(i)["params"]}
        assert toys.distance(own, models[i]) < 1e-10


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("settings", [{"global_layers": ["body", "head"]}, {"fedavg_rounds": 3}])
def test_with_everything_global_it_is_fedavg_bit_for_bit(executor, settings):
    shared = {"participation": 0.6, "executor": executor, "momentum": 0.5}
    plain = toys.run(weighting="uniform", **shared)
    ours = toys.run(toys.composition("lg_fedavg", **settings), **shared)
    assert toys.equal(plain.server.params, ours.server.params)
    assert (plain.download_bytes, plain.upload_bytes) == (ours.download_bytes, ours.upload_bytes)
    assert plain.history == ours.history


@pytest.mark.parametrize("executor", EXECUTORS)
def test_with_nothing_global_it_is_local_training_without_traffic(executor):
    alone = toys.run(toys.composition("local"), executor=executor)
    ours = toys.run(toys.composition("lg_fedavg", global_layers=[]), executor=executor)
    assert ours.download_bytes == ours.upload_bytes == 0
    assert all(toys.equal(alone.store.get(i)["params"], ours.store.get(i)["params"]) for i in range(5))


def test_only_global_layers_travel_and_absent_clients_keep_theirs():
    work = toys.training(toys.composition("lg_fedavg"), participation=0.4, rounds=2)
    phases = work.composition.phases(work.train)
    (outcome,) = work._local([3], 0, phases, "batches")
    assert {path.split("/")[-1] for path in flatten(outcome.upload)} == HEAD
    progress = work.run()
    assert set(progress.server.params) == HEAD
    seen = {c for r in range(2) for c in work._cohort(r).clients}
    assert set(progress.store.clients) == seen < set(range(5))
    for i in range(5):
        own = progress.store.get(i)["params"]
        assert set(own) == BODY
        assert toys.equal(own, {n: work.initial[n] for n in BODY}) == (i not in seen)


def test_a_layer_inside_the_body_can_be_the_global_one():
    """A name may reach into the body."""
    work = toys.training(toys.composition("lg_fedavg", global_layers=["body.3"]), rounds=1)
    assert set(work.progress.server.params) == {"body.3.weight", "body.3.bias"}


@pytest.mark.parametrize(
    ("hidden", "inputs", "kept", "expected", "table"),
    [
        ([512, 256, 256, 128], 784, 2, (633_226, 34_186), (725, 400, 50, 5.05e10, 2.80e10)),
        ([512, 256, 256, 128], 784, 3, (633_226, 99_978), (725, 400, 50, 5.05e10, 2.84e10)),
    ],
)
def test_the_papers_parameter_counts(hidden, inputs, kept, expected, table):
    """Table 1 counts (100 downloads + 10 uploads) a round: FedAvg's rounds, and stage 1 plus stage 2."""
    net = models.build(Mlp(name="mlp", hidden=hidden), (inputs,), 10, 0)
    linear = [n.rsplit(".", 1)[0] for n in net.initial_params if n.endswith("weight")]
    composed = toys.composition("lg_fedavg", global_layers=linear[-kept:])
    sizes = {n: p.numel() for n, p in net.initial_params.items()}
    shared = composed.shared_names(net, sizes, 0)
    part = sum(size for n, size in sizes.items() if n in shared)
    assert (sum(sizes.values()), part) == expected
    plain, first, second, theirs, ours = table
    assert plain * 110 * sum(sizes.values()) == pytest.approx(theirs, rel=2e-3)
    assert first * 110 * sum(sizes.values()) + second * 110 * part == pytest.approx(ours, rel=3e-3)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_with_the_body_global_and_weights_by_examples_it_is_fedper(executor):
    """Personal head and shared body learn in the same steps; the server's body is the mean by train examples."""
    work = toys.training(
        toys.composition("lg_fedavg", global_layers=["body"]),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
        weighting="examples",
    )
    body = {n: p.clone() for n, p in work.initial.items() if n in BODY}
    heads = [{n: p.clone() for n, p in work.initial.items() if n in HEAD} for _ in range(5)]
    for round in range(3):
        bodies, sizes = [], []
        for i in work._cohort(round).clients:
            w = {**body, **heads[i]}
            for inputs, labels in twins.batches(work, i, round):
                w = twins.leaves(w)
                g = twins.slopes(cross_entropy(twins.classify(w, twins.features(w, inputs)), labels), w)
                w = {n: (p - 0.1 * g[n]).detach() for n, p in w.items()}
            heads[i] = {n: w[n] for n in HEAD}
            bodies.append({n: w[n] for n in BODY})
            sizes.append(len(twins.rows(work, i)[1]))
        body = twins.mean(bodies, [size / sum(sizes) for size in sizes])
    progress = work.run()
    assert toys.distance({n: progress.server.params[n] for n in BODY}, body) < 1e-14
    for i in range(5):
        assert toys.distance({n: progress.store.get(i)["params"][n] for n in HEAD}, heads[i]) < 1e-14


def test_a_layer_that_does_not_exist_is_refused_by_name():
    work = toys.training()
    composed = toys.composition("lg_fedavg", global_layers=["haed"])
    message = r"global_layers: the model has no layer 'haed'; did you mean 'head'\? Valid: body, body\.1, body\.3, head"
    with pytest.raises(ValueError, match=message):
        composed.check(work.net, work.train)
    with pytest.raises(ValueError, match=r"methods\.toy\.fedavg_rounds"):
        toys.composition("lg_fedavg", fedavg_rounds=-1)


def test_the_first_stage_must_leave_rounds_for_the_second():
    work = toys.training(toys.composition("lg_fedavg", fedavg_rounds=3), rounds=3)
    with pytest.raises(ValueError, match=r"fedavg_rounds: 3 of 3 rounds leave none for LG-FedAvg; use at most 2"):
        work.composition.check(work.net, work.train)
    work.composition.check(work.net, work.train.model_copy(update={"rounds": 4}))
