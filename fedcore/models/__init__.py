"""Models: a body that makes features and a head that classifies them."""

from __future__ import annotations

from fedcore.config import Cct, Cnn, FastText, GroupCnn, HarCnn, LeNet, Mlp, ResNet, SoftmaxRegression, Vgg11
from fedcore.config import Model as ModelConfig
from fedcore.models.cct import cct
from fedcore.models.convolutional import cnn, group_cnn, lenet
from fedcore.models.dense import mlp, softmax_regression
from fedcore.models.fast_text import fast_text
from fedcore.models.har_cnn import har_cnn
from fedcore.models.net import Model, Net
from fedcore.models.resnet import resnet
from fedcore.models.vgg import vgg11
from fedcore.seeds import module_stream

__all__ = ["Model", "Net", "build"]


def build(config: ModelConfig, input_shape: tuple[int, ...], num_classes: int, seed: int) -> Net:
    """Build a model with initial values keyed by `seed`: the same for every method of a comparison.

    Raises
    ------
    ValueError
        If the model does not take inputs of this shape.
    """
    with module_stream(seed, "model"):
        module = _module(config, input_shape, num_classes)
    return Net(module, num_classes, config.batch_norm if isinstance(config, Cnn | ResNet) else "sync")


def _module(config: ModelConfig, shape: tuple[int, ...], classes: int) -> Model:
    match config:
        case SoftmaxRegression():
            return softmax_regression(shape, classes)
        case Mlp():
            return mlp(config, shape, classes)
        case Cnn():
            return cnn(config, shape, classes)
        case LeNet():
            return lenet(shape, classes)
        case GroupCnn():
            return group_cnn(shape, classes)
        case Vgg11():
            return vgg11(config, shape, classes)
        case ResNet():
            return resnet(config, shape, classes)
        case Cct():
            return cct(config, shape, classes)
        case FastText():
            return fast_text(config, shape, classes)
        case HarCnn():
            return har_cnn(config, shape, classes)
