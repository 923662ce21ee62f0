"""Residual networks of 10, 18, 34 and 50 layers."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from fedcore.config import ResNet
from fedcore.models.inputs import check_images
from fedcore.models.net import Model

_BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def resnet(config: ResNet, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """A stem, four stages of residual blocks, an average over the image, and one linear layer.

    The stem is one 3x3 convolution (``cifar``), or a 7x7 one of stride 2 and a pooling (``stock``, torchvision's).
    Blocks have two 3x3 convolutions; those of 50 layers have 1x1, 3x3 (with the stride) and 1x1, four times as wide.
    With three colours, 10 classes and batch normalisation, ``cifar`` has 4,903,242, 11,173,962, 21,282,122 and
    23,520,842 parameters; ``stock`` has 7,680 more. Places: ``stem`` and ``layer1`` to ``layer4``.

    Source: He et al., CVPR 2016, https://arxiv.org/abs/1512.03385, sections 3.3 and 4.2, with 1x1 convolutions on
    the shortcuts that change shape. Group normalisation, of at most 8 groups, is not in the paper.

    Raises
    ------
    ValueError
        If inputs are no images, or smaller than 4 pixels on a side.
    """
    check_images("resnet", input_shape)
    body = _stem(config, input_shape[0])
    layers, channels = {"stem": len(body)}, config.width
    expansion = 4 if config.depth == 50 else 1
    for stage, count in enumerate(_BLOCKS[config.depth]):
        for number in range(count):
            inner, stride = config.width * 2**stage, 2 if stage > 0 and number == 0 else 1
            body.append(_block(config, channels, inner, expansion, stride))
            channels = inner * expansion
        layers[f"layer{stage + 1}"] = len(body)
    body.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    return Model(body, nn.Linear(channels, num_classes), channels, layers, input_shape)


class Residual(nn.Module):
    """The rectified sum of a branch and a shortcut of the same input [B, C, H, W]."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module):
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum, its negative values set to 0."""
        return F.relu(self.branch(x) + self.shortcut(x))


def _stem(config: ResNet, channels: int) -> nn.Sequential:
    if config.stem == "cifar":
        return nn.Sequential(*_convolution(config, channels, config.width, 3), nn.ReLU())
    return nn.Sequential(*_convolution(config, channels, config.width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))


def _block(config: ResNet, channels: int, inner: int, expansion: int, stride: int) -> Residual:
    outputs = inner * expansion
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or channels != outputs:
        shortcut = nn.Sequential(*_convolution(config, channels, outputs, 1, stride))
    if expansion == 1:
        branch = nn.Sequential(
            *_convolution(config, channels, inner, 3, stride), nn.ReLU(), *_convolution(config, inner, inner, 3)
        )
    else:
        branch = nn.Sequential(
            *_convolution(config, channels, inner, 1),
            nn.ReLU(),
            *_convolution(config, inner, inner, 3, stride),
            nn.ReLU(),
            *_convolution(config, inner, outputs, 1),
        )
    return Residual(branch, shortcut)


def _convolution(config: ResNet, inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution that keeps the image's size but for the stride, and its normalisation."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    if config.norm == "batch":
        return [convolution, nn.BatchNorm2d(outputs)]
    return [convolution, nn.GroupNorm(math.gcd(8, outputs), outputs)]
