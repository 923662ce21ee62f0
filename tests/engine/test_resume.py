"""A run stopped anywhere and resumed equals one that was never stopped, byte for byte."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.export import model_bytes, personal_bytes
from tests import toys


class StoppedError(Exception):
    pass


class StopsAt:
    def __init__(self, round):
        self.round, self.resumed_at = round, None

    def start(self, rounds, resumed_at):
        self.resumed_at = resumed_at

    def log(self, round, metrics, seconds):
        if round == self.round:
            raise StoppedError

    def end(self, status):
        pass


def leftovers(work):
    progress = work.progress
    return (
        model_bytes(work),
        personal_bytes(work),
        json.dumps(progress.history),
        progress.participations.tolist(),
        progress.selected["personal"].clients["val"].correct.tolist(),
        progress.last["test"].loss.tolist(),
        [scores.loss.tolist() for scores in progress.unseen.values()],
        (progress.download_bytes, progress.upload_bytes),
    )


def assert_resumes(make, checkpoint):
    """Stop a training of 7 rounds, a checkpoint every 2, one round after a checkpoint, twice; `make` makes it anew."""
    whole = make()
    whole.run()
    for stop, resumed_at in ((3, 0), (6, 2), (None, 4)):
        tracker, work = StopsAt(stop), make()
        if stop:
            with pytest.raises(StoppedError):
                work.run(tracker, checkpoint)
        else:
            work.run(tracker, checkpoint)
            assert leftovers(work) == leftovers(whole)
        assert tracker.resumed_at == resumed_at


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize("method", ["fedavg", "local", "fedavg_ft"])
def test_resumed_equals_uninterrupted(tmp_path, method, executor):
    settings = {"rounds": 7, "participation": 0.6, "checkpoint_every": 2, "executor": executor, "lr_decay": 0.9}
    checkpoint = Checkpoint(tmp_path / "run.safetensors", "key")
    assert_resumes(lambda: toys.training(toys.composition(method), **settings), checkpoint)


def test_what_unseen_clients_scored_in_their_best_round_survives(tmp_path):
    """Their best round is the first, so that only the checkpoint can know it."""

    def make():
        return toys.training(fed=toys.federation(unseen=2), rounds=7, checkpoint_every=2, lr=0.3, seed=2)

    whole = make()
    whole.run()
    unseen = whole.progress.unseen["val"].take(slice(3, None))
    assert unseen.pooled()["accuracy"] == max(h["unseen/val/accuracy"] for h in whole.progress.history[:2])
    assert whole.progress.unseen["val"].loss.tolist() != whole.progress.last["val"].loss.tolist()
    assert_resumes(make, Checkpoint(tmp_path / "run.safetensors", "key"))


def test_what_kept_momentum_brings_along_is_resumed(tmp_path):
    """SCAFFOLD divides by it."""
    settings = {"rounds": 7, "checkpoint_every": 2, "momentum": 0.9, "momentum_state": "kept", "lr": 0.01}
    checkpoint = Checkpoint(tmp_path / "run.safetensors", "key")
    assert_resumes(lambda: toys.training(toys.composition("scaffold"), **settings), checkpoint)


def test_a_checkpoint_of_another_run_or_half_a_file_is_ignored(tmp_path):
    path = tmp_path / "run.safetensors"
    with pytest.raises(StoppedError):
        toys.training(rounds=7, checkpoint_every=2).run(StopsAt(3), Checkpoint(path, "key"))
    assert Checkpoint(path, "key").load(toys.CPU) is not None
    assert Checkpoint(path, "other").load(toys.CPU) is None
    path.write_bytes(path.read_bytes()[:100])
    assert Checkpoint(path, "key").load(toys.CPU) is None
    assert Checkpoint(tmp_path / "none.safetensors", "key").load(toys.CPU) is None


def test_a_flipped_bit_anywhere_in_a_checkpoint_is_said_and_the_training_starts_anew(tmp_path):
    path, said = tmp_path / "run.safetensors", []

    def training():
        return toys.training(toys.composition("scaffold"), rounds=3, checkpoint_every=2)

    with pytest.raises(StoppedError):
        training().run(StopsAt(3), Checkpoint(path, "key"))
    whole = path.read_bytes()
    for bit in np.random.default_rng(0).integers(8 * len(whole), size=300).tolist():
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert Checkpoint(path, "key", said.append).load(toys.CPU) is None, bit
    assert said == [f"{path}: this checkpoint is damaged; the training starts anew"] * 300
    reference, again, tracker = training(), training(), StopsAt(None)
    reference.run()
    again.run(tracker, Checkpoint(path, "key"))
    assert tracker.resumed_at == 0
    assert leftovers(again) == leftovers(reference)
    path.write_bytes(whole)
    assert Checkpoint(path, "key", said.append).load(toys.CPU) is not None
    assert len(said) == 300


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_of_any_kind_and_shape_come_back(tmp_path, dtype):
    tensors = {
        "a": torch.ones((), dtype=dtype),
        "b": torch.zeros(0, 3, dtype=dtype),
        "c": torch.ones(2, 3, dtype=dtype).T,
    }
    checkpoint = Checkpoint(tmp_path / "run.safetensors", "key")
    checkpoint.save(tensors, {"round": 1})
    loaded = checkpoint.load(toys.CPU)
    assert loaded is not None
    assert loaded[1] == {"round": 1}
    for name, tensor in tensors.items():
        assert loaded[0][name].dtype == dtype
        assert torch.equal(loaded[0][name], tensor)


def test_checkpoints_hold_no_code(tmp_path):
    path = tmp_path / "run.safetensors"
    with pytest.raises(StoppedError):
        toys.training(toys.composition("local"), rounds=7, checkpoint_every=2).run(StopsAt(3), Checkpoint(path, "key"))
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["fedcore"])["next_round"] == 2
        assert any(name.startswith("client/4/params/") for name in file.keys())  # noqa: SIM118
