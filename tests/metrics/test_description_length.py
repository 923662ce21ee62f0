"""Description lengths: the arithmetic by hand, probes against a plain loop, and no look ahead."""

import math

import numpy as np
import pytest
import torch

from fedcore.metrics.description_length import mdl_online, mdl_reprieve, riemann
from fedcore.metrics.probes import Budget, Probes
from fedcore.seeds import stream

TINY = Budget(hidden=(8,), steps=60, batch_size=16, lr=1e-2, checks=6)
BLOCKS = (0.1, 0.2, 0.5, 1.0)


def _rows(told, count=120):
    """Three classes; each has its own of four features, higher by `told`."""
    generator = stream(0, "test/description length")
    labels = np.arange(count) % 3
    features = generator.normal(size=(count, 4)).astype(np.float32)
    features[np.arange(count), labels] += told
    return features, labels


def test_riemann_by_hand():
    """10 * 2 + 90 * 1 + 900 * 0.5 = 560 nats."""
    nats = riemann([10, 100, 1000], [2, 1, 0.5])
    assert nats == pytest.approx(560, abs=1e-12)
    assert nats / math.log(2) == pytest.approx(807.909, abs=5e-4)
    assert riemann([10, 100, 1000], [0.7, 0.7, 0.7]) == pytest.approx(700, abs=1e-9)
    assert all(riemann([1, 3, 9], np.eye(3)[i]) == width for i, width in enumerate((1, 2, 6)))


@pytest.mark.parametrize(("sizes", "losses"), [([], []), ([0, 5], [1, 1]), ([5, 5], [1, 1]), ([1, 2], [1])])
def test_riemann_refuses_what_is_no_curve(sizes, losses):
    with pytest.raises(ValueError, match="ascending sizes"):
        riemann(sizes, losses)


def test_stacked_probes_are_the_plain_loop_over_probes():
    """The last probe of 2 sizes and 2 orders, as one network of torch with the same initial values and batches."""
    features, labels = _rows(1.0, 40)
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    orders = np.stack([stream(k, "test/order").permutation(40) for k in range(2)])
    budget = Budget(hidden=(5, 6), steps=7, batch_size=4, lr=0.01)
    probes = Probes(x, y, orders, [10, 20], [12, 25], seed=3, budget=budget)
    modules = [torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)]
    network = torch.nn.Sequential(*modules)
    with torch.no_grad():
        for number, layer in enumerate(modules[::2]):
            assert probes.layers[2 * number].abs().max() <= layer.in_features**-0.5
            layer.weight.copy_(probes.layers[2 * number][3].T)
            layer.bias.copy_(probes.layers[2 * number + 1][3, 0])
    z = (x - x[orders[1, :25]].mean()) / x[orders[1, :25]].std(correction=0)
    optimiser = torch.optim.Adam(network.parameters(), 0.01)
    draws = stream(3, "probes/batches", client=1)
    for _ in range(7):
        rows = orders[1, (20 * draws.random(4)).astype(int)]
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(z[rows]), y[rows]).backward()
        optimiser.step()
    probes.train()
    rows = orders[1, 25:]
    expected = torch.nn.functional.cross_entropy(network(z[rows]), y[rows], reduction="sum").item()
    assert probes.losses([slice(0, 1), slice(25, None)])[1, 1].item() == pytest.approx(expected, rel=1e-5)


def test_a_probe_does_not_depend_on_the_others():
    features, labels = _rows(1.0)
    many = mdl_reprieve(features, labels, 0, TINY, probes=3, points=4)
    few = mdl_reprieve(features, labels, 0, TINY, probes=2, points=2)
    assert many.sizes == (10, 23, 49, 108)  # 10 * 10.8^(1/3) = 22.1 and 10 * 10.8^(2/3) = 48.9, rounded up
    assert few.losses == pytest.approx(many.losses[[0, -1]][:, :2], rel=1e-4)


def test_features_that_tell_more_need_fewer_nats():
    """Both lengths fall, online far below the uniform code, which noise costs about in spite of the many steps."""
    online, reprieve = [
        [measure(*_rows(told), 0, TINY).bits.mean for told in (0.0, 1.5, 6.0)] for measure in (mdl_online, mdl_reprieve)
    ]
    uniform = 120 * math.log2(3)
    assert online[0] > online[1] > online[2]
    assert reprieve[0] > reprieve[1] > reprieve[2]
    assert online[2] < 0.5 * uniform
    assert 0.95 * uniform < online[0] < 1.2 * uniform


