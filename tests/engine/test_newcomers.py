"""Rounds after the training: clients never trained on join; and options that reach across a client's rounds."""

import numpy as np
import pytest
import torch

from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.ensemble import ensemble
from fedcore.engine.local import Outcome
from fedcore.methods.base import named
from tests import toys
from tests.engine.test_resume import assert_resumes
from tests.methods import twins
from tests.methods.cases import METHODS

EXECUTORS = ["serial", "stacked"]


def test_newcomers_take_part_alone_or_with_a_share_of_the_others():
    fed = toys.federation(unseen=2)
    for share, others in ((0.0, 0), (0.67, 2)):
        work = toys.training(None, fed, newcomer_rounds=3, newcomer_participation=share)
        assert work._cohort(2).clients == (0, 1, 2)
        clients = work._cohort(3).clients
        assert clients[-2:] == (3, 4)
        assert len(clients) == 2 + others
        assert sum(work._cohort(3).weights) == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["fedavg", "lg_fedavg"])
def test_newcomers_learn_and_are_scored_apart(method):
    fed = toys.federation(unseen=1)
    progress = toys.run(toys.composition(method), fed, rounds=2, newcomer_rounds=6, lr=0.3)
    rows = {row["round"]: row for row in progress.history}
    assert sorted(rows) == list(range(1, 9))
    assert "newcomer/test/loss" not in rows[2]
    assert rows[8]["train/loss"] < rows[3]["train/loss"] / 2
    assert rows[8]["newcomer/test/loss"] != rows[3]["newcomer/test/loss"]
    assert progress.participations.tolist() == [2, 2, 2, 2, 6]
    if method == "lg_fedavg":
        # The old clients' bodies stay as they were; only the head they share went on.
        earlier = toys.run(toys.composition(method), fed, rounds=2, lr=0.3)
        assert torch.equal(
            progress.store.get(0)["params"]["body.1.weight"], earlier.store.get(0)["params"]["body.1.weight"]
        )
        assert not torch.equal(progress.server.params["head.weight"], earlier.server.params["head.weight"])


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"fedfomo"}))
def test_every_method_but_fedfomo_takes_newcomers(name):
    fed, case = toys.federation(unseen=2), METHODS[name]
    work = toys.training(
        toys.composition(case.method, case.add, **case.settings),
        fed,
        rounds=1,
        newcomer_rounds=1,
        newcomer_participation=0.5,
    )
    work.composition.check(work.net, work.train)
    assert work.run().participations.tolist()[3:] == [1, 1]


@pytest.mark.parametrize("stage", [0, 1])
def test_newcomers_start_with_a_representation_of_the_servers_of_the_others_or_a_new_one(stage):
    """LG-FedAvg's body: the server's last one is stage 1's, or the initial one where there was no stage 1."""
    fed, name = toys.federation(unseen=1), "body.1.weight"
    settings = {"rounds": 3, "participation": 0.67, "dtype": torch.float64}
    started, after = {}, {}
    for start in ("server", "mean", "initial"):
        composed = toys.composition("lg_fedavg", fedavg_rounds=stage)
        work = toys.training(composed, fed, newcomer_start=start, **settings)
        store = work.run().store
        if start != "server":
            work._welcome()
        started[start] = store.get(4)["params"][name]
        joined = toys.run(composed, fed, newcomer_start=start, newcomer_rounds=1, **settings)
        after[start] = joined.store.get(4)["params"][name]
    server = toys.run(None, fed, weighting="uniform", **{**settings, "rounds": 1}).server.params[name]
    mean = sum(store.get(i)["params"][name] for i in range(4)) / 4
    torch.testing.assert_close(started["server"], server if stage else work.initial[name], rtol=0, atol=1e-12)
    torch.testing.assert_close(started["mean"], mean, rtol=0, atol=1e-12)
    assert torch.equal(started["initial"], work.initial[name])
    assert not torch.equal(after["mean"], after["server"])  # it is what they learn from
    assert torch.equal(after["initial"], after["server"]) == (stage == 0)


