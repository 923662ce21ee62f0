"""FedLC's deviation bounds and groups of classes by hand."""

import math

import numpy as np
import pytest

from fedcore.metrics.deviation import (
    calibrated_deviation_bound,
    classes_by_count,
    deviation_bound,
    recall_by_class,
)

# Class 0 is rare with mean feature (2, 0), class 1 frequent with (1, 2): ||h^(0)||^2 = 4, inner product 2.
LABELS = np.array([1, 0, 0, 1])
FEATURES = np.array([[1.0, 1.0], [1.0, 0.0], [3.0, 0.0], [1.0, 3.0]], np.float32)
PROBABILITIES = np.array([[0.1, 0.9], [0.4, 0.6], [0.6, 0.4], [0.3, 0.7]])


def test_the_bound_of_two_classes():
    """(1 - 0.5) * 4 / (0.2 * 2) = 5; with the classes exchanged ||h^(1)||^2 = 5 and (1 - 0.8) * 5 / (0.5 * 2) = 1."""
    assert deviation_bound(FEATURES, PROBABILITIES, LABELS, majority=1, minority=0) == pytest.approx(5.0, abs=1e-12)
    assert deviation_bound(FEATURES, PROBABILITIES, LABELS, majority=0, minority=1) == pytest.approx(1.0, abs=1e-12)


def test_the_bound_of_a_linear_head():
    """Scores w_y h with w_0 = (a, 0), w_1 = 0 at h = (1, 0) and (1, 1): p_0 = 3/4 in both with a = log 3."""
    features = np.array([[1.0, 0.0], [1.0, 1.0]])
    scores = features @ np.array([[math.log(3), 0.0], [0.0, 0.0]]).T
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert deviation_bound(features, probabilities, [0, 1], 1, 0) == pytest.approx((1 / 4) / (3 / 4), abs=1e-12)


@pytest.mark.parametrize("scale", [1e-9, 1024.0])
def test_scaled_features_leave_the_bound(scale):
    assert deviation_bound(scale * FEATURES, PROBABILITIES, LABELS, 1, 0) == pytest.approx(5.0, rel=1e-6)


def test_where_there_is_no_bound_it_is_nan():
    absent = np.zeros(4, int)
    opposite = FEATURES * np.where(LABELS == 0, -1, 1)[:, None]
    orthogonal = np.where(LABELS[:, None] == 0, [1.0, 0.0], [0.0, 1.0])
    never = np.where(LABELS[:, None] == 1, [0.0, 1.0], PROBABILITIES)
    assert math.isnan(deviation_bound(FEATURES, PROBABILITIES, absent, 1, 0))
    assert math.isnan(deviation_bound(FEATURES, PROBABILITIES, absent + 1, 1, 0))
    assert math.isnan(deviation_bound(opposite, PROBABILITIES, LABELS, 1, 0))
    assert math.isnan(deviation_bound(orthogonal, PROBABILITIES, LABELS, 1, 0))
    assert math.isnan(deviation_bound(np.zeros((4, 2)), PROBABILITIES, LABELS, 1, 0))
    assert math.isnan(deviation_bound(FEATURES, never, LABELS, 1, 0))


def _logits(counts, probabilities, tau=1.0):
    """Logits whose calibrated softmax is `probabilities`; of classes without examples any."""
    seen = np.asarray(counts) > 0
    margins = tau * np.where(seen, counts, 1.0) ** -0.25
    return np.where(seen, margins + np.log(np.where(seen, probabilities, 1.0)) + 0.7, 5.0)


@pytest.mark.parametrize(
    ("counts", "rare", "frequent", "labels", "expected"),
    [
        # Margins 1/2, 1/3, 1/4; 4 / (p_r^(j) * 2) times the sum of Delta p over the others.
        ([16, 81, 256], [0.5, 0.3, 0.2], [0.25, 0.25, 0.5], (0, 2), (0.3 / 6 + 0.2 / 4) * 8),
        # Class 0 is rarer than class 1: (-0.3 / 6 + 0.5 / 12) * 4 / (0.25 * 2)
        ([16, 81, 256], [0.3, 0.2, 0.5], [0.25, 0.25, 0.5], (1, 2), (-0.3 / 6 + 0.5 / 12) * 8),
        # Class 0 is missing, in the softmax and in the sum.
        ([0, 81, 256], [0.0, 0.6, 0.4], [0.0, 0.25, 0.75], (1, 2), (0.4 / 12) * 8),
    ],
)
def test_the_calibrated_bound_by_hand(counts, rare, frequent, labels, expected):
    minority, majority = labels
    y = np.where(LABELS == 0, minority, majority)
    logits = _logits(counts, np.where(LABELS[:, None] == 0, rare, frequent))
    bound = calibrated_deviation_bound(FEATURES, logits, y, counts, majority, minority)
    assert bound == pytest.approx(expected, rel=1e-9)
    doubled = _logits(counts, np.where(LABELS[:, None] == 0, rare, frequent), tau=2.0)
    at_two = calibrated_deviation_bound(FEATURES, doubled, y, counts, majority, minority, tau=2.0)
    assert at_two == pytest.approx(2 * expected, rel=1e-9)


def test_without_calibration_the_calibrated_bound_is_zero_and_without_the_minority_nan():
    logits = np.log(PROBABILITIES)
    assert calibrated_deviation_bound(FEATURES, logits, LABELS, [16, 81], 1, 0, tau=0.0) == 0.0
    assert math.isnan(calibrated_deviation_bound(FEATURES, logits, LABELS, [0, 81], 1, 0))


def test_inputs_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="as many rows, got 3, 4 and 4"):
        deviation_bound(FEATURES[:3], PROBABILITIES, LABELS, 1, 0)
    with pytest.raises(ValueError, match="0 to 1, got 2 and 0"):
        deviation_bound(FEATURES, PROBABILITIES, LABELS, 2, 0)
    with pytest.raises(ValueError, match="each of 3 counted classes"):
        calibrated_deviation_bound(FEATURES, PROBABILITIES, LABELS, [1, 2, 3], 1, 0)


@pytest.mark.parametrize(
    ("counts", "factor", "groups"),
    [
        ([0, 10, 10, 70], 2.0, ((3,), (1, 2), (0,))),  # mean of those present 30
        ([0, 10, 10, 40], 2.0, ((3,), (1, 2), (0,))),  # exactly twice their mean of 20
        ([0, 10, 11, 39], 2.0, ((), (1, 2, 3), (0,))),
        ([0, 448, 2608], 1.0, ((2,), (1,), (0,))),  # FedLC's Figure 7
        ([0, 448, 2608], 2.0, ((), (1, 2), (0,))),
        ([0, 0], 2.0, ((), (), (0, 1))),
    ],
)
def test_classes_by_count(counts, factor, groups):
    assert classes_by_count(counts, factor) == groups


def test_recall_by_class():
    """A prediction beyond the classes is an error; class 2 has no example."""
    recalls = recall_by_class([0, 1, 1, 1, 7, 2], [0, 0, 1, 1, 1, 3], 4)
    assert recalls == pytest.approx([1 / 2, 2 / 3, math.nan, 0], abs=1e-12, nan_ok=True)


def test_recalls_of_labels_out_of_range_are_refused():
    with pytest.raises(ValueError, match="0 to 1, got 2"):
        recall_by_class([0, 1], [0, 2], 2)
    with pytest.raises(ValueError, match="as many predictions as labels"):
        recall_by_class([0, 1], [0], 2)
