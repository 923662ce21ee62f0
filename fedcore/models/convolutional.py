"""The papers' convolutional models, for images of any size."""

from __future__ import annotations

import torch
from torch import nn

from fedcore.config import Cnn
from fedcore.models.inputs import check_images
from fedcore.models.net import Model


def cnn(config: Cnn, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """Conv5-pool-Conv5-pool-FC-FC with rectifiers, for images of any size.

    Images of 16 pixels and more get the papers' unpadded convolutions (28x28: 582,026 parameters with 10 classes);
    smaller ones, which those would shrink to nothing, get padding 2.

    Raises
    ------
    ValueError
        If inputs are no images, or smaller than 4 pixels on a side.
    """
    check_images("cnn", input_shape)
    padding = _padding(input_shape)
    first, second = config.channels
    convolutions = nn.Sequential(
        nn.Conv2d(input_shape[0], first, 5, padding=padding),
        *_norm(config, first),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=padding),
        *_norm(config, second),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    width = _width(convolutions, input_shape)
    body = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(width, config.hidden), nn.ReLU())
    layers = {"conv1": len(convolutions) // 2, "conv2": len(convolutions)}
    return Model(body, nn.Linear(config.hidden, num_classes), config.hidden, layers, input_shape)


def lenet(input_shape: tuple[int, ...], num_classes: int) -> Model:
    """Conv5(6)-pool-Conv5(16)-pool-FC(120)-FC(100)-FC with rectifiers (3x32x32: 64,102 parameters with 10 classes).

    Images smaller than 16 pixels get padding 2, as in `cnn`.

    Raises
    ------
    ValueError
        If inputs are no images, or smaller than 4 pixels on a side.
    """
    check_images("lenet", input_shape)
    padding = _padding(input_shape)
    convolutions = nn.Sequential(
        nn.Conv2d(input_shape[0], 6, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    width = _width(convolutions, input_shape)
    body = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(width, 120), nn.ReLU(), nn.Linear(120, 100), nn.ReLU())
    return Model(body, nn.Linear(100, num_classes), 100, {"conv1": 3, "conv2": 6, "fc1": 9}, input_shape)


def group_cnn(input_shape: tuple[int, ...], num_classes: int) -> Model:
    """Conv3(64)-Conv3(128, stride 2)-Conv3(128)-Conv3(128)-mean: each a rectifier, then 8 groups normalised.

    Source: Gulrajani and Lopez-Paz, ICLR 2021, https://arxiv.org/abs/2007.01434, whose code has the rectifier first;
    FedBR's model of rotated MNIST.

    Raises
    ------
    ValueError
        If inputs are no images, or smaller than 4 pixels on a side.
    """
    check_images("group_cnn", input_shape)
    body = nn.Sequential()
    channels, layers = input_shape[0], {}
    for number, (width, stride) in enumerate([(64, 1), (128, 2), (128, 1), (128, 1)], 1):
        body.extend([nn.Conv2d(channels, width, 3, stride, padding=1), nn.ReLU(), nn.GroupNorm(8, width)])
        channels, layers[f"conv{number}"] = width, len(body)
    body.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    return Model(body, nn.Linear(channels, num_classes), channels, layers, input_shape)


def _padding(input_shape: tuple[int, ...]) -> int:
    return 0 if min(input_shape[1:]) >= 16 else 2


@torch.no_grad()
def _width(convolutions: nn.Sequential, input_shape: tuple[int, ...]) -> int:
    """Return how many numbers they make of one image."""
    width = convolutions.eval()(torch.zeros(1, *input_shape)).numel()
    convolutions.train()
    return int(width)


def _norm(config: Cnn, channels: int) -> list[nn.Module]:
    if config.norm == "batch":
        return [nn.BatchNorm2d(channels)]
    if config.norm == "group":
        return [nn.GroupNorm(min(8, channels), channels)]
    return []
