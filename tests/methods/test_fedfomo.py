"""FedFomo against its Algorithm 1 in plain loops, and its reduction to Local."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.data.federation import Federation
from fedcore.data.partitions import PartitionTable
from fedcore.engine.checks import check_training
from fedcore.methods.fedfomo import FedFomo
from fedcore.seeds import stream
from fedcore.types import Population
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]
N = 5


def _validation_loss(fed, client, model):
    """On every other validation row; the others are evaluation's."""
    index, data = fed.rows(client, "val")[0::2], fed.dataset
    x, y = torch.from_numpy(np.array(data.inputs[index])).double(), torch.from_numpy(data.labels[index])
    return float(cross_entropy(twins.classify(model, twins.features(model, x)), y))


def _picks(affinity, round, seed, epsilon, decay, models):
    """The largest affinities, ties by lot; or, by a coin, the first of the lot."""
    generator = stream(seed, "server", round)
    lots, coins = generator.random((N, N)), generator.random((N, 1))
    picks = []
    for i in range(N):
        by_lot = sorted(range(N), key=lambda n, i=i: lots[i, n])
        best = sorted(by_lot, key=lambda n, i=i: -affinity[i][n])
        picks.append((by_lot if coins[i, 0] < epsilon * decay**round else best)[:models])
    return picks


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("epsilon", [0.0, 0.6])
def test_equals_the_papers_algorithm(executor, epsilon):
    rounds, decay, count, fed = 4, 0.9, 3, toys.federation()
    work = toys.training(
        toys.composition("fedfomo", models=count, epsilon=epsilon, epsilon_decay=decay),
        fed,
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
        rounds=rounds,
    )
    theta = [{n: p.clone() for n, p in work.initial.items()} for _ in range(N)]
    old, bank = [dict(t) for t in theta], [dict(t) for t in theta]
    affinity = [[float(i == n) for n in range(N)] for i in range(N)]
    picks, mixes = [[(i + k) % N for k in range(count)] for i in range(N)], 0
    for round in range(rounds):
        clients = work._cohort(round).clients
        sent = [dict(t) for t in bank]
        for i in clients:
            before, weights = _validation_loss(fed, i, old[i]), {}
            for n in picks[i]:
                distance = sum(((sent[n][k] - old[i][k]) ** 2).sum() for k in old[i]) ** 0.5
                weights[n] = max(0.0, (before - _validation_loss(fed, i, sent[n])) / (float(distance) + 1e-5))
                affinity[i][n] += weights[n]
            if (total := sum(weights.values())) > 0:
                theta[i] = {
                    k: old[i][k] + sum(w / total * (sent[n][k] - old[i][k]) for n, w in weights.items()) for k in old[i]
                }
                mixes += sum(w > 0 for w in weights.values()) > 1
            old[i], y = theta[i], twins.leaves(theta[i])
            for inputs, labels in twins.batches(work, i, round):
                g = twins.slopes(cross_entropy(twins.classify(y, twins.features(y, inputs)), labels), y)
                y = twins.leaves({n: y[n] - 0.1 * g[n] for n in y})
            theta[i] = bank[i] = {n: p.detach() for n, p in y.items()}
        picks = _picks(affinity, round, work.seed, epsilon, decay, count)
    assert mixes > 0
    progress = work.run()
    state = progress.server.state["method"]
    for i in range(N):
        assert toys.distance(progress.store.get(i)["params"], theta[i]) < 1e-9
        assert toys.distance({n: p[i] for n, p in state["bank"].items()}, bank[i]) < 1e-9
    torch.testing.assert_close(state["affinity"], torch.tensor(affinity, dtype=torch.float64), rtol=0, atol=1e-9)
    assert state["picks"].tolist() == picks


@pytest.mark.parametrize("executor", EXECUTORS)
def test_with_itself_alone_it_is_local_training_bit_for_bit(executor):
    settings = {"executor": executor, "momentum": 0.9}
    ours = toys.run(toys.composition("fedfomo", models=1, epsilon=0.0), **settings)
    alone = toys.run(toys.composition("local"), **settings)
    assert ours.server.state["method"]["picks"].tolist() == [[0], [1], [2], [3], [4]]
    assert float(ours.server.state["method"]["affinity"].trace()) > 5  # it did weigh itself
    for i in range(N):
        assert toys.equal(ours.store.get(i)["params"], alone.store.get(i)["params"])


