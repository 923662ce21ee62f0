"""Lanes from free memory, and what happens when it runs out."""

import weakref

import pytest
import torch

from fedcore.engine.executors import remarks
from fedcore.engine.lane_group import Group
from fedcore.engine.lane_memory import LaneLimit, group_size, kept_bytes, lane_bytes
from fedcore.trees import flatten
from tests import toys


def _holds(monkeypatch, lanes, seen):
    """A device that runs out of memory on more than so many lanes, after the first change of clients."""
    steps = Group._steps

    def limited(group, carry, own, batches, stretch, *rest):
        width = len(carry["params"]["head.bias"])
        if (stretch.start or not lanes) and width > lanes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        seen.append(width)
        return steps(group, carry, own, batches, stretch, *rest)

    monkeypatch.setattr(Group, "_steps", limited)


@pytest.mark.parametrize("block_size", [None, 5])
def test_out_of_memory_halves_the_lanes_and_trains_the_same_clients(monkeypatch, block_size):
    """Of 20, 9, 8, 31 and 3 examples: 3, 2, 1, 4 and 1 steps, 11 on 3 lanes. Half of 5 is 2, half of 3 is 1."""
    whole = toys.run(executor="stacked", dtype=torch.float64)
    work = toys.training(executor="stacked", dtype=torch.float64, block_size=block_size)
    seen = []
    _holds(monkeypatch, 2, seen)
    progress = work.run()
    assert toys.distance(whole.server.params, progress.server.params) < 1e-12
    assert [row["train/loss"] for row in progress.history] == pytest.approx(
        [row["train/loss"] for row in whole.history], abs=1e-12
    )
    first, found = (5, 2) if block_size else (3, 1)
    assert seen[0] == first
    assert set(seen[1:]) == {found}
    (line,) = remarks(work.executor, work.train, toys.CPU, work.federation)
    assert line.startswith(f"{found} client{'s' * (found > 1)} trained at a time where {first} were to")
    assert "train.block_size" in line


def test_outcomes_keep_the_order_of_the_jobs_when_memory_runs_out(monkeypatch):
    work = toys.training(executor="stacked", dtype=torch.float64)
    phases = work.composition.phases(work.train)
    before = [flatten(o.params) for o in work._local([4, 3, 0, 1], 0, phases, "batches")]
    _holds(monkeypatch, 1, [])
    after = list(work._local([4, 3, 0, 1], 0, phases, "batches"))
    assert [o.client for o in after] == [4, 3, 0, 1]
    assert all(toys.distance(one, o.params) < 1e-12 for one, o in zip(before, after, strict=True))


def test_what_a_failed_attempt_held_is_gone_at_the_next(monkeypatch):
    held = []
    steps = Group._steps

    def limited(group, carry, *rest):
        assert [reference() for reference in held] == [None] * len(held)
        if len(carry["params"]["head.bias"]) > 1:
            held.append(weakref.ref(carry["params"]["head.bias"]))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return steps(group, carry, *rest)

    monkeypatch.setattr(Group, "_steps", limited)
    toys.run(executor="stacked", rounds=1)
    assert len(held) == 1


def test_a_client_that_does_not_fit_alone_is_an_error_for_people(monkeypatch):
    _holds(monkeypatch, 0, [])
    with pytest.raises(ValueError, match=r"^train.block_size: .* client 0 alone; lower train.batch_size \(8\)"):
        toys.run(executor="stacked")


def test_as_many_lanes_as_memory_should_hold():
    """Of 1000 bytes 800 count. With 90 a lane and 1 for each of 8 clients a lane: 8 lanes, 784; 9 would be 882."""
    limit = LaneLimit()
    limit.estimate(1000, 90, 1)
    assert limit.bounded(20) == 8
    assert limit.bounded(5) == 5
    assert limit.group == 64
    assert "8 clients trained at a time where 20 were to" in limit.remarks[0]


def test_plenty_of_memory_is_no_limit_and_none_is_one_lane():
    limit = LaneLimit()
    limit.estimate(10**9, 10, 1)
    assert limit.bounded(700) == 700
    assert limit.group == 1000
    limit.estimate(10, 100, 1)
    assert limit.bounded(700) == 1
    assert limit.group == group_size(1) == 1


def test_eight_clients_a_lane_are_planned_at_once_but_no_more_than_a_thousand_or_the_lanes():
    assert [group_size(lanes) for lanes in (1, 2, 125, 200, 3000)] == [1, 16, 1000, 1000, 3000]
    assert LaneLimit(5).group == 40
    assert LaneLimit().group == 1000


def test_what_autograd_keeps_of_a_row():
    """Linear layers keep their inputs, rectifiers their outputs, the next inputs: 5, 16 and 6 numbers a row."""
    work = toys.training()
    training, params = work.executor.training, work.initial
    assert kept_bytes(training, params, {}, torch.randn(7, 5)) == 7 * 4 * (5 + 16 + 6)


def test_the_estimate_of_a_lane():
    """The model has 5*16+16 + 16*6+6 + 6*3+3 = 219 parameters; batches have 8 rows of 5 numbers; 4 bytes each."""
    work = toys.training(executor="stacked", momentum=0.9)
    (job,) = work._jobs([0], 0, work.composition.phases(work.train), "batches")
    lane, client = lane_bytes(job, work.executor.training, work.examples)
    assert client == 4 * (2 * 2 * 219 + 219)  # parameters and momentum twice, and the anchor
    assert lane == 4 * (3 * 2 * 219 + 219 + 2 * 8 * (5 + 27))
