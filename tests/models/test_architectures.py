"""The papers' models: numbers of parameters, layers by name, and what they refuse."""

import pytest
import torch
from pydantic import TypeAdapter

from fedcore import models
from fedcore.config import ConfigError, validate
from fedcore.config import Model as ModelConfig
from fedcore.models.net import Model, Net
from fedcore.seeds import torch_stream
from tests import toys

LENET = {"name": "lenet"}
GROUP_CNN = {"name": "group_cnn"}


def build(section, shape, classes=10, seed=0):
    return models.build(TypeAdapter(ModelConfig).validate_python(section), shape, classes, seed)


@pytest.mark.parametrize(
    ("section", "shape", "expected"),
    [
        # 3 * 6 * 25 + 6, 6 * 16 * 25 + 16, 400 * 120 + 120, 120 * 100 + 100, 100 * 10 + 10: LG-FedAvg's CIFAR10 model
        (LENET, (3, 32, 32), [456, 2_416, 48_120, 12_100, 1_010]),
        # LG-FedAvg's MNIST model, 633,226 in all
        ({"name": "mlp", "hidden": [512, 256, 256, 128]}, (1, 28, 28), [401_920, 131_328, 65_792, 32_896, 1_290]),
        # w * c * 9 + w and two of w for each normalisation: FedBR's rotated MNIST model
        (GROUP_CNN, (1, 28, 28), [640, 128, 73_856, 256, 147_584, 256, 147_584, 256, 1_290]),
    ],
)
def test_the_papers_parameter_counts(section, shape, expected):
    params = build(section, shape).initial_params
    sizes = {}
    for name, value in params.items():
        layer = name.rsplit(".", 1)[0]
        sizes[layer] = sizes.get(layer, 0) + value.numel()
    assert list(sizes.values()) == expected
    totals = {"lenet": 64_102, "mlp": 633_226, "group_cnn": 371_850}
    assert sum(expected) == totals[section["name"]]


@pytest.mark.parametrize(
    ("section", "shape", "expected", "width"),
    [
        (LENET, (3, 32, 32), {"conv1": (6, 14, 14), "conv2": (16, 5, 5), "fc1": (120,)}, 100),
        (LENET, (1, 8, 8), {"conv1": (6, 4, 4), "conv2": (16, 2, 2), "fc1": (120,)}, 100),
        (
            GROUP_CNN,
            (1, 28, 28),
            {"conv1": (64, 28, 28), "conv2": (128, 14, 14), "conv3": (128, 14, 14), "conv4": (128, 14, 14)},
            128,
        ),
    ],
)
def test_layers_by_name(section, shape, expected, width):
    net = build(section, shape)
    assert net.layer_shapes == expected
    assert net.feature_dim == width
    assert net.input_shape == shape
    x = torch.randn(2, *shape, generator=torch_stream(0, "test"))
    seen = {}
    changes = {name: lambda z, name=name: seen.setdefault(name, z) for name in expected}
    z = net.features(net.initial_params, x, changes)
    assert {name: tuple(value.shape[1:]) for name, value in seen.items()} == expected
    assert z.shape == (2, width)
    assert torch.equal(z, net.features(net.initial_params, x))


def test_the_averaged_features_are_those_of_the_last_convolution():
    net = build(GROUP_CNN, (1, 8, 8))
    seen = []
    x = torch.randn(3, 1, 8, 8, generator=torch_stream(0, "test"))
    z = net.features(net.initial_params, x, {"conv4": lambda z: seen.append(z) or z})
    torch.testing.assert_close(z, seen[0].mean((2, 3)))
    # Normalised last: 8 groups of 16 channels, each of mean 0 and variance 1.
    groups = seen[0].reshape(3, 8, -1)
    assert float(groups.mean(-1).abs().max().detach()) < 1e-5
    assert float((groups.var(-1, correction=0) - 1).abs().max().detach()) < 1e-2


@pytest.mark.parametrize("section", [LENET, GROUP_CNN])
def test_both_executors_train_it_to_the_same_model(section):
    fed = toys.federation((9, 5), image=True)
    runs = [
        toys.run(None, fed, toys.net(section, image=True), executor=executor, rounds=1, dtype=torch.float64)
        for executor in ("serial", "stacked")
    ]
    assert toys.distance(runs[0].server.params, runs[1].server.params) < 1e-10


@pytest.mark.parametrize("section", [LENET, GROUP_CNN])
@pytest.mark.parametrize("shape", [(5,), (1, 3, 8)])
def test_what_is_no_image_is_refused(section, shape):
    message = rf"model\.name '{section['name']}' needs images of at least 4x4 pixels, got inputs of shape \({shape[0]},"
    with pytest.raises(ValueError, match=message):
        build(section, shape)


@pytest.mark.parametrize("section", [LENET, GROUP_CNN])
def test_feature_vectors_are_refused_before_there_is_a_model(section):
    values = {
        "experiment": "toy",
        "dataset": {"name": "synthetic"},
        "partition": {"scheme": "natural"},
        "model": section,
        "train": {"rounds": 1, "batch_size": 8, "lr": 0.1},
        "methods": {"fedavg": {}},
        "compare": {"seeds": [0], "baseline": "fedavg"},
    }
    with pytest.raises(ConfigError, match=rf"'{section['name']}' needs images; 'synthetic' has feature vectors"):
        validate(values)


def test_a_weight_that_two_layers_share_is_the_given_one_in_both():
    first, second = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    net = Net(Model(torch.nn.Sequential(first, second), torch.nn.Linear(4, 2), 4, {}, (4,)), num_classes=2)
    weight, x = torch.arange(16.0).reshape(4, 4), torch.ones(1, 4)
    assert torch.equal(net.features({"body.0.weight": weight}, x), x @ weight.T @ weight.T)
