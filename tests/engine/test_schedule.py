"""Which rows a client sees."""

import numpy as np
import pytest

from fedcore.config import Train
from fedcore.engine.schedule import schedule
from fedcore.methods.base import Phase
from fedcore.seeds import Streams


def _plan(num_examples, round=0, client=0, seed=0, phase=None, **train):
    section = Train(**{"batch_size": 8, **train})
    return schedule(section, phase or Phase(), num_examples, Streams(seed, round), client, "batches")


def test_an_epoch_sees_every_example_once():
    plan = _plan(20, local_epochs=2)
    assert plan.lengths.tolist() == [8, 8, 4, 8, 8, 4]
    for epoch in (slice(0, 3), slice(3, 6)):
        rows = np.concatenate([p[:n] for p, n in zip(plan.positions[epoch], plan.lengths[epoch], strict=True)])
        assert sorted(rows) == list(range(20))
    assert not np.array_equal(plan.positions[:3], plan.positions[3:])


def test_padding_repeats_a_real_row():
    plan = _plan(3)
    assert plan.lengths.tolist() == [3]
    assert set(plan.positions[0, 3:]) == {plan.positions[0, 0]}


def test_wrap_fills_up_with_the_clients_own_examples():
    plan = _plan(3, last_batch="wrap")
    assert plan.lengths.tolist() == [8]
    assert np.bincount(plan.positions[0]).tolist() in ([3, 3, 2], [3, 2, 3], [2, 3, 3])


def test_drop_loses_the_short_batch_and_refuses_a_client_without_one():
    assert _plan(20, last_batch="drop").lengths.tolist() == [8, 8]
    with pytest.raises(ValueError, match=r"train.last_batch: 'drop' leaves client 7 without a batch \(3 examples"):
        _plan(3, client=7, last_batch="drop")
    with pytest.raises(ValueError, match=r"train.last_batch: 'drop' leaves client 7 without a batch \(3 examples"):
        _plan(3, client=7, last_batch="drop", local_steps=2)


def test_a_phase_that_only_looks_sees_every_example():
    plan = _plan(20, phase=Phase("look", epochs=1, learns=False), last_batch="drop")
    assert plan.lengths.tolist() == [8, 8, 4]


def test_local_steps_cut_or_extend_the_epochs():
    assert _plan(20, local_steps=2).lengths.tolist() == [8, 8]
    assert _plan(20, local_steps=5).lengths.tolist() == [8, 8, 4, 8, 8]
    drawn = _plan(20, local_steps=50, sampling="replacement")
    assert drawn.positions.shape == (50, 8)
    assert set(drawn.positions.ravel()) == set(range(20))


def test_batches_are_keyed_by_seed_round_and_client_alone():
    same = [_plan(20, round=3, client=5), _plan(20, round=3, client=5)]
    np.testing.assert_array_equal(same[0].positions, same[1].positions)
    for other in (_plan(20, round=4, client=5), _plan(20, round=3, client=6), _plan(20, round=3, client=5, seed=1)):
        assert not np.array_equal(same[0].positions, other.positions)


def test_phases_that_start_at_the_same_epoch_see_the_same_order():
    first = _plan(20, phase=Phase("one", epochs=2))
    later = _plan(20, phase=Phase("two", epochs=1, first_epoch=1))
    np.testing.assert_array_equal(first.positions[3:], later.positions)
