"""FedLC and FedRS: the golden numbers and identities of their equations."""

import math

import pytest
import torch

from fedcore.addons.calibration import Calibration
from fedcore.addons.restricted_softmax import RestrictedSoftmax
from fedcore.types import Batch, ClientInfo, Output, View, cross_entropy
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]
F = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)


def _view(counts, total=None):
    counts = torch.tensor(counts, dtype=torch.float64)
    server = {} if total is None else {"class_counts": torch.tensor(total, dtype=torch.float64)}
    one = torch.tensor(1.0)
    return View({}, server, {}, {}, None, ClientInfo(counts.sum(), counts), one, one, 0.1, 0, "train")


def _loss(addon, logits, y, counts, total=None):
    view, labels = _view(counts, total), torch.tensor(y)
    batch = Batch(logits, labels, torch.ones(len(labels), dtype=torch.float64), {})
    u = addon.logits(logits, view)
    term, _ = addon.penalty(None, {}, {}, batch, Output(logits, u), None, view)
    return batch.mean(cross_entropy(u, labels)) + term


@pytest.mark.parametrize(
    ("denominator", "expected"),
    [("all", (2.617323, 1.450657, 0.367323)), ("others", (2.541524, 1.183540, -0.812236))],
)
def test_golden_losses(denominator, expected):
    """f = (1, 2, 3), n = (16, 81, 256), tau = 1: margins 1/2, 1/3, 1/4, so u = (0.5, 1.6667, 2.75).

    log(e^.5 + e^1.6667 + e^2.75) = 3.117323; minus u gives the three losses; leaving u_y out gives the others.
    """
    addon = Calibration(denominator=denominator)
    losses = [float(_loss(addon, F, [y], [16.0, 81.0, 256.0])) for y in range(3)]
    assert losses == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("missing", ["mask", "floor"])
def test_a_missing_class_leaves_the_softmax(missing):
    """n = (16, 0, 256), y = 0: log(e^.5 + e^2.75) - .5 = 2.350207; its logit gets no gradient."""
    logits = F.clone().requires_grad_()
    loss = _loss(Calibration(missing=missing), logits, [0], [16.0, 0.0, 256.0])
    assert float(loss.detach()) == pytest.approx(2.350207, abs=1e-5)
    (slope,) = torch.autograd.grad(loss, logits)
    assert abs(float(slope[0, 1])) <= (0.0 if missing == "mask" else 1e-40)
    assert float(slope.sum()) == pytest.approx(0.0, abs=1e-12)


def test_equal_counts_are_plain_cross_entropy():
    y = torch.tensor([2])
    assert float(_loss(Calibration(tau=3.0), F, [2], [7.0] * 3)) == pytest.approx(float(cross_entropy(F, y)))
    plain = torch.softmax(F, 1)[0, 2]
    others = float(_loss(Calibration(denominator="others"), F, [2], [7.0] * 3))
    assert others == pytest.approx(float(cross_entropy(F, y) + torch.log(1 - plain)))


@pytest.mark.parametrize("addon", [Calibration(tau=3.0), Calibration(margin="log_prior")])
def test_equal_counts_have_the_gradient_of_plain_cross_entropy(addon):
    labels, logits = torch.tensor([2, 0]), torch.cat([F, F.flip(1) / 2]).requires_grad_()
    (slope,) = torch.autograd.grad(_loss(addon, logits, labels.tolist(), [7.0] * 3), logits)
    (plain,) = torch.autograd.grad(cross_entropy(logits, labels).mean(), logits)
    torch.testing.assert_close(slope, plain, rtol=0, atol=1e-7)


def test_a_missing_class_can_count_as_one_example():
    """n = (16, 0, 256), y = 0: u = (.5, 2 - 1, 2.75); log(e^.5 + e^1 + e^2.75) - .5 = 2.496214."""
    loss = float(_loss(Calibration(missing="clamp"), F, [0], [16.0, 0.0, 256.0]))
    assert loss == pytest.approx(2.496214, abs=1e-5)


