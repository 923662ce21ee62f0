"""VGG-11 without normalisation."""

from __future__ import annotations

from torch import nn

from fedcore.config import Vgg11
from fedcore.models.inputs import check_images
from fedcore.models.net import Model

# Of each of the five stages: its convolutions' widths, in multiples of the first one's.
_STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8))


def vgg11(config: Vgg11, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """Eight 3x3 convolutions in five pooled stages, averaged over the image, and one linear layer.

    FedBR's CIFAR-10 model: 9,225,610 parameters with three colours and 10 classes. Places: ``stage1`` to ``stage5``,
    each after its pooling.

    Source: Simonyan and Zisserman, ICLR 2015, https://arxiv.org/abs/1409.1556, table 1 column A; an average and one
    linear layer stand in for its three fully connected layers, and there is no dropout.

    Raises
    ------
    ValueError
        If inputs are no images, or smaller than 32 pixels on a side, which five poolings would shrink to nothing.
    """
    check_images("vgg11", input_shape, 32, "cnn, group_cnn, resnet or, for what is no image, mlp")
    body, channels, layers = nn.Sequential(), input_shape[0], {}
    for number, multiples in enumerate(_STAGES, 1):
        for multiple in multiples:
            body.extend([_convolution(channels, multiple * config.width), nn.ReLU()])
            channels = multiple * config.width
        body.append(nn.MaxPool2d(2))
        layers[f"stage{number}"] = len(body)
    body.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    return Model(body, nn.Linear(channels, num_classes), channels, layers, input_shape)


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Return one whose outputs vary as much as its inputs: without normalisation torch's default starts near zero."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    return convolution
