"""Places on lanes, worked out by hand."""

import numpy as np
import pytest

from fedcore.engine.lanes import Stay, enough_lanes, plan

RAGGED = (3, 1, 2, 4, 2)  # 12 steps; on two lanes longest first: 3 | 0, then 2 after 0, 4 after 3, 1 after 2


def test_longest_first_each_on_the_lane_that_is_free_first():
    """Lane 0 has client 0 (steps 0-2), 2 (3-4), 1 (5); lane 1 has client 3 (0-3), 4 (4-5)."""
    found = plan(RAGGED, 2)
    assert found.lane.tolist() == [0, 0, 0, 1, 1]
    assert found.begin.tolist() == [0, 5, 3, 0, 4]
    assert found.length == 6
    assert [(s.begin, s.end) for s in found.segments] == [(0, 3), (3, 4), (4, 5), (5, 6)]
    assert [s.entering.tolist() for s in found.segments] == [[0, 3], [2], [4], [1]]
    assert [s.onto.tolist() for s in found.segments] == [[0, 1], [0], [1], [0]]
    assert [s.leaving.tolist() for s in found.segments] == [[0], [3], [2], [1, 4]]
    assert [s.off.tolist() for s in found.segments] == [[0], [1], [0], [0, 1]]


def test_clients_change_between_calls_only():
    """In calls of two steps the clients sit 4, 2, 2, 4 and 2 steps: 0 | 3, 1 after 0, 2 after 3, 4 after 1."""
    found = plan(RAGGED, 2, call=2)
    assert found.begin.tolist() == [0, 4, 4, 0, 6]
    assert found.end.tolist() == [4, 6, 6, 4, 8]
    assert found.length == 8


def test_a_lane_shows_its_last_client_until_the_next_one_comes():
    """Three lanes: 3 steps 0-3; 0 steps 0-2, then 1 at step 3; 2 steps 0-1, then 4 steps 2-3."""
    assert sorted(plan(RAGGED, 3).stays, key=lambda stay: (stay.begin, stay.client)) == [
        Stay(client=0, lane=0, begin=0, until=3, end=3),
        Stay(client=2, lane=1, begin=0, until=2, end=2),
        Stay(client=3, lane=2, begin=0, until=4, end=4),
        Stay(client=4, lane=1, begin=2, until=4, end=4),
        Stay(client=1, lane=0, begin=3, until=4, end=4),
    ]
    left_over = max(plan((5, 1), 2).stays)
    assert left_over == Stay(client=1, lane=1, begin=0, until=5, end=1)


def test_no_more_lanes_than_clients():
    assert plan((2, 3), 9).lanes == 2


@pytest.mark.parametrize("call", [1, 4])
@pytest.mark.parametrize("lanes", [1, 2, 5, 30])
def test_every_step_once_in_order_one_client_a_lane(lanes, call):
    steps = np.random.default_rng(lanes).integers(1, 20, 30)
    found = plan(steps.tolist(), lanes, call)
    table = np.full((found.length, found.lanes), -1)
    for client in np.flatnonzero(steps):
        seat = table[found.begin[client] : found.end[client], found.lane[client]]
        assert (seat == -1).all()
        seat[:] = client
        assert 0 <= len(seat) - steps[client] < call
        assert found.begin[client] % call == 0
    shown = np.full_like(table, -1)
    for stay in found.stays:
        assert (shown[stay.begin : stay.until, stay.lane] == -1).all()
        shown[stay.begin : stay.until, stay.lane] = stay.client
    assert (shown[table >= 0] == table[table >= 0]).all()
    assert (shown >= 0).all()
    entered = np.concatenate([s.entering for s in found.segments])
    left = np.concatenate([s.leaving for s in found.segments])
    assert sorted(entered) == sorted(left) == np.flatnonzero(steps).tolist()


def test_one_after_another_on_one_lane():
    assert plan(RAGGED, 1).length == 12


def test_as_many_lanes_as_keep_busy():
    """12 steps, the longest 4: three lanes end with it. Halving 6 gives 3, halving that 2 lanes, which take 6."""
    assert enough_lanes(RAGGED) == 3
    assert enough_lanes(RAGGED, halvings=True) == 3
    assert enough_lanes((10, 1, 1, 1)) == 2
    assert enough_lanes((10, 1, 1, 1), halvings=True) == 2
    assert enough_lanes((7,) * 10) == enough_lanes((7,) * 10, halvings=True) == 10
    assert enough_lanes((5,)) == 1


def test_equal_clients_need_a_lane_each_unless_a_little_longer_will_do():
    """21 clients of 20 steps and one of 1: that one makes the 21 lanes take 21 steps, 5 % longer, not worth a lane."""
    assert enough_lanes((20,) * 21 + (1,)) == 21
    assert enough_lanes((19,) * 21 + (1,)) == 22


def test_the_clients_of_the_first_workload_need_seven_lanes():
    """Its sizes at batch size 10: 908 steps, the longest client 137; 7 lanes of 137 steps are 959."""
    steps = (6, 14, 14, 25, 25, 25, 25, 27, 27, 30, 33, 38, 42, 55, 58, 63, 82, 90, 92, 137)
    assert sum(steps) == 908
    assert enough_lanes(steps) == 7
    assert plan(steps, 7).length == 137