def test_two_classes_without_the_true_one_is_a_linear_loss():
    logits = torch.tensor([[0.3, -1.2]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(_loss(Calibration(denominator="others"), logits, [0], [5.0, 9.0]), logits)
    assert slope[0].tolist() == pytest.approx([-1.0, 1.0])


def test_rarer_classes_get_larger_losses_and_classes_can_be_permuted():
    addon = Calibration()
    losses = [float(_loss(addon, F, [0], [n, 81.0, 256.0])) for n in (1.0, 4.0, 16.0, 64.0)]
    assert losses == sorted(losses, reverse=True)
    order = [2, 0, 1]
    counts = [16.0, 81.0, 256.0]
    permuted = float(_loss(addon, F[:, order], [order.index(0)], [counts[i] for i in order]))
    assert permuted == pytest.approx(float(_loss(addon, F, [0], counts)))


def test_global_counts_come_with_every_model():
    """Three classes, five clients, three rounds, four bytes."""
    plain, ours = (toys.run(toys.composition(add={"calibration": {"counts": c}})) for c in ("local", "global"))
    assert ours.download_bytes - plain.download_bytes == 3 * 5 * 3 * 4
    assert ours.upload_bytes == plain.upload_bytes


def test_log_prior_and_global_counts():
    """Eq. 4: u = f + log(n_c / n) = (1 + log .1, 2 + log .3, 3 + log .6)."""
    u = [1 + math.log(0.1), 2 + math.log(0.3), 3 + math.log(0.6)]
    expected = math.log(sum(map(math.exp, u))) - u[1]
    assert float(_loss(Calibration(margin="log_prior"), F, [1], [1.0, 3.0, 6.0])) == pytest.approx(expected)
    mine, all_counts = [9.0, 9.0, 9.0], [16.0, 81.0, 256.0]
    loss = float(_loss(Calibration(counts="global"), F, [0], mine, all_counts))
    assert loss == pytest.approx(2.617323, abs=1e-5)


def test_restricted_softmax_scales_the_logits_of_missing_classes():
    scaled = RestrictedSoftmax(alpha=0.5).logits(F, _view([3.0, 0.0, 1.0]))
    assert scaled.tolist() == [[1.0, 1.0, 3.0]]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("add", [{"calibration": {"tau": 0.0}}, {"restricted_softmax": {"alpha": 1.0}}])
def test_strength_zero_is_fedavg_bit_for_bit(executor, add):
    settings = {"participation": 0.6, "executor": executor}
    fed = toys.federation((20, 9, 2, 31, 1))  # clients that miss classes
    assert (fed.class_counts == 0).any()
    plain, calibrated = (toys.run(toys.composition(add=a), fed, **settings) for a in ({}, add))
    assert toys.equal(plain.server.params, calibrated.server.params)
    assert plain.history == calibrated.history


@pytest.mark.parametrize("settings", [{"counts": "local"}, {"counts": "global"}, {"denominator": "others"}])
def test_executors_agree_on_clients_that_miss_classes(settings):
    fed = toys.federation((20, 9, 2, 31, 1))
    add = {"calibration": {"missing": "clamp", **settings}}
    one, other = (
        toys.run(toys.composition(add=add), fed, executor=e, dtype=torch.float64, rounds=2) for e in EXECUTORS
    )
    plain = toys.run(None, fed, dtype=torch.float64, rounds=2)
    assert toys.distance(one.server.params, other.server.params) < 1e-10
    assert toys.distance(one.server.params, plain.server.params) > 1e-4


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("changed", ["double softmax", "restricted softmax"])
def test_the_true_class_leaves_the_softmax_of_the_logits_as_other_parts_made_them(executor, changed):
    """One step on all of a client's rows, of -u_y + log sum_{c != y} e^u_c written out; the client lacks a class."""
    twice = changed == "double softmax"
    add = {"calibration": {"denominator": "others", "missing": "clamp"}}
    if not twice:
        add["restricted_softmax"] = {"alpha": 0.25}
    composed = toys.composition("lg_fedavg" if twice else "fedavg", add, **({"double_softmax": True} if twice else {}))
    work = toys.training(composed, toys.federation((9, 2)), executor=executor, dtype=torch.float64, batch_size=9)
    for outcome in work._local([0, 1], 0, work.composition.phases(work.train), "batches"):
        x, y = twins.rows(work, outcome.client)
        counts = torch.tensor([float((y == c).sum()) for c in range(3)], dtype=torch.float64)
        w = twins.leaves(work.initial)
        f = twins.classify(w, twins.features(w, x))
        u = (f.exp() / f.exp().sum(1, keepdim=True) if twice else f) - counts.clamp(min=1) ** -0.25
        if not twice:
            u = u * torch.where(counts > 0, 1.0, 0.25)
        losses = [torch.log(sum(u[b, c].exp() for c in range(3) if c != y[b])) - u[b, y[b]] for b in range(len(y))]
        loss = sum(losses) / len(y)
        slopes = twins.slopes(loss, w)
        assert float(outcome.loss) == pytest.approx(float(loss.detach()), abs=1e-12)
        assert toys.distance(outcome.params, {n: (p - 0.1 * slopes[n]).detach() for n, p in w.items()}) < 1e-12
    assert int((counts == 0).sum()) == 1
