"""Participation, traffic, memory, evaluation, export."""

import json

import numpy as np
import pytest
import torch

from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.export import load_predictor, model_bytes, personal_bytes
from fedcore.engine.summary import summarise
from fedcore.tracking import NullTracker
from fedcore.trees import flatten
from tests import toys


def test_cohorts_depend_on_seed_and_round_alone():
    work = toys.training(participation=0.4)
    drawn = [work._cohort(r).clients for r in range(20)]
    assert all(len(c) == 2 and list(c) == sorted(set(c)) for c in drawn)
    assert len(set(drawn)) > 5
    assert [toys.training(participation=0.4, lr=0.01)._cohort(r).clients for r in range(20)] == drawn
    assert [toys.training(participation=0.4, seed=1)._cohort(r).clients for r in range(20)] != drawn


def test_weights_are_shares_of_examples_or_equal():
    cohort = toys.training()._cohort(0)
    assert cohort.weights == pytest.approx([n / sum(toys.SIZES) for n in toys.SIZES])
    assert toys.training(weighting="uniform")._cohort(0).weights == pytest.approx([0.2] * 5)


@pytest.mark.parametrize("name", ["lg_fedavg", "fedbr", "scaffold"])
def test_a_method_has_its_papers_weights_unless_the_parameters_say_others(name):
    by_examples = [n / sum(toys.SIZES) for n in toys.SIZES]
    for weighting, expected in (("auto", [0.2] * 5), ("uniform", [0.2] * 5), ("examples", by_examples)):
        work = toys.training(toys.composition(name), weighting=weighting)
        assert work._cohort(0).weights == pytest.approx(expected)


@pytest.mark.parametrize("name", ["lg_fedavg", "fedbr", "scaffold"])
def test_a_set_up_round_weighs_by_examples_whatever_the_method_does(name):
    for weighting, expected in (("auto", [n / sum(toys.SIZES) for n in toys.SIZES]), ("uniform", [0.2] * 5)):
        work = toys.training(toys.composition(name, {"dbe": {}}), weighting=weighting)
        assert work._cohort(-1).weights == pytest.approx(expected)


def test_a_cohorts_share_is_of_the_clients_weight():
    for round in range(5):
        by_examples = toys.training(participation=0.4)._cohort(round)
        of_the_examples = sum(toys.SIZES[client] for client in by_examples.clients) / sum(toys.SIZES)
        assert by_examples.share == pytest.approx(of_the_examples)
        assert toys.training(participation=0.4, weighting="uniform")._cohort(round).share == pytest.approx(2 / 5)


def test_virtual_data_travel_once_to_a_client():
    """In the set-up round if there is one; to a newcomer, who has no part in that, in its own first round."""
    fed = toys.federation(unseen=1)
    addons = {"vhl": {"virtual_batch": 5}, "dbe": {"kappa": 0.0}}
    alone, set_up = (toys.training(toys.composition(add=dict(list(addons.items())[:n])), fed) for n in (1, 2))
    size = sum(t.numel() * t.element_size() for t in alone.resources["virtual"].values())
    before = [work._download_bytes((0,), 0) for work in (alone, set_up)]
    newcomers = [work._download_bytes((4,), 3) for work in (alone, set_up)]
    first = set_up._download_bytes((0,), -1)
    for work in (alone, set_up):
        work.progress.participations += 1
    after = [work._download_bytes((0,), 0) for work in (alone, set_up)]
    assert before == [after[0] + size, after[1]]
    assert first == after[1] + size
    assert newcomers == [n + size for n in after]


def test_traffic_is_counted_from_what_travels():
    """The MLP 5-16-6-3 has 5*16+16 + 16*6+6 + 6*3+3 = 219 parameters of 4 bytes; 3 of 5 clients, 3 rounds."""
    progress = toys.run(participation=0.6)
    assert progress.download_bytes == progress.upload_bytes == 219 * 4 * 3 * 3
    alone = toys.run(toys.composition("local"))
    assert alone.download_bytes == alone.upload_bytes == 0


