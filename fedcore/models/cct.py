"""The compact convolutional transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedcore.config import Cct
from fedcore.models.inputs import check_images
from fedcore.models.net import Model


def cct(config: Cct, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """A convolution that makes tokens of an image, transformer layers, a weighted mean of the tokens, a linear layer.

    The defaults are CCT-7/3x1, FedBR's CIFAR-100 model: 3,760,139 parameters with 3x32x32 and 10 classes. Places:
    ``tokens`` [T, D], T a quarter of the pixels, and ``layer1`` to the last, of the same shape.

    Source: Hassani et al., https://arxiv.org/abs/2104.05704, section 3. The published training drops attention
    weights and whole layers at random (0.1 each); here nothing is dropped.

    Raises
    ------
    ValueError
        If inputs are no images, or smaller than 4 pixels on a side.
    """
    check_images("cct", input_shape)
    tokens = math.ceil(input_shape[1] / 2) * math.ceil(input_shape[2] / 2)
    body = nn.Sequential(
        nn.Conv2d(input_shape[0], config.width, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
        Tokens(),
        Positions(tokens, config.width),
    )
    nn.init.kaiming_normal_(body[0].weight)  # type: ignore[arg-type]
    layers = {"tokens": len(body)}
    for number in range(1, config.layers + 1):
        body.append(TransformerLayer(config.width, config.heads))
        layers[f"layer{number}"] = len(body)
    body.extend([nn.LayerNorm(config.width), SequencePool(config.width)])
    head = _linear(config.width, num_classes)
    return Model(body, head, config.width, layers, input_shape)


class Tokens(nn.Module):
    """Turns maps [B, D, H, W] into tokens [B, H W, D]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens, row by row."""
        return x.flatten(2).transpose(1, 2)


class Positions(nn.Module):
    """Adds a learned vector to each of the tokens [B, T, D]."""

    def __init__(self, tokens: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, tokens, width))
        nn.init.trunc_normal_(self.weight, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens with their positions."""
        return x + self.weight


class Attention(nn.Module):
    """Self-attention of several heads over tokens [B, T, D], of matrix products only: any transform can batch it."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.mix = _linear(width, 3 * width, bias=False)
        self.out = _linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many tokens, each a mixture of all."""
        parts = self.mix(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)  # [B, heads, 3, T, D / heads]
        query, key, value = parts.unbind(2)
        weights = (query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])).softmax(-1)
        joined: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return joined


class TransformerLayer(nn.Module):
    """Attention and two linear layers, each added to the tokens [B, T, D]; the sum between them is normalised."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.between = nn.LayerNorm(width)
        self.widen = _linear(width, 2 * width)
        self.narrow = _linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return as many tokens."""
        mixed = self.between(x + self.attention(self.before(x)))
        result: Tensor = mixed + self.narrow(F.gelu(self.widen(mixed)))
        return result


class SequencePool(nn.Module):
    """The mean of the tokens [B, T, D], weighted by the softmax of a linear layer."""

    def __init__(self, width: int):
        super().__init__()
        self.score = _linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one vector [B, D] for each image."""
        weights: Tensor = self.score(x).softmax(1)
        return (weights * x).sum(1)


def _linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, bias)
    nn.init.trunc_normal_(linear.weight, std=0.02)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
