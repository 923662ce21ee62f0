"""LG-FedAvg's auxiliary objectives and update orders against plain loops, their limits, and the double softmax."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore import models
from fedcore.config import Mlp
from fedcore.methods.lg_fedavg import LgFedavg, _turned
from fedcore.models.net import Net
from fedcore.seeds import stream
from fedcore.trees import flatten
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


def is_global(name, layers):
    return any(name.startswith(f"{layer}.") for layer in layers)


def hidden(w, x, layer):
    """The first layer's output, or the body's."""
    first = torch.relu(x.flatten(1) @ w["body.1.weight"].T + w["body.1.bias"])
    return first if layer == "hidden1" else torch.relu(first @ w["body.3.weight"].T + w["body.3.bias"])


def auxiliary_loss(w, x, y, turns, auxiliary, weight, layer):
    target = y
    if auxiliary == "rotation":
        target = torch.from_numpy(turns[: len(y)])
        rows = [np.rot90(image[0].numpy(), int(k)).copy() for image, k in zip(x, target, strict=True)]
        x = torch.from_numpy(np.stack(rows))[:, None]
    z = hidden(w, x, layer)
    said = z @ w["aux.0.weight"].T + w["aux.0.bias"]
    if "aux.1.weight" in w:
        said = torch.relu(said) @ w["aux.1.weight"].T + w["aux.1.bias"]
    if auxiliary == "autoencode":
        return weight * ((said - x.flatten(1)) ** 2).mean()
    return weight * cross_entropy(said, target)


def task_loss(w, x, y, double):
    logits = hidden(w, x, None) @ w["head.weight"].T + w["head.bias"]
    return cross_entropy(torch.softmax(logits, 1) if double else logits, y)


CASES = {
    "supervised in turns": {"auxiliary": "supervised", "update": "sequential"},
    "supervised in turns, after a stage 1": {
        "auxiliary": "supervised",
        "auxiliary_weight": 0.4,
        "auxiliary_layer": "hidden1",
        "global_layers": ["body.3", "head"],
        "update": "sequential",
        "fedavg_rounds": 1,
    },
    "autoencoding at once": {
        "auxiliary": "autoencode",
        "auxiliary_hidden": 4,
        "auxiliary_weight": 0.7,
        "global_layers": ["body.3", "head"],
    },
    "turns of images": {"auxiliary": "rotation", "auxiliary_weight": 0.3, "double_softmax": True},
    "turns of images in turns": {"auxiliary": "rotation", "auxiliary_hidden": 4, "update": "sequential"},
    "nothing, in turns": {"update": "sequential"},
}


def inputs(work, client):
    """A client's normalised train inputs, and labels."""
    x, y = twins.rows(work, client)
    data = work.federation.dataset
    return (x - data.offset[0]) * data.scale[0], y


