"""The adversary against plain loops, what moves in whose phase, and its objectives by hand."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy, cross_entropy

from fedcore.addons.adversary import Adversary
from fedcore.metrics.fairness import leakage, macro_auc
from fedcore.seeds import stream
from fedcore.trees import flatten
from fedcore.types import Batch, Output
from tests import toys
from tests.methods import cases, twins

EXECUTORS = ["serial", "stacked"]
LAYERS = 3  # of the adversary in the twins: two hidden ones


def says(w, z):
    """The adversary's probabilities."""
    for layer in range(LAYERS):
        z = z @ w[f"adversary.{layer}.weight"].T + w[f"adversary.{layer}.bias"]
        z = torch.relu(z) if layer < LAYERS - 1 else torch.sigmoid(z)
    return z


def hides(w, z, p, strengths, objective):
    r = says(w, z)
    if objective == "flip":
        flipped = binary_cross_entropy(1 - r, p, reduction="none").mean(0)
        return (flipped * torch.tensor(strengths, dtype=torch.float64)).mean()
    aim = torch.full_like(p, 0.5) if objective == "confusion" else p
    terms = binary_cross_entropy(r, aim, reduction="none").mean(0) * torch.tensor(strengths, dtype=torch.float64)
    return (terms - math.log(2) * torch.tensor(strengths)).mean() if objective == "confusion" else -terms.mean()


def known(work, i):
    """A client's protected attributes: which of the first two values of a row are above their mean."""
    values = work.federation.dataset.inputs[:, :2]
    rows = work.federation.rows(i, "train")
    return torch.from_numpy((values > values.mean(0))[rows]).double()


def local_round(work, w, i, round, *, strengths, objective, epochs, rate):
    """Let r learn for some epochs, then the model hide from it."""
    (x, y), p = twins.rows(work, i), known(work, i)
    w, own = twins.leaves(w), [n for n in w if n.startswith("adversary.")]
    for mine, count in ((True, epochs), (False, 1)):
        for epoch in range(count):
            order = stream(work.seed, f"batches/{epoch}", round, i).permutation(len(y))
            for start in range(0, len(y), 8):
                rows = order[start : start + 8]
                z = twins.features(w, x[rows])
                if mine:
                    loss = rate * binary_cross_entropy(says(w, z), p[rows])
                else:
                    loss = cross_entropy(twins.classify(w, z), y[rows])
                    loss = loss + hides(w, z, p[rows], strengths, objective)
                g = twins.slopes(loss, w)
                w = twins.leaves({n: q - 0.1 * g[n] if (n in own) == mine else q for n, q in w.items()})
    return {n: q.detach() for n, q in w.items()}