def test_what_newcomers_start_with_survives_an_interruption(tmp_path):
    fed, checkpoint = toys.federation(unseen=1), Checkpoint(tmp_path / "run.safetensors", "key")
    settings = {"rounds": 3, "newcomer_rounds": 4, "newcomer_start": "mean", "checkpoint_every": 2}
    assert_resumes(lambda: toys.training(toys.composition("lg_fedavg"), fed, **settings), checkpoint)


@pytest.mark.parametrize("add", [{}, {"dbe": {"kappa": 0.0}}])
@pytest.mark.parametrize("name", ["fedavg", "ditto", "pfedme"])
def test_unseen_clients_use_the_servers_model(name, add):
    """As a service answers them, also where the training clients have a second model of their own."""
    fed = toys.federation(unseen=1)
    work = toys.training(toys.composition(name, add, **METHODS[name].settings), fed, dtype=torch.float64, lr=0.2)
    progress = work.run()
    server = {n: p.detach() for n, p in progress.server.params.items()}
    for split in ("val", "test"):
        rows = fed.rows(4, split)
        said = twins.classify(server, twins.features(server, torch.from_numpy(fed.dataset.inputs[rows]).double()))
        labels = torch.from_numpy(fed.dataset.labels[rows])
        loss = float(torch.nn.functional.cross_entropy(said, labels))
        assert progress.history[-1][f"unseen/{split}/loss"] == pytest.approx(loss, abs=1e-9)
        right = float((said.argmax(1) == labels).double().mean())
        assert progress.history[-1][f"unseen/{split}/accuracy"] == pytest.approx(right)
        assert progress.last[split].examples.tolist() == [len(fed.rows(c, split)) for c in range(5)]


@pytest.mark.parametrize("start", ["server", "initial"])
def test_a_newcomers_second_model_starts_at_the_servers(start):
    """Ditto's, with nothing that holds it: one epoch of SGD from the server's model, or from the initial one."""
    fed, composed = toys.federation(unseen=1), toys.composition("ditto", strength=0.0)
    settings = {"dtype": torch.float64, "newcomer_start": start}
    before = toys.run(composed, fed, **settings).server.params
    work = toys.training(composed, fed, newcomer_rounds=1, **settings)
    model = twins.leaves(before if start == "server" else work.net.initial_params)
    for inputs, labels in twins.batches(work, 4, 3):
        loss = torch.nn.functional.cross_entropy(twins.classify(model, twins.features(model, inputs)), labels)
        slopes = twins.slopes(loss, model)
        model = twins.leaves({n: p - 0.1 * slopes[n] for n, p in model.items()})
    own = named(work.run().store.get(4)["params"], "own.")
    assert toys.distance(own, {n: p.detach() for n, p in model.items()}) < 1e-12


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_learning_rate_can_decay_with_a_clients_own_participations(executor):
    """A client that took part before steps lr * decay times as far as one that did not, along the same gradient."""
    work = toys.training(
        executor=executor, lr_decay=0.5, lr_decay_by="participation", batch_size=31, dtype=torch.float64
    )
    work.progress.participations[1] = 2
    phases = work.composition.phases(work.train)
    moved = {}
    for participations in (0, 2):
        work.progress.participations[1] = participations
        outcome = list(work._local([0, 1], 0, phases, "batches"))[1]
        moved[participations] = {n: outcome.params[n] - p for n, p in work.initial.items()}
    assert toys.distance({n: 0.25 * m for n, m in moved[0].items()}, moved[2]) < 1e-15
    assert max(float(m.abs().max()) for m in moved[0].values()) > 1e-3


