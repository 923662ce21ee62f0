"""Clients' own models scored together against one by one."""

import threading

import numpy as np
import pytest
import torch

from fedcore.engine import evaluate, stacked_scores
from fedcore.engine.evaluate import SPLITS
from tests import toys
from tests.engine.test_executors import MODELS

COMPOSED = {
    "local": ("local", {}),  # nothing is shared
    "fedrep": ("fedrep", {}),  # heads of their own on one body
    "fedavg_ft": ("fedavg_ft", {}),  # adapted before
    "vhl": ("local", {"vhl": {"virtual_batch": 5, "variant": "naive"}}),  # other readings of the logits
    "dbe": ("fedavg", {"dbe": {}}),  # a forward pass of its own
}


class _Ragged:
    """The toy federation, of whose clients some keep no row at all, or none of a split."""

    def __init__(self, federation, counts=None):
        self.dataset = federation.dataset
        self._counts = counts or {"val": (0, 4, 0, 1, 3), "test": (1, 6, 0, 5, 0)}
        self._rows = federation.rows

    def rows(self, client, split):
        return self._rows(client, split)[: self._counts[split][client]]


def _scores(work, together, *, ragged=False):
    scorer = work.scorer
    if ragged:
        scorer.federation = _Ragged(work.federation)
    scorer._together = together
    models = work._own_models(range(5), 1, work.composition.method.adapt_phases(work.train))
    return scorer.own(models)


def _agree(one, other):
    for split in SPLITS:
        assert one[split].examples.tolist() == other[split].examples.tolist()
        assert one[split].correct.tolist() == other[split].correct.tolist()
        np.testing.assert_allclose(one[split].loss, other[split].loss, rtol=0, atol=1e-9)
        assert one[split].readings.keys() == other[split].readings.keys()
        for name, correct in one[split].readings.items():
            assert correct.tolist() == other[split].readings[name].tolist()


@pytest.fixture
def small_chunks(monkeypatch):
    """Three rows of a client at a time, and seven of all: passes of several sizes, the last ones padded."""
    monkeypatch.setattr(stacked_scores, "_CHUNK", 3)
    monkeypatch.setattr(stacked_scores, "_ROWS", 7)


@pytest.mark.parametrize("name", COMPOSED)
def test_together_is_one_by_one(name, small_chunks):
    method, add = COMPOSED[name]
    work = toys.training(toys.composition(method, add), dtype=torch.float64)
    work.run()
    one, other = _scores(work, 1), _scores(work, 4)
    _agree(one, other)
    assert len(set(one["test"].correct.tolist())) > 1
    assert one["test"].examples.tolist() == [6] * 5
    assert bool(one["test"].readings) == (name == "vhl")


@pytest.mark.parametrize("model", MODELS)
def test_together_is_one_by_one_for_models_and_clients_of_every_size(model, small_chunks):
    section, image, extra = MODELS[model]
    fed = toys.federation(image=image)
    work = toys.training(
        toys.composition("local"), fed, toys.net(section, image=image), dtype=torch.float64, rounds=1, **extra
    )
    work.run()
    one, other = (_scores(work, together, ragged=True) for together in (1, 5))
    _agree(one, other)
    assert other["val"].examples.tolist() == [0, 4, 0, 1, 3]
    assert other["test"].examples.tolist() == [1, 6, 0, 5, 0]


@pytest.mark.parametrize("counts", [(0, 0, 4, 4, 3), (4, 4, 0, 0, 3), (0, 0, 0, 0, 0)])
def test_a_group_without_rows_has_the_same_readings(counts):
    """Clients go two by two; one by one they have had them all along."""
    work = toys.training(toys.composition(*COMPOSED["vhl"]), dtype=torch.float64, rounds=1)
    work.run()
    work.scorer.federation = _Ragged(work.federation, {"val": (0,) * 5, "test": counts})
    one, other = _scores(work, 1), _scores(work, 2)
    _agree(one, other)
    assert other["test"].examples.tolist() == list(counts)
    assert "natural" in other["test"].readings


def test_models_that_do_not_fit_are_scored_fewer_at_a_time(monkeypatch):
    work = toys.training(toys.composition("local"), dtype=torch.float64)
    work.run()
    whole = _scores(work, 5)
    score, seen = stacked_scores.score_rows, []

    def limited(forward, read, examples, models, rows):
        seen.append(len(models))
        if len(models) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return score(forward, read, examples, models, rows)

    monkeypatch.setattr("fedcore.engine.evaluate.score_rows", limited)
    _agree(whole, _scores(work, 5))
    assert seen == [5, 2, 2]  # and the last one alone


def _never(*args):
    raise AssertionError("copied together")


