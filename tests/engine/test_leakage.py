"""What is reported of protected attributes."""

import numpy as np
import pytest
import torch

from fedcore.engine import leakage
from fedcore.engine.checks import check_training
from fedcore.engine.leakage import protected_metrics
from fedcore.metrics.fairness import scores_side_by_side
from tests import toys
from tests.methods import twins

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


@pytest.mark.parametrize(("limit", "value", "groups"), [("_SIDE_BY_SIDE", 2, [2, 2, 1]), ("_MOST_ROWS", 1, [1] * 5)])
def test_fresh_adversaries_of_some_clients_are_trained_together(monkeypatch, limit, value, groups):
    work = _trained()
    models = [*work._own_models(range(5), 2, ())]
    together = protected_metrics(work.scorer, models, 0, True)
    sizes = []

    def spy(tasks, seed):
        sizes.append(len(tasks))
        return scores_side_by_side(tasks, seed)

    monkeypatch.setattr(leakage, "scores_side_by_side", spy)
    monkeypatch.setattr(leakage, limit, value)
    assert protected_metrics(work.scorer, models, 0, True) == pytest.approx(together, abs=1e-2)
    assert sizes == groups


def test_an_adversary_that_says_the_same_of_all_is_at_chance():
    work = _trained()
    outcomes = list(work._own_models(range(5), 2, ()))
    for outcome in outcomes:
        for name in outcome.params:
            if name.startswith("adversary."):
                outcome.params[name] = outcome.params[name] * 0
    assert protected_metrics(work.scorer, outcomes, 0, False) == {"personal/test/adversary_auc": 0.5}


def test_a_shared_adversary_is_scored_on_the_servers_model():
    """All clients' rows pooled, by the definition of an area; the fresh one in the last round."""
    add = {"adversary": {"strength": 0.0, "hidden": [8], "shared": True}}
    work = toys.training(toys.composition(add=add), rounds=2)
    first, last = work.run().history
    assert "global/test/leakage_auc" not in first
    params, rows = work.progress.server.params, work.federation.rows_of(range(5), "test")
    z = twins.features(params, torch.tensor(work.federation.dataset.inputs[rows]))
    hidden = torch.relu(z @ params["adversary.0.weight"].T + params["adversary.0.bias"])
    scores = hidden @ params["adversary.1.weight"].T + params["adversary.1.bias"]
    values = work.federation.dataset.inputs[:, :2]
    truth = torch.tensor((values > values.mean(0))[rows])
    areas = []
    for j in range(2):
        above = scores[truth[:, j], j][:, None] - scores[~truth[:, j], j]
        areas.append(float(((above > 0) + 0.5 * (above == 0)).mean()))
    assert last["global/test/adversary_auc"] == pytest.approx(sum(areas) / 2, abs=1e-6)
    assert last["global/test/leakage_auc"] > 0.7
    # Every client uses the server's model, so the pooled figures differ from the clients' means alone.
    assert last["global/test/adversary_auc"] != last["personal/test/adversary_auc"]


def test_the_servers_model_tells_the_label_of_two_classes():
    add = {"adversary": {"strength": 0.0, "hidden": [8], "shared": True}}
    fed = toys.federation(classes=2)
    work = toys.training(toys.composition(add=add), fed, toys.net(classes=2), rounds=1)
    (row,) = work.run().history
    assert row["global/test/class_auc"] == pytest.approx(row["personal/test/class_auc"])


@pytest.mark.parametrize(("method", "shared"), [("fedavg", False), ("lg_fedavg", True), ("local", True)])
def test_an_adversary_of_each_client_or_no_global_model_has_no_global_figure(method, shared):
    add = {"adversary": {"strength": 0.0, "hidden": [8], "shared": shared}}
    row = toys.run(toys.composition(method, add), rounds=1).history[-1]
    assert "personal/test/adversary_auc" in row
    assert not [name for name in row if name.startswith("global/") and name.endswith("auc")]


def test_without_an_add_on_that_measures_nothing_is_reported():
    row = toys.run(rounds=1).history[-1]
    assert not [name for name in row if name.endswith("auc")]


def test_a_data_set_without_attributes_is_refused_by_name():
    work = toys.training(toys.composition(add=ADD))
    with pytest.raises(ValueError, match=r"methods\.fair: data set 'toy' has no protected attributes"):
        check_training("fair", work.composition, work.net, work.train, work.federation)