def test_held_out_rows_stop_an_online_probe_before_it_overfits():
    """Without them, as in the other measure, more steps on noise only make the length longer."""
    long = Budget(hidden=(16,), steps=200, batch_size=16, lr=3e-2, checks=20)
    rows = _rows(0.0, 360)
    reprieve, online = mdl_reprieve(*rows, 0, long, probes=2, points=3), mdl_online(*rows, 0, long, 2, (0.5, 1.0))
    assert reprieve.bits.mean > 1.5 * reprieve.uniform / math.log(2)
    assert online.bits.mean < 1.05 * online.uniform / math.log(2)


def test_the_parts_add_up():
    features, labels = _rows(1.0)
    online = mdl_online(features, labels, 0, TINY, 2, BLOCKS)
    assert online.sizes == (12, 24, 60)
    assert online.uniform == pytest.approx(120 * math.log(3))
    assert online.lengths == pytest.approx(12 * math.log(3) + np.array([12, 36, 60]) @ online.losses)
    assert online.bits.mean == pytest.approx(online.lengths.mean() / math.log(2))
    reprieve = mdl_reprieve(features, labels, 0, TINY, probes=2, points=2)
    assert reprieve.sizes == (10, 108)
    assert reprieve.uniform == pytest.approx(108 * math.log(3))
    assert reprieve.lengths == pytest.approx(np.array([10, 98]) @ reprieve.losses)


def test_the_spec_s_blocks_of_a_small_set():
    """0.1, 0.2, ... 6.25, 12.5, 25, 50 % of 120 rows, rounded up and once each; one row alone trains nothing."""
    untrained = Budget(hidden=(4,), steps=0)
    assert mdl_online(*_rows(1.0), 0, untrained, 1).sizes == (1, 2, 4, 8, 15, 30, 60)


def test_nothing_of_a_block_is_known_before_its_turn():
    """Other rows in the last block leave all earlier losses as they were, other rows before it do not."""
    features, labels = _rows(1.0)
    order = stream(0, "description_length/order", client=0).permutation(120)
    before = mdl_online(features, labels, 0, TINY, 1, BLOCKS).losses
    for rows, told in ((order[60:], [True, True, False]), (order[:12], [False, False, False])):
        other, wrong = features.copy(), labels.copy()
        other[rows] = other[rows] * 50 + 7
        wrong[rows] = 2 - labels[rows]
        assert np.equal(mdl_online(other, wrong, 0, TINY, 1, BLOCKS).losses, before)[:, 0].tolist() == told


def test_probes_of_a_learning_curve_see_their_own_rows_only():
    features, labels = _rows(1.0)
    order = stream(0, "description_length/order").permutation(120)
    before = mdl_reprieve(features, labels, 0, TINY, probes=1, points=2).losses
    wrong = labels.copy()
    wrong[order[10:108]] = 2 - labels[order[10:108]]
    assert np.equal(mdl_reprieve(features, wrong, 0, TINY, 1, 2).losses, before)[:, 0].tolist() == [True, False]
    wrong = labels.copy()
    wrong[order[108:]] = 2 - labels[order[108:]]
    assert np.equal(mdl_reprieve(features, wrong, 0, TINY, 1, 2).losses, before)[:, 0].tolist() == [False, False]


def test_the_features_scale_and_shape_do_not_matter_and_the_seed_decides_all():
    features, labels = _rows(1.0)
    one = mdl_online(features, labels, 0, TINY, 2, BLOCKS)
    assert np.array_equal(one.lengths, mdl_online(features.reshape(120, 2, 2), labels, 0, TINY, 2, BLOCKS).lengths)
    assert not np.array_equal(one.lengths, mdl_online(features, labels, 1, TINY, 2, BLOCKS).lengths)
    assert one.lengths[0] != one.lengths[1]
    moved = mdl_online(features * 64 + 32, labels, 0, TINY, 2, BLOCKS)
    assert moved.lengths == pytest.approx(one.lengths, rel=1e-2)


def test_constant_features_are_no_division_by_zero():
    assert math.isfinite(mdl_online(np.ones((30, 2)), np.arange(30) % 2, 0, TINY, 1).bits.mean)


@pytest.mark.parametrize("measure", [mdl_online, mdl_reprieve])
def test_rows_that_do_not_go_together_are_refused(measure):
    features, labels = _rows(1.0)
    with pytest.raises(ValueError, match=r"a label >= 0 for each, got \(120, 4\) and \(119,\)"):
        measure(features, labels[:-1], 0, TINY)
    with pytest.raises(ValueError, match="rows"):
        measure(features[:1], labels[:1], 0, TINY)
    with pytest.raises(ValueError, match="label >= 0"):
        measure(features, labels - 1, 0, TINY)


@pytest.mark.parametrize("fractions", [(0.5,), (0.1, 0.5), (0.0, 1.0), (0.5, 2.0), (0.999, 1.0)])
def test_fractions_that_make_no_blocks_are_refused(fractions):
    with pytest.raises(ValueError, match="at least two blocks"):
        mdl_online(*_rows(1.0), 0, TINY, 1, fractions)