def test_batch_norm_policies_decide_what_travels():
    fed = toys.federation(image=True)

    def train(policy):
        section = {"name": "cnn", "channels": [4, 6], "hidden": 16, "norm": "batch", "batch_norm": policy}
        return toys.run(None, fed, toys.net(section, image=True), last_batch="wrap", rounds=2)

    sync, stats, everything = train("sync"), train("local_stats"), train("local_all")
    assert len(sync.server.buffers) == 4
    assert not sync.store.clients
    assert not stats.server.buffers
    assert set(stats.store.get(0)["buffers"]) == set(sync.server.buffers)
    assert set(everything.store.get(0)["params"]) == {"body.1.weight", "body.1.bias", "body.5.weight", "body.5.bias"}
    assert sync.upload_bytes - stats.upload_bytes == 2 * 5 * 4 * 2 * (4 + 6)  # rounds, clients, bytes, mean+var
    assert stats.upload_bytes - everything.upload_bytes == 2 * 5 * 4 * 2 * (4 + 6)
    own = [stats.store.get(c)["buffers"]["body.1.running_mean"] for c in range(5)]
    assert not torch.equal(own[0], own[1])


def test_the_mean_of_the_running_statistics_is_weighted():
    fed = toys.federation(image=True)
    section = {"name": "cnn", "channels": [4, 6], "hidden": 16, "norm": "batch"}
    work = toys.training(None, fed, toys.net(section, image=True), last_batch="wrap", rounds=1)
    outcomes = list(work._local(range(5), 0, work.composition.phases(work.train), "batches"))
    expected = sum(o.buffers["body.1.running_var"] * n for o, n in zip(outcomes, toys.SIZES, strict=True)) / 71
    merged = work.run().server.buffers["body.1.running_var"]
    torch.testing.assert_close(merged, expected)
    assert not torch.allclose(merged, torch.ones(4))


def test_the_store_grows_with_the_clients_that_took_part():
    progress = toys.run(toys.composition("fedavg"))
    assert len(progress.store) == 0
    section = {"name": "cnn", "channels": [4, 6], "hidden": 16, "norm": "batch", "batch_norm": "local_all"}
    fed = toys.federation((9,) * 10, image=True)
    work = toys.training(None, fed, toys.net(section, image=True), last_batch="wrap", rounds=1, participation=0.2)
    assert len(work.run().store) == 2
    assert work.progress.participations.sum() == 2


def test_evaluation_changes_nothing():
    work = toys.training(toys.composition("fedavg_ft", epochs=3))
    work.run()
    before = {k: v.clone() for k, v in flatten(work.progress.server.tree()).items()}
    first = work._evaluate(2).metrics
    assert work._evaluate(2).metrics == first
    assert toys.equal(before, flatten(work.progress.server.tree()))


def test_personal_accuracy_pools_the_clients_and_the_global_view_agrees_for_fedavg():
    row = toys.run(None, toys.federation(unseen=1)).history[-1]
    assert row["global/test/accuracy"] == row["personal/test/accuracy"]
    assert 0 <= row["personal/test/worst_decile"] <= row["personal/test/client_mean"]
    assert "unseen/test/accuracy" in row


def test_unseen_clients_never_train():
    work = toys.training(None, toys.federation(unseen=2))
    assert {c for r in range(10) for c in work._cohort(r).clients} == {0, 1, 2}
    assert len(work.run().last["test"].examples) == 5


def test_evaluate_every_keeps_the_last_round():
    progress = toys.run(rounds=5, evaluate_every=2)
    assert [row["round"] for row in progress.history] == [2, 4, 5]
    assert len(progress.timing) == 5


def test_a_tracker_hears_what_the_history_keeps_and_how_long_every_round_took():
    heard = []

    class Tracker(NullTracker):
        def log(self, round, metrics, seconds):
            heard.append((round, dict(metrics), seconds))

    progress = toys.training(rounds=5, evaluate_every=2).run(Tracker())
    assert [{"round": round, **metrics} for round, metrics, _ in heard if metrics] == progress.history
    assert [seconds for *_, seconds in heard] == [row["total_seconds"] for row in progress.timing]


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_fine_tuning_starts_without_the_momentum_that_a_client_keeps(executor):
    """After one round clients hold the same models whether they keep momentum or not."""
    histories = [
        toys.run(toys.composition("fedavg_ft"), rounds=1, momentum=0.9, momentum_state=state, executor=executor).history
        for state in ("fresh", "kept")
    ]
    assert histories[0] == histories[1]


def test_divergence_is_one_clear_line():
    with pytest.raises(ValueError, match=r"training diverged: the loss of round \d+ is (nan|inf); lower train.lr"):
        toys.run(lr=1e6, rounds=5)


