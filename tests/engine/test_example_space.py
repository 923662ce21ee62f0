"""A first layer's steps in the space of a client's examples."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fedcore.engine import compiled_steps, inductor, kept_functions
from fedcore.engine.example_space import ExampleSpace, Places, is_worthwhile, layer, padded, rewrite
from fedcore.engine.fused_updates import fuse_updates
from fedcore.engine.inductor import Inductor
from tests import toys

aten = torch.ops.aten
N, INPUTS, OUTPUTS, B, STEPS = 16, 7, 3, 4, 3


@pytest.fixture
def traced(monkeypatch):
    """Run traced steps as they are, which takes no time to compile."""
    monkeypatch.setattr(kept_functions, "load", lambda name: None)
    monkeypatch.setattr(inductor, "_compiled", lambda graph, examples, name: graph)


@pytest.fixture
def exchanges(monkeypatch):
    """Exchange wherever it is possible, two steps a call; what came of every attempt."""
    found = []

    def noted(graph, places):
        found.append(rewrite(graph, places))
        return found[-1]

    monkeypatch.setattr(compiled_steps, "is_worthwhile", lambda num_examples, steps, rows, weight: True)
    monkeypatch.setattr(Inductor, "unrolled", lambda self, num_params, rows, convolves: 2)
    monkeypatch.setattr(inductor, "rewrite", noted)
    return found


# --- whole trainings ---


@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [16, 6]}, {"name": "softmax_regression"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_training_agrees_with_steps_one_by_one(exchanges, traced, model, dtype):
    """Ragged clients, short last batches, three epochs: every example is seen again with moved weights."""
    settings = {"local_epochs": 3, "dtype": dtype}
    plain = toys.training(model=toys.net(model), compile="never", **settings).run()
    work = toys.training(model=toys.net(model), compile="always", **settings)
    fast = work.run()
    assert exchanges
    assert all(exchanges)
    assert work.executor.remarks == []
    exact = 1e-6 if dtype == torch.float32 else 1e-14
    assert 0 < toys.distance(plain.server.params, fast.server.params) < exact
    assert fast.history[-1]["train/loss"] == pytest.approx(plain.history[-1]["train/loss"], abs=1e-6)


def test_compiled_functions_agree_with_steps_one_by_one(exchanges):
    plain, fast = (toys.training(compile=c, rounds=1, local_epochs=3).run() for c in ("never", "always"))
    assert exchanges
    assert all(exchanges)
    assert 0 < toys.distance(plain.server.params, fast.server.params) < 1e-6


def test_images_are_scaled_and_flattened_as_the_model_sees_them(exchanges, traced):
    fed, model = toys.federation(image=True), {"name": "mlp", "hidden": [6]}
    plain, fast = (
        toys.training(fed=fed, model=toys.net(model, image=True), compile=c, local_epochs=2)
        for c in ("never", "always")
    )
    assert 0 < toys.distance(plain.run().server.params, fast.run().server.params) < 1e-6
    assert all(exchanges)
    assert exchanges


def test_who_trains_beside_a_client_changes_no_bit(exchanges, traced):
    alone, together = (toys.training(compile="always", local_epochs=2, workers=w).run() for w in (1, 2))
    assert toys.equal(alone.server.params, together.server.params)
    assert all(exchanges)


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.5},
        {"weight_decay": 0.1},
        {"composed": toys.composition(add={"prox": {"mu": 0.5}})},
        {"composed": toys.composition(add={"mixup": {}})},
        {"composed": toys.composition("scaffold")},
        {"composed": toys.composition(add={"moon": {}})},
    ],
    ids=["momentum", "weight decay", "prox", "mixup", "scaffold", "moon"],
)
def test_what_does_more_with_weight_or_inputs_keeps_its_steps_bit_for_bit(exchanges, traced, monkeypatch, settings):
    tried = toys.training(compile="always", **settings).run()
    assert exchanges
    assert not any(exchanges)
    monkeypatch.setattr(compiled_steps, "is_worthwhile", lambda num_examples, steps, rows, weight: False)
    kept = toys.training(compile="always", **settings).run()
    assert toys.equal(tried.server.params, kept.server.params)


def test_an_exchange_that_breaks_is_said_and_leaves_compiled_steps(exchanges, traced, monkeypatch):
    def broken(graph, places):
        raise ValueError("no such graph")

    monkeypatch.setattr(inductor, "rewrite", broken)
    work = toys.training(compile="always", rounds=1)
    kept = work.run()
    said = "steps of phase 'train' in the space of examples ran uncompiled: ValueError: no such graph"
    assert work.executor.remarks == [said]
    monkeypatch.setattr(compiled_steps, "is_worthwhile", lambda num_examples, steps, rows, weight: False)
    assert toys.equal(kept.server.params, toys.training(compile="always", rounds=1).run().server.params)


@pytest.mark.parametrize(
    "composed",
    [
        toys.composition(add={"calibration": {}}),
        toys.composition(add={"dbe": {}}),
        toys.composition("fedrep"),
        toys.composition("fednova"),
    ],
    ids=["calibration", "dbe", "fedrep", "fednova"],
)
def test_losses_of_outputs_and_features_go_with_it(exchanges, traced, composed):
    plain, fast = (toys.training(composed, compile=c, local_epochs=2).run() for c in ("never", "always"))
    assert any(exchanges)
    assert 0 < toys.distance(plain.server.params, fast.server.params) < 1e-6


# --- one client ---


def test_a_client_s_layer_is_where_its_steps_would_have_brought_it():
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, INPUTS), (OUTPUTS, INPUTS))
    )
    rows = torch.tensor([[0, 5, 5, 2], [1, 0, 4, 3], [5, 5, 0, 1]])
    space = ExampleSpace(x, [torch.zeros(2), weight], Places(weight=1, inputs=2, num_examples=N))
    other, coordinates = space.enter([torch.zeros(2), weight])
    h, g, own, mask = space.given([x[rows], torch.ones(STEPS, B)], rows)
    assert [tuple(t.shape) for t in (h, g, own, mask)] == [(N, OUTPUTS), (N, N), (STEPS, B), (STEPS, B)]
    moved = weight
    for k in range(STEPS):
        outputs = h[own[k]] + g[own[k]] @ coordinates
        assert torch.allclose(outputs, x[rows[k]] @ moved.t(), atol=1e-12)
        slopes = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
        moved = moved - 0.1 * slopes.t() @ x[rows[k]]
        coordinates = coordinates.index_add(0, own[k], -0.1 * slopes)
    left = space.leave([other, coordinates])
    assert left[0] is other
    assert torch.allclose(left[1], moved, atol=1e-12)
    assert not torch.allclose(left[1], weight, atol=0.1)


@pytest.mark.parametrize(("examples", "functions"), [(1, 16), (16, 16), (17, 32), (60, 64), (64, 64), (65, 128)])
def test_few_functions_serve_clients_of_all_sizes(examples, functions):
    assert padded(examples) == functions


@pytest.mark.parametrize(
    ("examples", "steps", "rows", "shape", "expected"),
    [
        # 64 * 784 * (2 * 200 + 64) + 15 * 2 * 20 * 64 * 200 = 31.0 million products
        # instead of 15 * 2 * 20 * 784 * 200 = 94.1
        (60, 15, 20, (200, 784), True),
        (60, 6, 20, (200, 784), False),  # 26.4 instead of 37.6: two epochs
        (60, 15, 20, (200, 60), False),  # 9.7 instead of 7.2: hardly more inputs than examples
        (600, 300, 10, (10, 60), False),  # 125.2 instead of 3.6: a small layer of a client with many examples
    ],
)
def test_it_is_done_where_it_multiplies_less(examples, steps, rows, shape, expected):
    assert is_worthwhile(examples, steps, rows, torch.empty(shape)) is expected


def test_the_layer_is_the_learning_one_with_as_many_inputs():
    params = {"a": torch.empty(4), "b": torch.empty(2, 3), "c": torch.empty(5, 4), "d": torch.empty(4, 4)}
    assert layer(params, ("a", "b", "c", "d"), 4) == "c"
    assert layer(params, ("d",), 4) == "d"
    assert layer(params, ("a", "b"), 4) is None


# --- graphs ---


def _graph(step, scale=True, results=lambda weight, other, loss: [weight, other, loss]):
    """Trace steps of W [O, I], of another tensor and a batch [STEPS, B, I]; its offset and scale come last."""

    def steps(weight, other, batches, lr, offset, factor):
        loss = torch.zeros(())
        batches = (batches - offset) * factor if scale else batches
        for k in range(STEPS):
            weight, other, value = step(weight, other, batches[k], lr)
            loss = loss + value
        return results(weight, other, loss)

    generator = torch.Generator().manual_seed(0)
    shapes = (OUTPUTS, INPUTS), (OUTPUTS,), (STEPS, B, INPUTS), (), (INPUTS,), (INPUTS,)
    arguments = [torch.randn(shape, generator=generator) for shape in shapes]
    graph = make_fx(steps, tracing_mode="fake")(*arguments)
    fuse_updates(graph)
    return graph, arguments


def _plain(weight, other, x, lr):
    outputs = x @ weight.t() + other
    slopes = torch.tanh(outputs)
    return weight - lr * (slopes.t() @ x), other - lr * slopes.sum(0), outputs.sum()


PLACES = Places(weight=0, inputs=2, num_examples=N)


def test_steps_are_rewritten_without_the_inputs():
    graph, (weight, other, x, lr, offset, factor) = _graph(_plain)
    moved, biases, loss = graph(weight, other, x, lr, offset, factor)
    assert rewrite(graph, PLACES)
    graph.graph.lint()
    rows = torch.arange(STEPS * B).view(STEPS, B)
    space = ExampleSpace(((x - offset) * factor).flatten(0, 1), [weight], Places(0, 1, N))
    new = graph(space.enter([weight])[0], other, *space.given([x], rows), lr, offset, factor)
    assert new[0].shape == (N, OUTPUTS)
    assert torch.allclose(space.leave([new[0]])[0], moved, atol=1e-5)
    assert torch.allclose(new[1], biases, atol=1e-5)
    assert torch.allclose(new[2], loss, atol=1e-5)


def _decayed(weight, other, x, lr):
    outputs = x @ weight.t() + other
    return weight - lr * (torch.tanh(outputs).t() @ x), other, (outputs.sum() + weight.sum())


def _read_inputs(weight, other, x, lr):
    outputs = x @ weight.t() + other
    return weight - lr * (torch.tanh(outputs).t() @ x), other, outputs.sum() + x.sum()


def _other_inputs(weight, other, x, lr):
    outputs = (2 * x) @ weight.t() + other
    return weight - lr * (torch.tanh(outputs).t() @ x), other, outputs.sum()


def _another_batch(weight, other, x, lr):
    outputs = x.flip(0) @ weight.t() + other
    return weight - lr * (torch.tanh(outputs).t() @ x.flip(0)), other, outputs.sum()


def _never_moves(weight, other, x, lr):
    return weight, other, (x @ weight.t()).sum()


@pytest.mark.parametrize(
    "step", [_decayed, _read_inputs, _other_inputs, _another_batch, _never_moves], ids=lambda step: step.__name__
)
def test_other_uses_of_weight_or_inputs_are_left_alone(step):
    graph, arguments = _graph(step)
    before, code = graph(*arguments), graph.code
    assert not rewrite(graph, PLACES)
    assert graph.code == code
    assert torch.equal(graph(*arguments)[2], before[2])


@pytest.mark.parametrize(
    "results",
    [
        lambda weight, other, loss: [weight, weight, loss],
        lambda weight, other, loss: [other, weight, loss],
    ],
    ids=["twice", "elsewhere"],
)
def test_a_weight_that_becomes_something_else_too_is_left_alone(results):
    graph, _ = _graph(_plain, results=results)
    assert not rewrite(graph, PLACES)


def test_inputs_that_are_not_scaled_as_the_examples_are_left_alone():
    graph, _ = _graph(_plain, scale=False)
    assert not rewrite(graph, PLACES)


def test_a_step_on_other_rows_than_its_slopes_are_of_is_left_alone():
    def crossed(weight, other, batches, lr, offset, factor):
        scaled = (batches - offset) * factor
        one, two = scaled[0], scaled[1]
        slopes = torch.tanh(one @ weight.t() + other)
        weight = weight - lr * (slopes.t() @ two)
        slopes = torch.tanh(two @ weight.t() + other)
        return [weight - lr * (slopes.t() @ one), other, slopes.sum()]

    shapes = (OUTPUTS, INPUTS), (OUTPUTS,), (2, B, INPUTS), (), (INPUTS,), (INPUTS,)
    graph = make_fx(crossed, tracing_mode="fake")(*map(torch.randn, shapes))
    fuse_updates(graph)
    assert not rewrite(graph, PLACES)
