"""Client drift by hand."""

import pytest
import torch

from fedcore.metrics.drift import client_drift

MEAN = {"weight": torch.tensor([[1.0, 1.0]]), "bias": torch.tensor([0.0])}
NEAR = {"weight": torch.tensor([[1.0, 1.0]]), "bias": torch.tensor([-3.0])}  # 3 away
FAR = {"weight": torch.tensor([[3.0, 4.0]]), "bias": torch.tensor([6.0])}  # sqrt(4 + 9 + 36) = 7 away


def test_drift_is_the_mean_distance_over_all_parameters_unsquared():
    """Squared it would be 29, per tensor and added (3 + sqrt(13) + 6) / 2."""
    assert client_drift([NEAR, FAR], MEAN) == pytest.approx(5.0, abs=1e-12)
    assert client_drift((model for model in (FAR,)), MEAN) == pytest.approx(7.0, abs=1e-12)


def test_models_at_the_mean_do_not_drift():
    assert client_drift([MEAN, MEAN], MEAN) == 0.0


def test_a_small_difference_of_large_values_is_not_lost():
    """16777216 and 16777218 are neighbours in single precision; their difference to a double mean is 1."""
    large = {"weight": torch.tensor([16777218.0])}
    assert client_drift([large], {"weight": torch.tensor([16777217.0], dtype=torch.float64)}) == 1.0


def test_models_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="at least one client"):
        client_drift([], MEAN)
    with pytest.raises(ValueError, match=r"model 1 .*\['running_mean'\]"):
        client_drift([NEAR, {**FAR, "running_mean": torch.zeros(1)}], MEAN)
    with pytest.raises(ValueError, match=r"model 0, bias: shape \[2\], the mean's \[1\]"):
        client_drift([{**NEAR, "bias": torch.zeros(2)}], MEAN)