def local_round(work, w, i, round, momentum, case):
    """One client's round by equations 16 to 19, each line with what the one before made."""
    layers, weight = case.get("global_layers", ["head"]), case.get("auxiliary_weight", 1.0)
    auxiliary, double = case.get("auxiliary", "none"), case.get("double_softmax", False)
    in_stage_1 = round < case.get("fedavg_rounds", 0)
    v = {n: torch.zeros_like(p) for n, p in w.items()}
    x, y = inputs(work, i)
    order = stream(work.seed, "batches/0", round, i).permutation(len(y))
    batches = [order[start : start + 8] for start in range(0, len(y), 8)]
    drawn = stream(work.seed, "draws/method", round, i).integers(0, 4, (len(batches), 8))
    mine = [n for n in w if not is_global(n, layers) and not n.startswith("aux.")]
    theirs = [n for n in w if is_global(n, layers)]
    head = [n for n in w if n.startswith("aux.")]

    def slopes(names, loss):
        point = twins.leaves({n: w[n] for n in names})
        return twins.slopes(loss({**w, **point}), point)

    def move(g):
        for n in g:
            v[n] = momentum * v[n] + g[n]
            w[n] = w[n] - 0.1 * v[n]

    for rows, turns in zip(batches, drawn, strict=True):

        def task(w, rows=rows):
            return task_loss(w, x[rows], y[rows], double)

        def side(w, rows=rows, turns=turns):
            return auxiliary_loss(w, x[rows], y[rows], turns, auxiliary, weight, case.get("auxiliary_layer"))

        if in_stage_1:
            move(slopes([*mine, *theirs], task))
        elif case.get("update") == "sequential":
            if head:
                move(slopes(mine, side))
                move(slopes(head, side))
            move(slopes(mine, task))
            move(slopes(theirs, task))
        else:
            g = slopes([*mine, *theirs], task)
            for n, slope in slopes([*mine, *head], side).items():
                g[n] = g.get(n, 0) + slope
            move(g)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_papers_equations(executor, name):
    case = CASES[name]
    image = case.get("auxiliary") == "rotation"
    work = toys.training(
        toys.composition("lg_fedavg", **case),
        toys.federation(image=image),
        toys.net(image=image),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
        momentum=0.5,
    )
    own = [{n: p.clone() for n, p in work.initial.items()} for _ in range(5)]
    for round in range(3):
        clients = work._cohort(round).clients
        for i in clients:
            local_round(work, own[i], i, round, 0.5, case)
        whole = round < case.get("fedavg_rounds", 0)
        for n in work.initial:
            if not n.startswith("aux.") and (whole or is_global(n, case.get("global_layers", ["head"]))):
                mean = sum(own[i][n] for i in clients) / len(clients)
                for model in own:
                    model[n] = mean
    progress = work.run()
    for i in range(5):
        found = {**progress.server.params, **progress.store.get(i)["params"]}
        assert toys.distance(found, own[i]) < 1e-10


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("update", ["joint", "sequential"])
def test_an_auxiliary_of_weight_0_is_none_bit_for_bit(executor, update):
    shared = {"participation": 0.6, "executor": executor, "momentum": 0.5}
    plain = toys.run(toys.composition("lg_fedavg", update=update), **shared)
    off = toys.run(toys.composition("lg_fedavg", update=update, auxiliary="supervised", auxiliary_weight=0.0), **shared)
    assert toys.equal(plain.server.params, off.server.params)
    assert all(toys.equal(flatten(plain.store.get(i)), flatten(off.store.get(i))) for i in range(5))
    assert plain.history == off.history


@pytest.mark.parametrize("auxiliary", ["none", "supervised", "autoencode"])
def test_joint_and_sequential_steps_differ_by_the_square_of_the_rate(auxiliary):
    def model(update, lr):
        work = toys.training(
            toys.composition("lg_fedavg", auxiliary=auxiliary, update=update),
            batch_size=31,
            lr=lr,
            rounds=1,
            dtype=torch.float64,
        )
        (outcome,) = work._local([3], 0, work.composition.phases(work.train), "batches")
        return outcome.params, work.initial

    gaps = []
    for lr in (1e-3, 5e-4):
        (one, initial), (other, _) = model("joint", lr), model("sequential", lr)
        gaps.append(toys.distance(one, other))
        assert 0 < gaps[-1] < 0.01 * toys.distance(one, initial)
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.05)


def test_the_auxiliary_head_stays_at_home_and_starts_alike():
    plain = toys.run(toys.composition("lg_fedavg"))
    work = toys.training(toys.composition("lg_fedavg", auxiliary="supervised"), participation=0.4)
    (outcome,) = work._local([3], 0, work.composition.phases(work.train), "batches")
    assert not [path for path in flatten(outcome.upload) if "aux." in path]
    ours = work.run()
    names = {"aux.0.weight", "aux.0.bias"}
    seen = {c for r in range(3) for c in work._cohort(r).clients}
    assert 0 < len(seen) < 5
    for i in range(5):
        own = ours.store.get(i)["params"]
        assert names < set(own)
        assert toys.equal({n: own[n] for n in names}, {n: work.initial[n] for n in names}) == (i not in seen)
    everybody = toys.run(toys.composition("lg_fedavg", auxiliary="supervised"))
    assert (plain.download_bytes, plain.upload_bytes) == (everybody.download_bytes, everybody.upload_bytes)


def test_stage_1_is_fedavg_and_leaves_the_auxiliary_alone_even_of_weight_decay():
    settings = {"auxiliary": "autoencode", "update": "sequential", "fedavg_rounds": 3}
    train = {"weight_decay": 0.1, "momentum": 0.5, "participation": 0.6}
    plain = toys.run(weighting="uniform", **train)
    work = toys.training(toys.composition("lg_fedavg", **settings), **train)
    ours = work.run()
    assert toys.equal(plain.server.params, ours.server.params)
    for i in range(5):
        assert toys.equal(ours.store.get(i)["params"], {n: p for n, p in work.initial.items() if "aux." in n})