@pytest.mark.parametrize("case", ["large", "cnn", "vhl"])
def test_large_and_convolving_models_go_one_by_one_through_rows_of_several_on_a_cpu(case, monkeypatch):
    """Eight rows at a time, of as many clients as have them; a client's own scores are not moved by a bit."""
    section, image, _ = MODELS["cnn"] if case == "cnn" else ({"name": "mlp", "hidden": [200, 200]}, False, {})
    add = {"vhl": {"virtual_batch": 5, "variant": "naive"}} if case == "vhl" else {}
    fed = toys.federation(image=image)
    net = toys.net(section, image=image, classes=6 if add else 3)
    work = toys.training(toys.composition("local", add), fed, net, rounds=1)
    work.run()
    monkeypatch.setattr("fedcore.engine.evaluate.score_rows", _never)
    monkeypatch.setattr("fedcore.engine.evaluate._CHUNK", 8)
    examples, gathered = work.scorer.examples, []
    gather = examples.gather
    monkeypatch.setattr(examples, "gather", lambda rows: gathered.append(len(rows)) or gather(rows))
    one = _scores(work, 1, ragged=True)
    assert sum(gathered) == 20
    alone = len(gathered)
    gathered.clear()
    several = _scores(work, 5, ragged=True)
    assert sum(gathered) == 20
    assert max(gathered) <= 8
    assert len(gathered) < alone
    for split in SPLITS:
        assert one[split].loss.tolist() == several[split].loss.tolist()
        assert one[split].correct.tolist() == several[split].correct.tolist()
        for name, correct in one[split].readings.items():
            assert correct.tolist() == several[split].readings[name].tolist()


def test_how_many_models_are_held_goes_by_their_size(monkeypatch):
    def fitting(model):
        work = toys.training(toys.composition("local"), model=toys.net(model))
        return work.scorer._fitting(next(work._own_models([0], 0, ())))

    assert fitting(None) == 64
    assert fitting({"name": "mlp", "hidden": [1100, 1000]}) == 2**26 // (4 * (6 * 1100 + 1101 * 1000 + 1001 * 3))
    monkeypatch.setattr(evaluate, "_BYTES_ON_CPU", 1000)
    assert fitting({"name": "mlp", "hidden": [1100, 1000]}) == 1


def test_what_clients_share_does_not_make_their_models_large(monkeypatch):
    """Heads of 21 numbers on one body go through their rows together, or one by one where 84 bytes are much."""
    work = toys.training(toys.composition("fedrep"), rounds=1)
    work.run()
    monkeypatch.setattr(evaluate, "_SMALL", 84)
    one = _scores(work, 5)
    monkeypatch.setattr(evaluate, "score_rows", _never)
    with pytest.raises(AssertionError, match="copied together"):
        _scores(work, 5)
    monkeypatch.setattr(evaluate, "_SMALL", 83)
    np.testing.assert_allclose(one["test"].loss, _scores(work, 5)["test"].loss, atol=1e-5)


@pytest.mark.parametrize("model", [None, {"name": "cnn", "channels": [2, 3], "hidden": 8}])
@pytest.mark.parametrize("name", COMPOSED)
def test_threads_change_nothing(name, model, small_chunks):
    method, add = COMPOSED[name]
    found = []
    for workers in (1, 3):
        net = None if model is None else toys.net(model, image=True, classes=6 if add.get("vhl") else 3)
        work = toys.training(toys.composition(method, add), toys.federation(image=model is not None), net)
        work.scorer.workers = workers
        found.append(_scores(work, 2, ragged=True))
    for split in SPLITS:
        one, other = (scores[split] for scores in found)
        assert one.examples.tolist() == other.examples.tolist()
        assert one.correct.tolist() == other.correct.tolist()
        assert one.loss.tolist() == other.loss.tolist()


def test_few_models_wait_for_a_thread():
    """However slow a thread is: each holds a model of its own."""
    work, pulled, finished = toys.training(toys.composition("local")), threading.Event(), []
    scorer, own = work.scorer, work.scorer._own
    scorer.workers, scorer._together = 2, 1

    def models():
        for number, model in enumerate(work._own_models(range(5), 1, ())):
            if number == 2:
                pulled.set()  # two are under way and a third may wait
            assert number < 3 or 0 in finished
            yield model

    def slow(group):
        assert pulled.wait(60)
        scores = own(group)
        finished.append(group[0].client)
        return scores

    scorer._own = slow
    assert len(scorer.own(models())["test"].examples) == 5
    assert sorted(finished) == [0, 1, 2, 3, 4]


def test_threads_are_for_calls_that_are_long(monkeypatch):
    """42,000 parameters on 10 rows of a client are not; nor do threads change what is found."""
    work = toys.training(toys.composition("local"), model=toys.net({"name": "mlp", "hidden": [200, 200]}))
    work.scorer.workers = 2
    used, side_by_side = [], work.scorer._side_by_side
    monkeypatch.setattr(work.scorer, "_side_by_side", lambda queue: used.append(True) or side_by_side(queue))
    one = _scores(work, 2)
    assert not used
    monkeypatch.setattr(evaluate, "_LONG", 1000)
    other = _scores(work, 2)
    assert used
    assert one["test"].loss.tolist() == other["test"].loss.tolist()


def test_the_servers_model_is_scored_on_threads_where_a_pass_is_long(monkeypatch):
    work = toys.training()
    monkeypatch.setattr(evaluate, "_CHUNK", 7)
    pools, threads = [], evaluate._threads
    monkeypatch.setattr(evaluate, "_threads", lambda workers: pools.append(workers) or threads(workers))
    work.scorer.workers = 2

    def scores():
        return work.scorer.shared(work.initial, {}, range(5), "test")

    one = scores()
    assert not pools
    monkeypatch.setattr(evaluate, "_LONG", 1000)
    other = scores()
    assert pools == [2]
    assert one.loss.tolist() == other.loss.tolist()
    assert one.correct.tolist() == other.correct.tolist()
