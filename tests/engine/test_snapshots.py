"""Models of the best test rounds: which are taken, how they are averaged, and that nothing else changes."""

import numpy as np
import pytest
import torch

from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.summary import summarise
from tests import toys
from tests.engine.test_resume import assert_resumes

KEY = "best_on_test/test/client_mean"


def _settings(**more):
    return {"rounds": 6, "participation": 0.6, "lr": 0.3, "batch_size": 4, "best_on_test": True, **more}


def reference(settings, name="lg_fedavg", **own):
    """After every round: keep whole models that were better on their test split, average what is shared, test again."""
    work = toys.training(toys.composition(name, **own), **settings)
    federation, best, kept, found = work.federation, [-1.0] * 5, [None] * 5, []

    def accuracy(model, client):
        rows = federation.rows(client, "test")
        x, y = work.examples.gather(rows)
        said = work.net.classify(model, work.net.features(model, x)).argmax(1)
        return float((said == y).double().mean())

    class Watch:
        def start(self, rounds, resumed_at):
            pass

        def end(self, status):
            pass

        def log(self, round, metrics, seconds):
            server, store = work.progress.server, work.progress.store
            if not store.initial["params"]:
                return
            for client in range(5):
                model = {**server.params, **store.get(client)["params"]}
                if (now := accuracy(model, client)) > best[client]:
                    best[client], kept[client] = now, model
            mean = {n: torch.stack([model[n] for model in kept]).double().mean(0).float() for n in server.params}
            found.append(np.mean([accuracy({**kept[c], **mean}, c) for c in range(5)]))

    history = work.run(Watch()).history
    return found, history, best


@pytest.mark.parametrize("case", [{}, {"global_layers": ["body.3"]}, {"fedavg_rounds": 3}])
def test_are_the_released_codes(case):
    found, history, best = reference(_settings(), **case)
    rows = [row[KEY] for row in history if KEY in row]
    assert len(rows) == 6 - case.get("fedavg_rounds", 0)  # of stage 1 there is nothing of the clients' own
    assert rows == pytest.approx(found)
    summary = summarise(history, 1)
    assert summary[f"best/{KEY}"] == max(found)
    means = [row["personal/test/client_mean"] for row in history]
    assert summary["best/personal/test/client_mean"] == max(means)
    assert summary["personal/test/client_mean"] == means[-1]  # the last round's
    assert len({round(value, 6) for value in found}) > 1
    assert np.mean(best) >= max(means[case.get("fedavg_rounds", 0) :]) - 1e-12


@pytest.mark.parametrize(
    ("own", "add"),
    [({"auxiliary": "supervised"}, {}), ({}, {"adversary": {"strength": 0.2}}), ({}, {"dbe": {"kappa": 0.0}})],
)
def test_none_is_of_the_first_stage_whatever_else_is_personal(own, add):
    """An auxiliary head, an adversary or a bias that clients have from the first round makes no model its own."""
    composed = toys.composition("lg_fedavg", add, fedavg_rounds=3, **own)
    progress = toys.run(composed, **_settings(participation=1.0))
    assert [KEY in row for row in progress.history] == [False] * 3 + [True] * 3
    assert progress.snapshots.rounds.min() >= 3


def test_without_anything_shared_they_are_every_clients_best_round():
    """So for training alone, the paper's local-only line, each client's own best accuracy counts, and never falls."""
    progress = toys.run(toys.composition("local"), **_settings(participation=1.0))
    rows = [row[KEY] for row in progress.history]
    assert rows == sorted(rows)
    assert progress.snapshots.accuracies.mean() == pytest.approx(rows[-1])
    assert rows[-1] >= max(row["personal/test/client_mean"] for row in progress.history)


def test_they_change_nothing_else():
    plain, taken = (toys.run(toys.composition("lg_fedavg"), **_settings(best_on_test=on)) for on in (False, True))
    assert toys.equal(plain.server.params, taken.server.params)
    assert plain.snapshots is None
    kept = [{k: v for k, v in row.items() if not k.startswith("best_on_test/")} for row in taken.history]
    assert kept == plain.history


@pytest.mark.parametrize("name", ["fedavg", "fedavg_ft"])
def test_there_are_none_where_clients_have_nothing_of_their_own(name):
    assert all(KEY not in row for row in toys.run(toys.composition(name), **_settings()).history)


@pytest.mark.parametrize("name", ["ditto", "fedbn"])
def test_a_second_model_and_personal_normalisation_are_taken_along(name):
    image = name == "fedbn"
    model = {"name": "cnn", "channels": [3, 4], "hidden": 5, "norm": "batch"} if image else None
    own = {"strength": 0.5} if name == "ditto" else {}
    settings = _settings(last_batch="wrap", participation=1.0)
    fed, net = toys.federation(image=image), toys.net(model, image=image)
    work = toys.training(toys.composition(name, **own), fed, net, **settings)
    rows = work.run().history
    assert all(row[KEY] > 0 for row in rows)
    if name == "ditto":  # its own model, nothing of which is shared
        assert rows[-1][KEY] == pytest.approx(work.progress.snapshots.accuracies.mean())


@pytest.mark.parametrize("store", ["memory", "disk"])
@pytest.mark.parametrize("stage", [0, 3])
def test_a_resumed_run_has_the_same(tmp_path, stage, store):
    checkpoint = Checkpoint(tmp_path / "run.safetensors", "key")
    settings = _settings(rounds=7, checkpoint_every=2, store=store)
    assert_resumes(lambda: toys.training(toys.composition("lg_fedavg", fedavg_rounds=stage), **settings), checkpoint)


def test_shared_layers_are_kept_once_a_round_and_no_longer_than_needed():
    progress = toys.run(toys.composition("lg_fedavg"), **_settings(rounds=12, participation=1.0))
    assert set(progress.snapshots.shared) == set(progress.snapshots.rounds.tolist())
    assert len(progress.snapshots.shared) <= 5
