"""Convolutions as products of patches and kernels, beside PyTorch's own."""

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from fedcore import models
from fedcore.config import Model as ModelConfig
from fedcore.models import products
from tests import toys
from tests.engine.test_devices import MODELS, REFUSED
from tests.pretended import META, Pretended

IMAGES = ("vgg11", "batch", "group", "bottleneck", "cct", "cnn", "cnn, batch", "lenet", "group_cnn")
CNN = {"name": "cnn", "channels": [2, 3], "hidden": 8}


def _drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize(
    ("changes", "becomes_a_product"),
    [
        ({}, True),
        ({"padding": (2, 1)}, True),
        ({"stride": (2, 3), "padding": 1}, True),
        ({"dilation": (1, 2)}, True),
        ({"bias": False}, True),
        ({"groups": 2}, False),
    ],
    ids=str,
)
def test_a_layer_gives_what_pytorchs_gives(changes, becomes_a_product, monkeypatch):
    layer, x = nn.Conv2d(4, 6, (3, 2), dtype=torch.float64, **changes), _drawn(5, 4, 9, 8)
    calls, convolution = [], products._convolution
    monkeypatch.setattr(products, "_convolution", lambda *given: calls.append(given) or convolution(*given))
    torch.testing.assert_close(products.by_products(layer)(x), layer(x), atol=1e-12, rtol=0)
    assert len(calls) == becomes_a_product


def _gradients(net, params, buffers, x, y):
    """Return the gradients of clients with parameters, buffers and examples of their own."""

    def loss(params, buffers, x, y):
        bound = net.bind(buffers, training=True)
        return cross_entropy(bound.classify(params, bound.features(params, x)), y)

    return vmap(grad(loss))(params, buffers, x, y)


@pytest.mark.parametrize("name", IMAGES)
def test_gradients_of_clients_side_by_side_are_those_of_convolutions(name):
    section, shape = MODELS[name]
    net = models.build(TypeAdapter(ModelConfig).validate_python(section), shape, 3, 0).to(
        torch.device("cpu"), torch.float64
    )
    params = {n: torch.stack([p, p + 0.1 * _drawn(*p.shape)]) for n, p in net.initial_params.items()}
    buffers = {n: torch.stack([b, b]) for n, b in net.initial_buffers.items()}
    given = (params, buffers, _drawn(2, 4, *shape), torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]]))
    assert toys.distance(_gradients(net, *given), _gradients(net.convolving_by_products(), *given)) < 1e-10


@pytest.mark.parametrize("name", IMAGES)
def test_a_gpu_refuses_nothing_of_it(name):
    section, shape = MODELS[name]
    net = models.build(TypeAdapter(ModelConfig).validate_python(section), shape, 3, 0).to(META).convolving_by_products()
    params, buffers = (
        {n: torch.stack([t, t]) for n, t in tree.items()} for tree in (net.initial_params, net.initial_buffers)
    )
    x, y = torch.zeros(2, 4, *shape, device=META), torch.zeros(2, 4, dtype=torch.int64, device=META)
    with Pretended() as device:
        _gradients(net, params, buffers, x, y)
    assert not device.crossings
    assert not device.operators & (REFUSED | {"convolution", "convolution_backward"})


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_local_training_convolves_as_told_and_evaluation_as_ever(executor, monkeypatch):
    calls, convolution = [], products._convolution
    monkeypatch.setattr(products, "_convolution", lambda *given: calls.append(given) or convolution(*given))
    net = toys.net(CNN, image=True)
    works = {}
    for how in ("direct", "products"):
        works[how] = toys.training(
            None, toys.federation(image=True), net, dtype=torch.float64, executor=executor, convolutions=how
        )
        works[how].run()
        assert bool(calls) == (how == "products")
    assert toys.distance(*(work.progress.server.params for work in works.values())) < 1e-10
    calls.clear()
    works["products"]._evaluate(0)
    assert not calls