CASES = {
    "the paper's": {"strength": 2.0},
    "by attribute": {"strength": [0.3, 1.7], "rate": 3.0, "adversary_epochs": 2},
    "confusion": {"strength": [1.5, 0.2], "objective": "confusion"},
    "flip": {"strength": [1.5, 0.2], "objective": "flip"},
    "averaged": {"strength": 1.0, "shared": True},
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("case", CASES)
def test_equals_plain_loops(executor, case):
    settings = CASES[case]
    composed = toys.composition(add={"adversary": {"hidden": [5, 4], **settings}})
    work = toys.training(composed, participation=0.6, executor=executor, dtype=torch.float64)
    strength = settings["strength"]
    used = {
        "strengths": strength if isinstance(strength, list) else [strength, strength],
        "objective": settings.get("objective", "negative"),
        "epochs": settings.get("adversary_epochs", 1),
        "rate": settings.get("rate", 1.0),
    }
    travels = [n for n in work.initial if settings.get("shared") or not n.startswith("adversary.")]
    models = [{n: q.clone() for n, q in work.initial.items()} for _ in range(5)]
    for round in range(3):
        cohort = work._cohort(round)
        for i in cohort.clients:
            models[i] = local_round(work, models[i], i, round, **used)
        mean = twins.mean([{n: models[i][n] for n in travels} for i in cohort.clients], cohort.weights)
        for model in models:
            model.update(mean)
    progress = work.run()
    for i in range(5):
        found = {**progress.server.params, **progress.store.get(i)["params"]}
        assert toys.distance(found, models[i]) < 1e-10


def _composed(method="fedavg", add=None, **settings):
    return toys.composition(method, {"adversary": {"hidden": [5], **settings}, **(add or {})})


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednova", "fedrep", "lg_fedavg"])
def test_with_strength_0_it_is_the_method_and_the_adversary_learns_all_the_same(executor, method):
    settings = {"executor": executor, "momentum": 0.5, "participation": 0.6}
    plain = toys.run(toys.composition(method), **settings)
    work = toys.training(_composed(method, strength=0.0), **settings)
    ours = work.run()
    assert toys.equal(plain.server.params, ours.server.params)
    assert plain.upload_bytes == ours.upload_bytes
    assert plain.history[-1]["personal/test/accuracy"] == ours.history[-1]["personal/test/accuracy"]
    seen = {c for r in range(3) for c in work._cohort(r).clients}
    for i in range(5):
        own = ours.store.get(i)["params"]
        moved = {n: float((q - work.initial[n]).abs().max()) for n, q in own.items() if n.startswith("adversary.")}
        assert (max(moved.values()) > 1e-3) == (i in seen)


def test_the_adversary_travels_only_if_it_is_shared():
    plain = toys.run()
    for shared, size in ((False, 0), (True, 6 * 5 + 5 + 5 * 2 + 2)):
        work = toys.training(_composed(shared=shared))
        (outcome,) = work._local([3], 0, work.composition.phases(work.train), "batches")
        assert any("adversary." in path for path in flatten(outcome.upload)) == shared
        ours = work.run()
        assert ours.upload_bytes - plain.upload_bytes == 3 * 5 * 4 * size
        assert ours.download_bytes - plain.download_bytes == 3 * 5 * 4 * size


def test_its_own_phase_moves_the_adversary_alone():
    """Neither the model nor another add-on's parameters."""
    work = toys.training(_composed(strength=5.0, add={"dbe": {"kappa": 0.0}}), momentum=0.5, weight_decay=0.1)
    phases = work.composition.phases(work.train)
    assert [phase.owner for phase in phases] == ["adversary", None]
    for phase in phases:
        (outcome,) = work._local([3], 0, (phase,), "batches")
        moved = {n for n, q in outcome.params.items() if not torch.equal(q, work.initial[n])}
        own = {n for n in work.initial if n.startswith("adversary.")}
        assert own
        assert moved == (own if phase.owner else set(work.initial) - own)


def test_hiding_raises_the_adversarys_loss_and_its_own_phase_lowers_it():
    """By one step each on one batch; with strength 0 the first step is the task's."""

    def loss(work, params):
        (x, _), p = twins.rows(work, 3), known(work, 3)
        (addon,) = work.composition.addons.values()
        seen = addon.protected_scores(work.net, params, twins.features(params, x))
        assert seen.shape == (31, 2)
        return float(binary_cross_entropy(seen, p))

    def after(strength, phase):
        train = {"batch_size": 31, "lr": 1e-3, "dtype": torch.float64}
        work = toys.training(_composed(strength=strength), **train)
        (outcome,) = work._local([3], 0, work.composition.phases(work.train)[phase : phase + 1], "batches")
        return loss(work, outcome.params), loss(work, work.initial), outcome.params

    found, start, _ = after(30.0, 0)
    assert found < start - 1e-6
    found, start, _ = after(30.0, 1)
    assert found > start + 1e-6
    _, _, model = after(0.0, 1)
    plain = toys.training(batch_size=31, lr=1e-3, dtype=torch.float64)
    (outcome,) = plain._local([3], 0, plain.composition.phases(plain.train), "batches")
    assert toys.equal(outcome.params, {n: model[n] for n in outcome.params})


def test_the_data_sets_attributes_are_what_it_learns():
    """Swapping the columns with the strengths is another training; with one strength for both it is not the same r."""
    fed = toys.federation()
    values = fed.dataset.inputs[:, :2]
    columns = (values > values.mean(0)).astype(np.uint8)
    runs = [
        toys.run(_composed(strength=[0.1, 2.0]), fed, protected=protected)
        for protected in (columns, columns[:, ::-1], None)
    ]
    assert toys.distance(runs[0].server.params, runs[1].server.params) > 1e-3
    assert toys.equal(runs[0].server.params, runs[2].server.params)


def _penalty(addon, logits, protected, phase="train"):
    """Its term for logits that the adversary makes of features of zeros: biases."""
    work = toys.training(toys.composition())
    params = {f"adversary.0.{n}": v for n, v in (("weight", torch.zeros(2, 6)), ("bias", torch.tensor(logits)))}
    rows = len(protected)
    batch = Batch(torch.zeros(rows, 5), torch.zeros(rows, dtype=torch.int64), torch.ones(rows), {})
    batch = batch._replace(protected=torch.tensor(protected))
    output = Output(torch.zeros(rows, 6), torch.zeros(rows, 3))

    class Seen:
        pass

    view = Seen()
    view.phase = phase
    return float(addon.penalty(work.net, params, {}, batch, output, None, view)[0])


def test_golden_penalties():
    """BCE at logit 2: log(1 + e^-2) = 0.126928 for 1, 2.126928 for 0; against 1/2 less log 2: log cosh 1 = 0.433781."""
    paper = Adversary(hidden=(), strength=(3.0, 5.0))
    assert _penalty(paper, [2.0, 0.0], [[1.0, 0.0]]) == pytest.approx(-(3 * 0.126928 + 5 * 0.693147) / 2, abs=1e-5)
    both = [[1.0, 0.0], [0.0, 0.0]]
    assert _penalty(paper, [2.0, 0.0], both) == pytest.approx(-(3 * 1.126928 + 5 * 0.693147) / 2, abs=1e-5)
    confusion = Adversary(hidden=(), strength=(3.0, 5.0), objective="confusion")
    assert _penalty(confusion, [2.0, 0.0], both) == pytest.approx(3 * 0.433781 / 2, abs=1e-5)
    assert _penalty(confusion, [-2.0, 0.0], both) == pytest.approx(3 * 0.433781 / 2, abs=1e-5)
    assert _penalty(confusion, [0.0, 0.0], both) == pytest.approx(0, abs=1e-6)
    # Against the other value: BCE(2, 1) of the row that has 0, BCE(2, 0) of the other; log 2 at 0.
    flip = Adversary(hidden=(), strength=(3.0, 5.0), objective="flip")
    assert _penalty(flip, [2.0, 0.0], [[1.0, 0.0]]) == pytest.approx((3 * 2.126928 + 5 * 0.693147) / 2, abs=1e-5)
    assert _penalty(flip, [2.0, 0.0], [[0.0, 0.0]]) == pytest.approx((3 * 0.126928 + 5 * 0.693147) / 2, abs=1e-5)
    # In its own phase there are no strengths.
    rated = Adversary(hidden=(), strength=(3.0, 5.0), rate=10.0)
    assert _penalty(rated, [2.0, 0.0], both, "adversary") == pytest.approx(10 * (1.126928 + 0.693147) / 2, abs=1e-5)


def test_the_negative_objective_has_no_bound_and_confusion_none_below_zero():
    """A far wrong logit s costs s: -(3 + 5) / 2 * s; against 1/2 it costs s / 2 - log 2, whatever the attribute."""
    for attribute in (0.0, 1.0):
        wrong = [[attribute, attribute]]
        logit = 100.0 if attribute == 0 else -100.0
        paper = Adversary(hidden=(), strength=(3.0, 5.0))
        assert _penalty(paper, [logit, logit], wrong) == pytest.approx(-400)
        confusion = Adversary(hidden=(), strength=(3.0, 5.0), objective="confusion")
        assert _penalty(confusion, [logit, logit], wrong) == pytest.approx(4 * (50 - math.log(2)))
    assert all(_penalty(confusion, [s, -s], [[0.0, 0.0]]) > -1e-6 for s in (-3.0, -0.1, 0.0, 0.2, 7.0))


@pytest.mark.parametrize("objective", ["negative", "confusion"])
def test_features_tell_less_of_the_attributes(objective):
    """To the adversary itself, and to a fresh one."""
    fed = toys.federation((60, 60, 60))
    values = fed.dataset.inputs[:, :2]
    found = []
    for strength in (0.0, 5.0):
        composed = toys.composition(
            add={
                "adversary": {
                    "strength": strength,
                    "objective": objective,
                    "hidden": [16],
                    "rate": 3.0,
                    "adversary_epochs": 3,
                    "shared": True,
                }
            }
        )
        work = toys.training(composed, fed, rounds=30, lr=0.1, evaluate_every=30, executor="stacked")
        params = work.run().server.params
        z = twins.features(params, torch.tensor(fed.dataset.inputs))
        (addon,) = composed.addons.values()
        attributes = (values > values.mean(0)).astype(int)
        own = macro_auc(addon.protected_scores(work.net, params, z), attributes)
        found.append((own, leakage(z.numpy(), attributes, z.numpy(), attributes, 0)))
    assert found[1][0] < found[0][0] - 0.15
    assert found[1][1] < found[0][1] - 0.05


def test_scores_are_probabilities_and_none_where_there_is_no_adversary():
    work = toys.training(_composed())
    (addon,) = work.composition.addons.values()
    z = torch.linspace(-2, 2, 42).reshape(7, 6)
    scores = addon.protected_scores(work.net, work.initial, z)
    assert scores.shape == (7, 2)
    assert bool(((scores > 0) & (scores < 1)).all())
    progress = work.run()
    assert addon.protected_scores(work.net, progress.server.params, z) is None
    trained = addon.protected_scores(work.net, progress.store.get(0)["params"], z)
    assert not torch.equal(trained, scores)


def test_what_cannot_be_is_refused_by_name():
    work = toys.training()
    with pytest.raises(ValueError, match=r"add\.adversary\.strength: 3 numbers for 2 protected attributes"):
        _composed(strength=[1.0, 2.0, 3.0]).check(work.net, work.train)
    _composed(strength=[1.0, 2.0, 3.0], attributes=3).check(work.net, work.train)
    for settings in ({"strength": -1.0}, {"attributes": 0}, {"rate": 0.0}, {"objective": "fool"}, {"hidden": [0]}):
        (name,) = settings
        with pytest.raises(ValueError, match=rf"methods\.toy\.add\.adversary\.{name}"):
            toys.composition(add={"adversary": settings})


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize("name", ["fedbr", "perfedavg", "pfedme", "scaffold"])
def test_a_method_that_changes_the_step_keeps_it_to_its_own_phases(name, executor):
    """At strength 0 the method is what it is without the adversary, also where it replaces the step."""
    settings = cases.METHODS[name].settings
    plain, measured = (
        toys.run(toys.composition(name, add, **settings), executor=executor)
        for add in ({}, {"adversary": {"strength": 0.0, "hidden": [4]}})
    )
    assert toys.equal(plain.server.params, measured.server.params)
    assert plain.history[-1]["personal/test/loss"] == measured.history[-1]["personal/test/loss"]
