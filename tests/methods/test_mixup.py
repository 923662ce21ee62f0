"""Mixup against plain loops; its permutation; what it leaves alone."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.addons.mixup import Mixup
from fedcore.objective import task_losses
from fedcore.seeds import stream
from fedcore.types import Batch
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


def drawn(seed, round, client, alpha, steps):
    """The shares in the precision the engine has, and the ranks."""
    generator = stream(seed, "draws/mixup", round, client)
    ranks = generator.permuted(np.tile(np.arange(8), (steps, 1)), axis=1)
    return generator.beta(alpha, alpha, steps).astype(np.float32).astype(float), ranks


@pytest.mark.parametrize("executor", EXECUTORS)
def test_equals_plain_loops(executor):
    """Soft labels, and a permutation of each (short) batch made of the ranks of its own rows."""
    work = toys.training(
        toys.composition(add={"mixup": {"alpha": 0.6}}), participation=0.6, executor=executor, dtype=torch.float64
    )
    x = {n: p.clone() for n, p in work.initial.items()}
    for round in range(3):
        cohort = work._cohort(round)
        models = []
        for i in cohort.clients:
            w = twins.leaves(x)
            shares, ranks = drawn(0, round, i, 0.6, -(-toys.SIZES[i] // 8))
            for (inputs, labels), s, rank in zip(twins.batches(work, i, round), shares, ranks, strict=True):
                order = sorted(range(len(labels)), key=lambda b, r=rank: r[b])
                assert sorted(order) == list(range(len(labels)))
                one_hot = torch.eye(3, dtype=torch.float64)[labels]
                mixed, soft = (s * v + (1 - s) * v[order] for v in (inputs, one_hot))
                logs = torch.log_softmax(twins.classify(w, twins.features(w, mixed)), 1)
                g = twins.slopes(-(soft * logs).sum(1).mean(), w)
                w = twins.leaves({n: w[n] - 0.1 * g[n] for n in w})
            models.append({n: p.detach() for n, p in w.items()})
        x = twins.mean(models, cohort.weights)
    assert toys.distance(work.run().server.params, x) < 1e-10


@pytest.mark.parametrize("executor", EXECUTORS)
def test_strength_zero_is_the_method_without_it_bit_for_bit(executor):
    settings = {"participation": 0.6, "executor": executor}
    for method in ("fedavg", "fedbr"):
        plain, off = (toys.run(toys.composition(method, add), **settings) for add in ({}, {"mixup": {"alpha": 0.0}}))
        assert toys.equal(plain.server.params, off.server.params)
        assert plain.history == off.history


def test_examples_mix_with_examples_and_padding_with_padding():
    x = torch.arange(8.0)[:, None]
    mask = (torch.arange(8) < 5).float()
    addon = Mixup(alpha=1.0)
    partners = []
    for k in range(200):
        ranks = torch.from_numpy(stream(k, "test").permutation(8))
        batch = addon.mix(
            Batch(x, x[:, 0].long(), mask, {"mixup.ranks": ranks, "mixup.share": torch.tensor(0.25)}), None
        )
        labels, share = batch.second
        assert sorted(labels[:5].tolist()) == [0, 1, 2, 3, 4]
        torch.testing.assert_close(batch.x[:, 0], 0.25 * x[:, 0] + 0.75 * labels)
        assert float(share) == 0.25
        partners.append(int(labels[0]))
    assert np.bincount(partners, minlength=5).min() > 20


def test_one_share_per_step_follows_the_beta_distribution():
    shares = Mixup(alpha=0.2).draws(toys.net(), stream(0, "test"), 4000, 8, None)["mixup.share"]
    assert shares.shape == (4000,)
    assert shares.mean() == pytest.approx(0.5, abs=0.02)
    assert shares.var() == pytest.approx(0.25 / 1.4, rel=0.05)  # 1 / (4 (2 alpha + 1))


def test_two_labels_of_one_row_are_one_label():
    """Where every partner has the row's label, the loss is the cross-entropy at the mixed inputs."""
    generator = stream(0, "test")
    logits = torch.from_numpy(generator.normal(size=(4, 3)))
    y = torch.tensor([0, 1, 2, 1])
    batch = Batch(logits, y, torch.ones(4), {}, (y, torch.tensor(0.3)))
    torch.testing.assert_close(task_losses(logits, batch), cross_entropy(logits, y, reduction="none"))


def test_masked_logits_stay_finite():
    fed = toys.federation((20, 9, 2, 31, 1))  # clients that miss classes
    progress = toys.run(toys.composition(add={"calibration": {}, "mixup": {"alpha": 1.0}}), fed)
    assert all(torch.isfinite(p).all() for p in progress.server.params.values())


def test_a_negative_alpha_is_refused_by_name():
    with pytest.raises(ValueError, match=r"add\.mixup\.alpha"):
        toys.composition(add={"mixup": {"alpha": -0.1}})
