"""What is reported of protected attributes."""

import numpy as np
import pytest

from fedcore.engine.checks import check_training
from fedcore.engine.leakage import protected_metrics
from tests import toys

ADD = {"adversary": {"strength": 0.0, "hidden": [8]}}


def _trained(protected=None):
    work = toys.training(toys.composition(add=ADD), rounds=2, protected=protected)
    work.run()
    return work


def test_chance_for_attributes_that_are_coins_and_more_for_those_that_show():
    """The toys' attributes are thresholds of the first two inputs; coins are independent of everything."""
    rows = len(toys.federation().dataset)
    coins = np.random.default_rng(0).integers(0, 2, (rows, 2)).astype(np.uint8)
    shown, chance = (work.progress.history[-1]["personal/test/leakage_auc"] for work in (_trained(), _trained(coins)))
    assert shown > 0.7
    assert 0.3 < chance < 0.6


def test_every_evaluation_has_the_adversarys_and_the_last_the_retrained_ones():
    first, *_, last = _trained().progress.history
    assert 0 <= first["personal/test/adversary_auc"] <= 1
    assert "personal/test/leakage_auc" not in first
    assert "personal/test/leakage_auc" in last
    assert "personal/test/class_auc" not in last  # three classes


def test_an_adversary_that_says_the_same_of_all_is_at_chance():
    work = _trained()
    outcomes = list(work._own_models(range(5), 2, ()))
    for outcome in outcomes:
        for name in outcome.params:
            if name.startswith("adversary."):
                outcome.params[name] = outcome.params[name] * 0
    assert protected_metrics(work.scorer, outcomes, 0, False) == {"personal/test/adversary_auc": 0.5}


def test_without_an_add_on_that_measures_nothing_is_reported():
    row = toys.run(rounds=1).history[-1]
    assert not [name for name in row if name.endswith("auc")]


def test_a_data_set_without_attributes_is_refused_by_name():
    work = toys.training(toys.composition(add=ADD))
    with pytest.raises(ValueError, match=r"methods\.fair: data set 'toy' has no protected attributes"):
        check_training("fair", work.composition, work.net, work.train, work.federation)