def test_summary_selects_on_validation_and_labels_what_is_chosen_on_test():
    history = [
        {"round": 1, "global/val/accuracy": 0.5, "global/test/accuracy": 0.9, "cost/upload_bytes": 1},
        {"round": 2, "global/val/accuracy": 0.7, "global/test/accuracy": 0.6, "cost/upload_bytes": 2},
        {"round": 3, "global/val/accuracy": 0.7, "global/test/accuracy": 0.8, "cost/upload_bytes": 3},
    ]
    summary = summarise(history, 10)
    assert summary["global/test/accuracy"] == 0.8
    assert summary["selected/global/round"] == 2
    assert summary["selected/global/test/accuracy"] == 0.6
    assert summary["best/global/round"] == 1
    assert summary["best/global/test/accuracy"] == 0.9
    assert summary["top5/global/test/accuracy"] == pytest.approx((0.9 + 0.6 + 0.8) / 3)
    assert not any("personal" in key for key in summary)


METHODS = {
    "fedavg": ("fedavg", {}),
    "local": ("local", {}),
    "fedavg_ft": ("fedavg_ft", {}),
    "dbe": ("fedavg", {"dbe": {"kappa": 1.0, "momentum": 0.5}}),
}


def exported(work, name, settings, add, folder):
    """The run's files, read back."""
    names = list(work.federation.dataset.class_names)
    config = {
        "label": "toy",
        "method": name,
        "settings": settings,
        "add": add,
        "model": {"name": "mlp", "hidden": [16, 6]},
        "input": {"shape": [5], "class_names": names, "offset": [0.0], "scale": [1.0]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(model_bytes(work))
    (folder / "personal.safetensors").write_bytes(personal_bytes(work))
    return load_predictor(folder)


@pytest.mark.parametrize("case", METHODS)
def test_exported_models_are_those_of_the_selected_round(case, tmp_path):
    """The files' validation accuracy, computed from raw rows, is the one the round was selected by."""
    name, add = METHODS[case]
    work = toys.training(toys.composition(name, add=add), rounds=6, lr=0.3)
    work.run()
    data = work.federation.dataset
    predictor = exported(work, name, {}, add, tmp_path)
    assert predictor.clients == (frozenset() if case == "fedavg" else frozenset(range(5)))

    def accuracy(client_of):
        rows = [work.federation.rows(c, "val") for c in range(5)]
        hits = [
            predictor.logits(np.array(data.inputs[r]), client_of(c)).argmax(1) == data.labels[r]
            for c, r in enumerate(rows)
        ]
        return float(np.concatenate(hits).mean())

    summary = summarise(work.progress.history, 219)
    assert accuracy(lambda c: c) == summary["selected/personal/val/accuracy"]
    assert accuracy(lambda c: 99) == summary.get("selected/global/val/accuracy", accuracy(lambda c: None))
    with pytest.raises(ValueError, match=r"inputs have shape \(4,\) per example, expected \(5,\)"):
        predictor.logits(np.array(data.inputs[:3, :4]))


OWN = {
    "fedrep": ("fedrep", {}, {}, {"rounds": 4}),
    "ditto": ("ditto", {"strength": 0.5}, {}, {"rounds": 4}),
    "dbe": ("fedavg", {}, {"dbe": {"kappa": 1.0}}, {"rounds": 4}),
    "lg_fedavg": ("lg_fedavg", {"fedavg_rounds": 2}, {}, {"rounds": 4, "lr": 0.3}),
    "lg_fedavg, of stage 1": ("lg_fedavg", {"fedavg_rounds": 5}, {}, {"rounds": 6, "lr": 0.3}),
    "newcomers": ("fedrep", {}, {}, {"rounds": 1, "newcomer_rounds": 3, "lr": 0.3}),
    "newcomers that adapt": ("fedavg_ft", {}, {}, {"rounds": 1, "newcomer_rounds": 3, "lr": 0.3}),
}


@pytest.mark.parametrize("case", OWN)
def test_every_client_is_served_the_model_it_was_evaluated_with(case, tmp_path):
    """Those that have not trained by the selected round too: recorded losses from the files and raw rows alone."""
    name, settings, add, train = OWN[case]
    fed = toys.federation(unseen=1) if "newcomers" in case else toys.federation()
    work = toys.training(toys.composition(name, add, **settings), fed, participation=0.2, **train)
    work.run()
    chosen = work.progress.selected["personal"]
    trained = {c for r in range(chosen.round + 1) for c in work._cohort(r).clients}
    assert trained < set(range(5))
    assert (4 in trained) == ("newcomers" in case)
    if "fedavg_rounds" in settings:
        assert (chosen.round < settings["fedavg_rounds"]) == ("stage 1" in case)
    predictor = exported(work, name, settings, add, tmp_path)
    assert predictor.clients == frozenset(range(5))
    for client in range(5):
        rows = fed.rows(client, "val")
        logits = torch.from_numpy(predictor.logits(np.array(fed.dataset.inputs[rows]), client))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(fed.dataset.labels[rows]), reduction="sum")
        assert float(loss) == pytest.approx(chosen.clients["val"].loss[client], rel=1e-5)


def test_without_a_global_view_strangers_get_the_servers_part_of_the_selected_round(tmp_path):
    """LG-FedAvg: global layers of that round on the local layers that stage 1 left, the last that anybody shared."""
    settings = {"participation": 0.2, "lr": 0.3}
    work = toys.training(toys.composition("lg_fedavg", fedavg_rounds=2), rounds=4, **settings)
    work.run()
    chosen = work.progress.selected["personal"]
    assert chosen.round >= 2
    stage_1 = toys.run(None, rounds=2, weighting="uniform", **settings).server.params
    predictor = exported(work, "lg_fedavg", {"fedavg_rounds": 2}, {}, tmp_path)
    model = {**stage_1, **{n: p for n, p in chosen.server.params.items() if n.startswith("head.")}}
    inputs = torch.from_numpy(np.array(work.federation.dataset.inputs))
    with torch.no_grad():
        expected = work.net.classify(model, work.net.features(model, inputs))
    torch.testing.assert_close(torch.from_numpy(predictor.logits(inputs.numpy(), 99)), expected)


def test_the_selected_round_is_not_the_last_somewhere():
    """Without this the test above would not notice last-round weights."""
    work = toys.training(toys.composition("local"), rounds=6, lr=0.3)
    work.run()
    assert work.progress.selected["personal"].round < 5


@pytest.mark.parametrize("resumed", [False, True])
def test_exported_models_adapt_at_the_learning_rate_they_were_evaluated_at(resumed, tmp_path):
    """A rate that falls with a client's participations: losses of the exported models are those recorded."""
    settings = {"rounds": 6, "lr": 0.3, "lr_decay": 0.5, "lr_decay_by": "participation", "checkpoint_every": 5}
    work = toys.training(toys.composition("fedavg_ft", epochs=3), **settings)
    work.run(None, Checkpoint(tmp_path / "run.safetensors", "key"))
    if resumed:
        work = toys.training(toys.composition("fedavg_ft", epochs=3), **settings)
        work.run(None, Checkpoint(tmp_path / "run.safetensors", "key"))
        assert len(work.progress.timing) == 6
    chosen = work.progress.selected["personal"]
    assert chosen.round < 4  # participations went on
    before = work.progress.participations.tolist()
    for model in work.chosen_models():
        x, y = work.examples.gather(work.federation.rows(model.client, "val"))
        with torch.no_grad():
            said = work.net.classify(model.params, work.net.features(model.params, x))
        loss = float(torch.nn.functional.cross_entropy(said, y, reduction="sum"))
        assert loss == pytest.approx(chosen.clients["val"].loss[model.client], rel=1e-5)
    assert work.progress.participations.tolist() == before == [6] * 5


def test_workers_score_the_same_as_one():
    """600 test rows are two chunks; the losses of every client are the same bits."""
    fed = toys.federation((3,) * 100)
    one, two = (toys.training(None, fed, workers=workers) for workers in (1, 2))
    first, second = (work.scorer.shared(work.initial, {}, range(100), "test") for work in (one, two))
    assert first.examples.sum() == 600
    assert (first.correct == second.correct).all()
    assert (first.loss == second.loss).all()
    assert (
        one.scorer.probabilities(one.initial, {}, fed.rows(99, "test")).argmax(1)
        == fed.dataset.labels[fed.rows(99, "test")]
    ).sum() == first.correct[99]


@pytest.mark.parametrize("settings", [{}, {"executor": "stacked"}, {"workers": 2}])
def test_clients_that_adapt_upload_nothing(settings):
    work = toys.training(toys.composition("perfedavg"), **settings)
    phases = {"batches": work.composition.phases(work.train), "adapt": work.composition.method.adapt_phases(work.train)}
    made = {purpose: list(work._local([0, 3], 0, some, purpose)) for purpose, some in phases.items()}
    work.executor.close()
    assert all(outcome.upload["method"] for outcome in made["batches"])
    assert all(outcome.upload == {} and outcome.state == {} for outcome in made["adapt"])
