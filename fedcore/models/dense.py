"""Fully connected models."""

from __future__ import annotations

import itertools
import math

from torch import nn

from fedcore.config import Mlp
from fedcore.models.net import Model


def softmax_regression(input_shape: tuple[int, ...], num_classes: int) -> Model:
    """One linear layer; the body only flattens."""
    width = math.prod(input_shape)
    return Model(nn.Sequential(nn.Flatten()), nn.Linear(width, num_classes), width, {}, input_shape)


def mlp(config: Mlp, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """Linear layers with rectifiers; the last one is the head."""
    widths = [math.prod(input_shape), *config.hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    names = {f"hidden{i}": 1 + 2 * i for i in range(1, len(config.hidden))}
    return Model(nn.Sequential(*layers), nn.Linear(widths[-1], num_classes), widths[-1], names, input_shape)