def test_traffic_is_m_models_down_and_one_and_m_scalars_up():
    progress = toys.run(toys.composition("fedfomo", models=3), participation=0.6)
    assert progress.download_bytes == 3 * 3 * 3 * 219 * 4
    assert progress.upload_bytes == 3 * 3 * (219 + 3) * 4
    assert not any(name.startswith("global") for name in progress.history[-1])


def test_more_models_than_clients_are_all_of_them():
    progress = toys.run(toys.composition("fedfomo", models=50))
    assert progress.download_bytes == 3 * 5 * 5 * 219 * 4
    assert all(sorted(row) == [0, 1, 2, 3, 4] for row in progress.server.state["method"]["picks"].tolist())


def test_who_never_took_part_stays_as_it_was():
    work = toys.training(toys.composition("fedfomo"), participation=0.2, rounds=4)
    seen = {c for r in range(4) for c in work._cohort(r).clients}
    progress = work.run()
    assert set(progress.store.clients) == seen < set(range(N))
    stranger = min(set(range(N)) - seen)
    bank = progress.server.state["method"]["bank"]
    assert toys.equal({n: p[stranger] for n, p in bank.items()}, work.net.initial_params)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_client_without_validation_examples_trains_alone(executor):
    fed = toys.federation()
    owner, split = np.empty(len(fed.dataset.labels), np.int32), np.empty(len(fed.dataset.labels), np.int8)
    for i in range(N):
        for code, name in enumerate(("train", "test", "val")):
            owner[fed.rows(i, name)], split[fed.rows(i, name)] = i, code
    split[fed.rows(1, "val")] = 1
    fed = Federation(fed.dataset, PartitionTable(owner, split, N, 0, "{}"))
    ours = toys.run(toys.composition("fedfomo"), fed, executor=executor)
    alone = toys.run(toys.composition("local"), fed, executor=executor)
    assert toys.equal(ours.store.get(1)["params"], alone.store.get(1)["params"])
    assert not toys.equal(ours.store.get(0)["params"], alone.store.get(0)["params"])
    affinity = ours.server.state["method"]["affinity"]
    assert affinity[1].tolist() == [0, 1, 0, 0, 0]
    assert torch.isfinite(affinity).all()


def test_what_it_fits_to_is_not_what_it_is_scored_on():
    """Validation figures are of the rows that no weight was fitted to; other methods' of all, tests' of all tests."""
    fed = toys.federation()
    work = toys.training(toys.composition("fedfomo"), fed, dtype=torch.float64)
    progress, data = work.run(), fed.dataset
    assert [len(fed.rows(i, "val")) for i in range(N)] == [4] * N
    for split, first, step in (("val", 1, 2), ("test", 0, 1)):
        for i in range(N):
            index, model = fed.rows(i, split)[first::step], progress.store.get(i)["params"]
            x, y = torch.from_numpy(np.array(data.inputs[index])).double(), torch.from_numpy(data.labels[index])
            loss = float(cross_entropy(twins.classify(model, twins.features(model, x)), y, reduction="sum"))
            assert progress.last[split].loss[i] == pytest.approx(loss, abs=1e-9)
            assert progress.last[split].examples[i] == len(index)
    assert toys.run(toys.composition("local"), fed).last["val"].examples.tolist() == [4] * N


