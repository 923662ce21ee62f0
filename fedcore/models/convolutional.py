"""The papers' 4-layer CNN."""

from __future__ import annotations

import torch
from torch import nn

from fedcore.config import Cnn
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
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ValueError(
            f"model.name 'cnn' needs images of at least 4x4 pixels, got inputs of shape {input_shape};"
            " valid here: mlp, softmax_regression"
        )
    padding = 0 if min(input_shape[1:]) >= 16 else 2
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
    with torch.no_grad():
        width = convolutions.eval()(torch.zeros(1, *input_shape)).numel()
    body = nn.Sequential(*convolutions.train(), nn.Flatten(), nn.Linear(width, config.hidden), nn.ReLU())
    layers = {"conv1": len(convolutions) // 2, "conv2": len(convolutions)}
    return Model(body, nn.Linear(config.hidden, num_classes), config.hidden, layers, input_shape)


def _norm(config: Cnn, channels: int) -> list[nn.Module]:
    if config.norm == "batch":
        return [nn.BatchNorm2d(channels)]
    if config.norm == "group":
        return [nn.GroupNorm(min(8, channels), channels)]
    return []
