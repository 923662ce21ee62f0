"""Clients' trees on the disk are those in memory, bit for bit, through selection, stages and checkpoints."""

import errno
import os

import pytest
import torch

from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.client_file import ClientFile, DiskStore
from fedcore.trees import flatten
from tests import toys
from tests.engine.test_resume import assert_resumes, leftovers
from tests.methods.cases import CASES


def _training(name, **train):
    case = CASES[name]
    composed = toys.composition(case.method, case.add, **case.settings)
    return toys.training(composed, **{"rounds": 4, "participation": 0.6, "momentum": 0.5, **train})


# One of each kind here: a state, own parameters, two models, buffers of their own, leaves that stop travelling.
_KINDS = {"scaffold", "fedrep", "ditto", "fedbn", "lg_fedavg"}


@pytest.mark.parametrize(
    "name", [name if name in _KINDS else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_on_disk_and_in_memory_are_the_same_bits(name):
    here, there = (_training(name, rounds=2, store=store) for store in ("memory", "disk"))
    here.run()
    there.run()
    assert leftovers(there) == leftovers(here)
    assert there.progress.store.clients == here.progress.store.clients
    for client in here.progress.store.clients:
        mine, theirs = (flatten(work.progress.store.get(client)) for work in (here, there))
        assert toys.equal(mine, theirs)


@pytest.mark.parametrize("name", ["scaffold", "fedrep", "lg_fedavg"])
def test_a_resumed_run_is_the_same_run(name, tmp_path):
    """Stopped one round after a checkpoint: clients have other states by then, and the checkpoint has still its own."""
    settings = {"rounds": 7, "checkpoint_every": 2, "store": "disk"}
    checkpoint = Checkpoint(tmp_path / "run.safetensors", "key")
    assert_resumes(lambda: _training(name, **settings), checkpoint)
    assert checkpoint.client_file.exists()
    checkpoint.clear()
    assert list(tmp_path.iterdir()) == []


def _tree(value):
    params = {"weight": torch.full((2, 3), float(value)), "flag": torch.tensor(bool(value))}
    return {"params": params, "buffers": {}, "state": {"count": torch.tensor(value)}}


def test_a_copy_keeps_what_it_was_made_of_and_records_are_used_again():
    """Three clients of 33 bytes (6 floats, a bool, an int64): a copy costs as many again only once all have changed."""
    file = ClientFile()
    store = DiskStore(_tree(0), file)
    for client in (5, 7, 9):
        store.put(client, _tree(client))
    before = store.copy()
    for round in (20, 30):
        for client in (5, 7, 9):
            store.put(client, _tree(round + client))
    assert [int(before.get(c)["state"]["count"]) for c in (5, 7, 9)] == [5, 7, 9]
    assert [int(store.get(c)["state"]["count"]) for c in (5, 7, 9)] == [35, 37, 39]
    assert (len(store), store.clients, int(store.get(1)["state"]["count"])) == (3, [5, 7, 9], 0)
    assert os.fstat(file._open()).st_size == 6 * 33
    del before
    for round in (40, 50):
        another = store.copy()
        for client in (5, 7, 9):
            store.put(client, _tree(round + client))
        assert int(another.get(7)["state"]["count"]) < round
        del another
    assert os.fstat(file._open()).st_size == 6 * 33


def test_a_state_that_changes_its_shape_is_refused():
    store = DiskStore(_tree(0), ClientFile())
    wrong = _tree(1)
    wrong["params"]["weight"] = torch.zeros(3, 3)
    with pytest.raises(ValueError, match=r"^train.store: 'disk' .* 'params/weight' does not; use memory$"):
        store.put(0, wrong)


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    store = DiskStore(_tree(0), ClientFile())
    store.keep_in(tmp_path / "run.clients")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(OSError, match=r"run\.clients") as found:
        store.put(0, _tree(1))
    assert found.value.errno == errno.ENOSPC


def test_a_file_that_was_cut_is_one_line(tmp_path):
    store = DiskStore(_tree(0), ClientFile())
    store.keep_in(tmp_path / "run.clients")
    store.put(0, _tree(1))
    os.truncate(tmp_path / "run.clients", 10)
    with pytest.raises(OSError, match="ends in the middle"):
        store.get(0)
