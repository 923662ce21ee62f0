"""AUC by counting pairs, and what a fresh adversary reads off features."""

import itertools
import math

import numpy as np
import pytest
import torch

from fedcore.metrics.fairness import Budget, Frozen, auc, leakage, macro_auc, retrained_scores, scores_side_by_side
from fedcore.seeds import module_stream, stream

SHORT = Budget(hidden=(16,), steps=200, batch_size=32, lr=1e-2)


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 3 / 4),  # of the pairs only 0.35 against 0.4 is the wrong way round
        ([1, 1, 2], [0, 1, 1], 3 / 4),  # (1/2 + 1) / 2
        ([3, 3, 3, 1], [1, 0, 0, 1], 1 / 4),  # 1/2, 1/2, 0, 0
        ([5, 5, 5, 5], [0, 1, 1, 0], 1 / 2),
        ([0.2, 0.9], [0, 1], 1.0),
        ([0.9, 0.2], [0, 1], 0.0),
    ],
)
def test_auc_counts_pairs_and_halves_ties(scores, labels, expected):
    assert auc(scores, labels) == pytest.approx(expected, abs=1e-12)


def test_auc_is_the_definition_on_random_scores_with_ties():
    generator = stream(0, "test/auc")
    scores, labels = generator.integers(0, 9, 60), generator.integers(0, 2, 60)
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels == 1] for b in scores[labels == 0]]
    assert auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert auc(-scores, labels) == pytest.approx(1 - auc(scores, labels), abs=1e-12)


@pytest.mark.parametrize(("scores", "labels"), [([1, 2], [1, 1]), ([1, 2], [0, 0]), ([], []), ([1, math.nan], [0, 1])])
def test_auc_of_nothing_to_compare_is_nan(scores, labels):
    assert math.isnan(auc(scores, labels))


def test_macro_auc_is_the_mean_over_attributes_that_vary():
    scores = np.array([[0.1, 5], [0.4, 5], [0.35, 5], [0.8, 5]])
    attributes = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.uint8)
    assert macro_auc(scores, attributes) == pytest.approx((0.75 + 0.5) / 2)
    attributes[:, 1] = 1
    assert macro_auc(scores, attributes) == pytest.approx(0.75)
    assert math.isnan(macro_auc(scores[:, :1], np.ones((4, 1), np.uint8)))


def _rows(told):
    """Features of 400 rows; the first tells attribute 0 (in feature 2) as far as `told`, attribute 1 never shows."""
    generator = stream(1, "test/leakage")
    attributes = generator.integers(0, 2, (400, 2)).astype(np.uint8)
    features = generator.normal(size=(400, 3)).astype(np.float32)
    features[:, 2] += told * attributes[:, 0]
    return features[:200], attributes[:200], features[200:], attributes[200:]


def test_a_fresh_adversary_finds_what_is_there_and_nothing_else():
    """Two unit normals 4 apart are told apart with an AUC of Phi(4 / sqrt 2) = 0.9977."""
    train, known, test, asked = _rows(4.0)
    scores = retrained_scores(train, known, test, 0, SHORT)
    assert auc(scores[:, 0], asked[:, 0]) > 0.97
    assert abs(auc(scores[:, 1], asked[:, 1]) - 0.5) < 0.12
    both = (auc(scores[:, 0], asked[:, 0]) + auc(scores[:, 1], asked[:, 1])) / 2
    assert leakage(train, known, test, asked, 0, SHORT) == pytest.approx(both)
    train, known, test, asked = _rows(0.0)
    assert abs(leakage(train, known, test, asked, 0, SHORT) - 0.5) < 0.1


def test_the_features_scale_does_not_matter_and_the_seed_decides_all():
    train, known, test, _ = _rows(1.0)
    one = retrained_scores(train, known, test, 0, SHORT)
    assert np.array_equal(one, retrained_scores(train, known, test, 0, SHORT))
    assert not np.array_equal(one, retrained_scores(train, known, test, 1, SHORT))
    assert np.allclose(one, retrained_scores(train * 1024 + 512, known, test * 1024 + 512, 0, SHORT), atol=0.02)


def _plainly(frozen, seed, budget):
    """One adversary as one writes it: modules, their optimiser, a loop."""
    center, spread = frozen.features_train.mean(0), frozen.features_train.std(0)
    x, z = (torch.tensor((f - center) / spread) for f in (frozen.features_train, frozen.features_test))
    y = torch.tensor(frozen.attributes_train).float()
    widths = [x.shape[1], *budget.hidden, y.shape[1]]
    with module_stream(seed, "leakage"):
        layers = [torch.nn.Linear(n, m) for n, m in itertools.pairwise(widths)]
    model = torch.nn.Sequential(*itertools.chain(*((layer, torch.nn.ReLU()) for layer in layers)))[:-1]
    optimiser = torch.optim.Adam(model.parameters(), budget.lr)
    for rows in stream(seed, "leakage/batches").integers(0, len(x), (budget.steps, budget.batch_size)):
        optimiser.zero_grad()
        torch.nn.BCEWithLogitsLoss()(model(x[rows]), y[rows]).backward()
        optimiser.step()
    return model(z).detach().numpy()


def test_adversaries_side_by_side_do_not_see_each_others_features():
    tasks = []
    for rows, told in ((200, 4.0), (70, 1.0), (2, 0.0)):
        train, known, test, _ = _rows(told)
        tasks.append(Frozen(train[:rows], known[:rows], test[: rows // 2]))
    found = scores_side_by_side(tasks, 3, SHORT)
    assert [scores.shape for scores in found] == [(100, 2), (35, 2), (1, 2)]
    for task, scores in zip(tasks, found, strict=True):
        assert np.allclose(scores, _plainly(task, 3, SHORT), atol=1e-3)


def test_constant_features_tell_nothing():
    train, known, _, asked = _rows(1.0)
    flat = np.full_like(train, 3.0)
    assert leakage(flat, known, flat, asked, 0, SHORT) == 0.5


def test_rows_that_do_not_go_together_are_refused():
    train, known, test, asked = _rows(1.0)
    with pytest.raises(ValueError, match=r"as many rows"):
        leakage(train[:10], known, test, asked, 0, SHORT)
    with pytest.raises(ValueError, match=r"as many features"):
        leakage(train, known, test[:, :2], asked, 0, SHORT)
    with pytest.raises(ValueError, match=r"at least one"):
        leakage(train[:0], known[:0], test, asked, 0, SHORT)