def test_a_global_layer_feels_nothing_of_the_auxiliary():
    """After one step from the same point, whatever the weight."""
    results = []
    for auxiliary in ("none", "supervised"):
        composed = toys.composition("lg_fedavg", global_layers=["body.3", "head"], auxiliary=auxiliary)
        work = toys.training(composed, batch_size=31, rounds=1, dtype=torch.float64)
        (outcome,) = work._local([3], 0, work.composition.phases(work.train), "batches")
        results.append(outcome.params)
    for n, p in results[0].items():
        assert torch.equal(p, results[1][n]) == is_global(n, ["body.3", "head"]), n


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("update", ["joint", "sequential"])
def test_with_everything_global_an_auxiliary_has_nothing_to_shape(executor, update):
    shared = {"participation": 0.6, "executor": executor, "momentum": 0.5}
    plain = toys.run(weighting="uniform", **shared)
    composed = toys.composition("lg_fedavg", global_layers=["body", "head"], auxiliary="supervised", update=update)
    ours = toys.run(composed, **shared)
    assert toys.equal(plain.server.params, ours.server.params)
    assert (plain.download_bytes, plain.upload_bytes) == (ours.download_bytes, ours.upload_bytes)


def test_quarter_turns():
    """Four make a whole; one takes the right column to the top row; each row turns by its own number."""
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    once = torch.tensor([[2.0, 5, 8], [1, 4, 7], [0, 3, 6]])
    assert torch.equal(_turned(image, torch.tensor([1]))[0, 0], once)
    turned = image
    for _ in range(4):
        turned = _turned(turned, torch.tensor([1]))
    assert torch.equal(turned, image)
    both = _turned(torch.cat([image, image, image]), torch.tensor([0, 1, 3]))
    assert torch.equal(both[0], image[0])
    assert torch.equal(both[1, 0], once)
    assert torch.equal(_turned(both[2:], torch.tensor([1])), image)


def test_double_softmax_bounds_the_loss_and_leaves_evaluation_alone():
    """Cross-entropy of probabilities in place of logits is at least log(1 + 2/e) = 0.5514 with three classes."""
    plain, bounded = (
        toys.run(toys.composition("lg_fedavg", double_softmax=on), lr=0.5, rounds=40).history[-1]["train/loss"]
        for on in (False, True)
    )
    assert plain < np.log(1 + 2 / np.e) < bounded
    frozen = [toys.run(toys.composition("lg_fedavg", double_softmax=on), lr=1e-30, rounds=1) for on in (False, True)]
    one, other = (run.history[-1] for run in frozen)
    assert one["personal/test/loss"] == other["personal/test/loss"]
    assert one["train/loss"] != other["train/loss"]


@pytest.mark.parametrize("update", ["joint", "sequential"])
def test_addons_go_on_top_of_it(update):
    add = {"prox": {"mu": 0.1}, "calibration": {}, "dbe": {"kappa": 1.0}}
    settings = {"auxiliary": "supervised", "update": update}
    one, other = (
        toys.run(toys.composition("lg_fedavg", add, **settings), executor=e, dtype=torch.float64) for e in EXECUTORS
    )
    assert toys.distance(one.server.params, other.server.params) < 1e-9
    plain = toys.run(toys.composition("lg_fedavg", **settings), dtype=torch.float64)
    assert toys.distance(one.server.params, plain.server.params) > 1e-3


def _net(shape) -> Net:
    return models.build(Mlp(name="mlp", hidden=[4, 3]), shape, 3, 0)


def test_what_cannot_be_is_refused_by_name():
    train = toys.training().train
    for shape in ((5,), (1, 8, 6)):
        with pytest.raises(ValueError, match=r"auxiliary: 'rotation' needs square images, got inputs of shape \("):
            LgFedavg(auxiliary="rotation").check(_net(shape), train)
    LgFedavg(auxiliary="rotation").check(_net((1, 8, 8)), train)
    with pytest.raises(ValueError, match=r"auxiliary_layer: the model has no layer 'hidden2'; valid: hidden1"):
        LgFedavg(auxiliary_layer="hidden2").check(_net((5,)), train)
    for settings in ({"auxiliary": "rotate"}, {"update": "both"}, {"auxiliary_weight": -1.0}, {"auxiliary_hidden": -1}):
        (name,) = settings
        with pytest.raises(ValueError, match=rf"methods\.toy\.{name}"):
            toys.composition("lg_fedavg", **settings)