@pytest.mark.parametrize("executor", EXECUTORS)
def test_kept_momentum_goes_on_in_the_next_round(executor):
    """One client alone: two rounds of one epoch with kept momentum are one optimiser over both epochs' batches."""
    fed = toys.federation((20,))
    settings = {"momentum": 0.9, "rounds": 2, "executor": executor, "dtype": torch.float64}
    work = toys.training(None, fed, momentum_state="kept", **settings)
    params = {n: p.clone().requires_grad_() for n, p in work.initial.items()}
    optimiser = torch.optim.SGD(params.values(), lr=0.1, momentum=0.9)
    for round in range(2):
        (job,) = work._jobs([0], round, work.composition.phases(work.train), "batches")
        schedule = job.schedules[0]
        for positions, length in zip(schedule.positions, schedule.lengths, strict=True):
            x, y = work.examples.gather(job.rows[positions[:length]])
            loss = torch.nn.functional.cross_entropy(work.net.classify(params, work.net.features(params, x)), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    reached = work.run().server.params
    assert toys.distance(reached, {n: p.detach() for n, p in params.items()}) < 1e-12
    assert toys.distance(reached, toys.run(None, fed, **settings).server.params) > 1e-3


def _outcomes(work, models):
    return [Outcome(c, m, {}, {}, {}, torch.zeros(()), 0) for c, m in enumerate(models)]


def test_an_ensemble_of_equal_models_is_the_model():
    work = toys.training()
    one = work.initial
    expected = work.scorer.shared(one, {}, range(5), "test").pooled()["accuracy"]
    found = ensemble(work.scorer, _outcomes(work, [one] * 4), range(5))
    assert {found[f"ensemble/test/accuracy{kind}"] for kind in ("", "_majority", "_weights", "_geometric")} == {
        expected
    }


def test_an_ensemble_of_one_model_is_the_model():
    work = toys.training()
    expected = work.scorer.shared(work.initial, {}, range(5), "val").pooled()["accuracy"]
    found = ensemble(work.scorer, _outcomes(work, [work.initial]), range(5))
    assert {value for name, value in found.items() if "/val/" in name} == {expected}


def test_an_ensemble_averages_votes_and_weights():
    """Three models that say 0, 0, 1 with certainties that make the mean probability say 1; a vote says 0."""
    work = toys.training(None, None, toys.net({"name": "softmax_regression"}))
    shape = work.initial["head.weight"].shape

    def constant(logits):
        return {"head.weight": torch.zeros(shape), "head.bias": torch.tensor(logits)}

    models = [constant([0.1, 0.0, -9.0])] * 2 + [constant([-9.0, 9.0, -9.0])]
    rows = np.concatenate([work.federation.rows(c, "test") for c in range(5)])
    share = [float((work.federation.dataset.labels[rows] == c).mean()) for c in range(3)]
    found = ensemble(work.scorer, _outcomes(work, models), range(5))
    # Probabilities of class 1: 0.475, 0.475, 1; of class 0: 0.525, 0.525, 0. Mean logits: (-2.9, 3, -9).
    assert found["ensemble/test/accuracy_geometric"] == pytest.approx(share[1])
    assert found["ensemble/test/accuracy"] == pytest.approx(share[1])
    assert found["ensemble/test/accuracy_majority"] == pytest.approx(share[0])
    assert found["ensemble/test/accuracy_weights"] == pytest.approx(share[1])
    assert share[0] != share[1]


def test_means_of_probabilities_and_of_their_logarithms_can_differ():
    """Two models sure of class 0, one that rules it out: arithmetic means 0.6, 0.4; geometric ones 0.09, 0.40."""
    work = toys.training(None, None, toys.net({"name": "softmax_regression"}))

    def constant(*chances):
        zeros = torch.zeros(work.initial["head.weight"].shape)
        return {"head.weight": zeros, "head.bias": torch.log(torch.tensor(chances))}

    found = ensemble(
        work.scorer, _outcomes(work, [constant(0.899, 0.1, 0.001)] * 2 + [constant(1e-3, 0.998, 1e-3)]), range(5)
    )
    rows = np.concatenate([work.federation.rows(c, "test") for c in range(5)])
    share = [float((work.federation.dataset.labels[rows] == c).mean()) for c in range(3)]
    assert found["ensemble/test/accuracy"] == pytest.approx(share[0])
    assert found["ensemble/test/accuracy_geometric"] == pytest.approx(share[1])


def test_ensembles_are_scored_when_asked():
    progress = toys.run(toys.composition("local"), rounds=3, ensemble_every=2)
    assert ["ensemble/test/accuracy" in row for row in progress.history] == [False, True, True]
