"""Updates of a weight as one matrix product, in traced graphs."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fedcore.engine import fused_updates
from fedcore.engine.fused_updates import fuse_updates
from fedcore.engine.inductor import Inductor
from tests import toys

aten = torch.ops.aten


def _traced(step, *shapes):
    generator = torch.Generator().manual_seed(0)
    arguments = [torch.randn(shape, generator=generator) for shape in shapes]
    return make_fx(step, tracing_mode="fake")(*arguments), arguments


def _targets(graph):
    return [node.target for node in graph.graph.nodes]


def test_a_plain_step_is_one_product():
    graph, arguments = _traced(lambda w, lr, d, x: w - lr * (d.t() @ x), (3, 4), (), (5, 3), (5, 4))
    before = graph(*arguments)
    assert fuse_updates(graph) == 1
    assert aten.mm.default not in _targets(graph)
    assert aten.sub.Tensor not in _targets(graph)
    after = graph(*arguments)
    weight, rate, slopes, inputs = arguments
    assert torch.allclose(after, before, atol=1e-6)
    assert torch.allclose(after, weight - rate * torch.einsum("bo,bi->oi", slopes, inputs), atol=1e-6)
    assert not torch.allclose(after, weight, atol=0.1)


def test_two_turns_are_none_and_one_is_left_alone():
    twice, arguments = _traced(lambda w, lr, d, x: w - lr * (d.t() @ x).t().t(), (3, 4), (), (5, 3), (5, 4))
    before = twice(*arguments)
    assert fuse_updates(twice) == 1
    assert torch.allclose(twice(*arguments), before, atol=1e-6)
    once, _ = _traced(lambda w, lr, d, x: w - lr * (x.t() @ d).t(), (3, 4), (), (5, 3), (5, 4))
    assert fuse_updates(once) == 0


OTHERS = {
    "weight decay": lambda w, lr, d, x: w - lr * (d.t() @ x + 0.1 * w),
    "a rate for every column": lambda w, lr, d, x: w - (lr + w[0]) * (d.t() @ x),
    "a difference of products": lambda w, lr, d, x: w - d.t() @ x,
    "a transposed weight": lambda w, lr, d, x: w.t() - lr * (x.t() @ d),
}


def _shared_gradient(w, lr, d, x):
    gradient = d.t() @ x
    return w - lr * gradient, gradient.sum()


@pytest.mark.parametrize("step", [*OTHERS.values(), _shared_gradient], ids=[*OTHERS, "used twice"])
def test_what_does_more_with_a_gradient_stays_as_it_is(step):
    graph, _ = _traced(step, (3, 4), (), (5, 3), (5, 4))
    assert fuse_updates(graph) == 0


def test_the_steps_of_a_perceptron_are_fused_and_agree(monkeypatch):
    """Three layers, and as many products for every step of a function."""
    found = []
    monkeypatch.setattr(Inductor, "unrolled", lambda self, num_params, rows, convolves: 2)
    fuse = fused_updates.fuse_updates
    monkeypatch.setattr("fedcore.engine.inductor.fuse_updates", lambda graph: found.append(fuse(graph)))
    plain = toys.training(compile="never", rounds=1).run()
    compiled = toys.training(compile="always", rounds=1).run()
    assert set(found) == {6, 3}
    assert 0 < toys.distance(plain.server.params, compiled.server.params) < 1e-6
    found.clear()
    toys.training(compile="always", rounds=1, momentum=0.5).run()
    assert set(found) == {0}
