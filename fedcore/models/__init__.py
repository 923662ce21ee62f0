"""Models: a body that makes features and a head that classifies them."""

from __future__ import annotations

from fedcore.config import GroupCnn, LeNet, Mlp, SoftmaxRegression
from fedcore.config import Model as ModelConfig
from fedcore.models.convolutional import cnn, group_cnn, lenet
from fedcore.models.dense import mlp, softmax_regression
from fedcore.models.net import Model, Net
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
        if isinstance(config, SoftmaxRegression):
            return Net(softmax_regression(input_shape, num_classes), num_classes)
        if isinstance(config, Mlp):
            return Net(mlp(config, input_shape, num_classes), num_classes)
        if isinstance(config, LeNet):
            return Net(lenet(input_shape, num_classes), num_classes)
        if isinstance(config, GroupCnn):
            return Net(group_cnn(input_shape, num_classes), num_classes)
        return Net(cnn(config, input_shape, num_classes), num_classes, config.batch_norm)
