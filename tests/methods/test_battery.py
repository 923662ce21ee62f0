"""What must hold for every method and add-on, whatever it does. One line in `cases.py` brings a new one in."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedcore import discovery
from fedcore.config import ConfigError
from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.export import model_bytes, personal_bytes
from fedcore.engine.forked import ForkedExecutor
from fedcore.engine.inductor import Inductor
from fedcore.engine.serial import SerialExecutor
from fedcore.trees import flatten
from tests import toys
from tests.engine.test_resume import StoppedError, StopsAt
from tests.methods.cases import ADDONS, CASES, METHODS

EVERY = pytest.mark.parametrize("name", CASES)


def _composed(name):
    case = CASES[name]
    return toys.composition(case.method, case.add, **case.settings)


def _work(name, **train):
    return toys.training(_composed(name), **{"participation": 0.6, "dtype": torch.float64, **train})


def test_every_method_and_addon_has_a_case():
    assert sorted(METHODS) == discovery.method_names()
    assert sorted(ADDONS) == discovery.addon_names()


@EVERY
def test_executors_agree(name):
    one, other = (_work(name, executor=executor).run() for executor in ("serial", "stacked"))
    assert toys.distance(one.server.params, other.server.params) < 1e-9
    state = flatten(one.server.state)
    assert not state or toys.distance(state, flatten(other.server.state)) < 1e-9
    assert one.store.clients == other.store.clients
    for client in one.store.clients:
        assert toys.distance(flatten(one.store.get(client)), flatten(other.store.get(client))) < 1e-9
    assert (one.download_bytes, one.upload_bytes) == (other.download_bytes, other.upload_bytes)


@EVERY
def test_lanes_agree(name):
    """Five clients take turns on two and on three lanes."""
    one = _work(name, rounds=2, participation=1.0).run()
    for lanes in (2, 3):
        other = _work(name, rounds=2, participation=1.0, executor="stacked", block_size=lanes).run()
        assert toys.distance(one.server.params, other.server.params) < 1e-9
        for client in range(5):
            assert toys.distance(flatten(one.store.get(client)), flatten(other.store.get(client))) < 1e-9
        assert one.history[-1]["train/loss"] == pytest.approx(other.history[-1]["train/loss"], abs=1e-6)


@EVERY
def test_processes_change_nothing(name):
    one, other = _work(name, rounds=2), _work(name, rounds=2)
    inner = SerialExecutor(other.executor.training, other.examples)
    other.executor = ForkedExecutor(inner, other.federation, 2)
    one.run(), other.run()
    assert model_bytes(one) == model_bytes(other)
    assert personal_bytes(one) == personal_bytes(other)
    assert toys.equal(flatten(one.progress.server.tree()), flatten(other.progress.server.tree()))
    assert one.progress.history == other.progress.history
    other.executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stacked"])
@EVERY
def test_compiled_steps_agree(name, executor, monkeypatch):
    """Two steps a call, and single ones for what remains; whatever cannot be compiled has to be expected."""
    monkeypatch.setattr(Inductor, "unrolled", lambda self, num_params, rows, convolves: 2)
    one, other = (_work(name, executor=executor, compile=compile) for compile in ("never", "always"))
    one.run(), other.run()
    assert other.executor.remarks == []
    assert toys.distance(one.progress.server.params, other.progress.server.params) < 1e-9
    for client in one.progress.store.clients:
        mine, same = (flatten(work.progress.store.get(client)) for work in (one, other))
        assert toys.distance(mine, same) < 1e-9


@EVERY
def test_a_resumed_run_is_the_same_run(name, tmp_path):
    whole = _work(name, rounds=4, checkpoint_every=2)
    whole.run()
    checkpoint = Checkpoint(tmp_path / "run.safetensors", "key")
    with pytest.raises(StoppedError):
        _work(name, rounds=4, checkpoint_every=2).run(StopsAt(3), checkpoint)
    rest = _work(name, rounds=4, checkpoint_every=2)
    tracker = StopsAt(None)
    rest.run(tracker, checkpoint)
    assert tracker.resumed_at == 2
    assert rest.progress.history == whole.progress.history
    assert model_bytes(rest) == model_bytes(whole)
    assert personal_bytes(rest) == personal_bytes(whole)
    assert toys.equal(flatten(rest.progress.server.tree()), flatten(whole.progress.server.tree()))


@EVERY
def test_state_keeps_its_structure_and_training_changes_the_model(name):
    work = _work(name)
    before = {k: v.shape for k, v in flatten(work.progress.server.tree()).items()}
    own = {k: v.shape for k, v in flatten(work.progress.store.initial).items()}
    progress = work.run()
    assert {k: v.shape for k, v in flatten(progress.server.tree()).items()} == before
    for client in progress.store.clients:
        assert {k: v.shape for k, v in flatten(progress.store.get(client)).items()} == own
    models = [progress.server.params, *(progress.store.get(c)["params"] for c in progress.store.clients)]
    moved = [float((m[n] - work.initial[n]).abs().max()) for m in models for n in m]
    assert max(moved) > 1e-3


@EVERY
def test_personal_leaves_never_travel(name):
    work = _work(name, rounds=1)
    personal = set(work.progress.store.initial["params"])
    assert personal.isdisjoint(work.progress.server.params)
    phases = work.composition.phases(work.train)
    for outcome in work._local([0, 3], 0, phases, "batches"):
        sent = {path.split("/")[-1] for path in flatten(outcome.upload)}
        assert personal.isdisjoint(sent) or CASES[name].sends_own_model


@EVERY
def test_it_learns_a_toy(name):
    rows = _work(name, rounds=25, participation=1.0, lr=0.2, dtype=torch.float32).run().history
    assert rows[-1]["train/loss"] < 0.8 * rows[0]["train/loss"]
    assert rows[-1]["personal/test/accuracy"] > 0.55  # chance is a third


@EVERY
def test_evaluation_leaves_everything_as_it_was(name):
    work = _work(name)
    work.run()
    before = {k: v.clone() for k, v in flatten(work.progress.server.tree()).items()}
    stores = {c: {k: v.clone() for k, v in flatten(work.progress.store.get(c)).items()} for c in range(5)}
    work._evaluate(2)
    assert toys.equal(before, flatten(work.progress.server.tree()))
    assert all(toys.equal(stores[c], flatten(work.progress.store.get(c))) for c in range(5))


@pytest.mark.parametrize("name", [*METHODS, *ADDONS])
def test_unknown_settings_are_refused_by_name(name):
    case, unknown = CASES[name], {"no_such_setting": 1}
    settings = {**case.settings, **(unknown if name in METHODS else {})}
    add = {addon: {**values, **unknown} for addon, values in case.add.items()}
    with pytest.raises(ConfigError, match="unknown key 'no_such_setting'"):
        toys.composition(case.method, add, **settings)


@pytest.mark.parametrize("name", [*METHODS, *ADDONS])
def test_classes_are_frozen_final_and_documented(name):
    cls = discovery.method_class(name) if name in METHODS else discovery.addon_class(name)
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert cls.__mro__[1].__module__.endswith(".base")
    assert {f.name for f in dataclasses.fields(cls)}.isdisjoint({"method", "add", "train"})
    for word in ("Costs", "Source"):
        assert word in (cls.__doc__ or "")