def test_models_that_learnt_nothing_do_no_better_on_validation_than_on_test():
    """Labels without meaning: choosing mixtures by the rows they are scored on would lift validation accuracy alone."""
    fed = toys.federation((6,) * 40)
    labels = stream(1, "noise").integers(0, 3, len(fed.dataset.labels))
    owner, split = np.empty(len(labels), np.int32), np.empty(len(labels), np.int8)
    for i in range(40):
        for code, name in enumerate(("train", "test", "val")):
            owner[fed.rows(i, name)], split[fed.rows(i, name)] = i, code
    fed = Federation(replace(fed.dataset, labels=labels), PartitionTable(owner, split, 40, 0, "{}"))
    rows = toys.run(toys.composition("fedfomo", models=20, epsilon=1.0), fed, rounds=10, lr=0.3).history
    lead = np.mean([row["personal/val/accuracy"] - row["personal/test/accuracy"] for row in rows])
    assert lead < 0.05


def test_with_one_validation_row_each_it_fits_to_that_and_takes_the_last_round():
    fed = toys.federation()
    owner, split = np.empty(len(fed.dataset.labels), np.int32), np.empty(len(fed.dataset.labels), np.int8)
    for i in range(N):
        for code, name in enumerate(("train", "test", "val")):
            owner[fed.rows(i, name)], split[fed.rows(i, name)] = i, code
        split[fed.rows(i, "val")[1:]] = 1
    fed = Federation(fed.dataset, PartitionTable(owner, split, N, 0, "{}"))
    progress = toys.run(toys.composition("fedfomo"), fed)
    assert "personal/val/accuracy" not in progress.history[-1]
    assert progress.selected["personal"].round == 2
    assert float(progress.server.state["method"]["affinity"].sum()) > N  # it did weigh models


def test_prox_holds_near_the_model_before_mixing():
    """In a round of one step the term pulls what was mixed back to what the client had."""
    mu, mixes = 0.5, 0
    composed = toys.composition("fedfomo", {"prox": {"mu": mu}}, epsilon=0.0)
    work = toys.training(composed, dtype=torch.float64, batch_size=31)
    progress = work.run()
    for outcome in work._local(range(N), 3, composed.phases(work.train), "batches"):
        before, mixed = progress.store.get(outcome.client)["params"], outcome.state["method"]["old"]
        mixes += toys.distance(mixed, before) > 1e-3
        w = twins.leaves(mixed)
        inputs, labels = next(twins.batches(work, outcome.client, 3))
        g = twins.slopes(cross_entropy(twins.classify(w, twins.features(w, inputs)), labels), w)
        expected = {n: mixed[n] - 0.1 * (g[n] + mu * (mixed[n] - before[n])) for n in mixed}
        assert toys.distance(outcome.params, expected) < 1e-12
    assert mixes > 0


def test_a_bank_too_large_is_refused():
    """A hidden layer of 44,443 units has (5 + 1 + 3) * 44,443 + 3 = 399,990 parameters: 10,000 models are 4e9 - 1e5."""
    net = toys.net({"name": "mlp", "hidden": [44_443]})
    with pytest.raises(ValueError, match=r"10001 clients x 399990 parameters are more .* use at most 10000 clients"):
        FedFomo().init_server(net, net.initial_params, _population(10_001))


def test_more_clients_than_can_be_ranked_are_refused():
    net = toys.net()
    with pytest.raises(ValueError, match=r"^fedfomo ranks .*: 20001 clients are more than it can; use at most 20000 "):
        FedFomo().init_server(net, net.initial_params, _population(20_001))


def test_newcomers_are_refused_before_anything_trains():
    fed = toys.federation(unseen=2)
    work = toys.training(toys.composition("fedfomo"), fed, newcomer_rounds=4)
    with pytest.raises(ValueError, match=r"^methods\.toy: train\.newcomer_rounds is 4, but fedfomo .* use 0, or anoth"):
        check_training("toy", work.composition, work.net, work.train, fed, frozenset({"virtual", "pseudo"}))


def _population(clients):
    return Population(clients, torch.ones(3), stream(0, "server"))


def test_only_clients_that_train_download(monkeypatch):
    """And one to count the bytes by: an evaluation scores the models that clients keep."""
    send, asked = FedFomo.download, []

    def download(self, server, client):
        asked.append(client)
        return send(self, server, client)

    monkeypatch.setattr(FedFomo, "download", download)
    toys.run(toys.composition("fedfomo"), rounds=2)
    assert asked == [0, 0, 1, 2, 3, 4] * 2
