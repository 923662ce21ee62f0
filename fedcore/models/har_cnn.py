"""A CNN for series of sensor readings."""

from __future__ import annotations

import torch
from torch import nn

from fedcore.config import HarCnn
from fedcore.models.net import Model

_SIZE = 9
_LEAST = 28  # the shortest series that two convolutions of 9 and two poolings leave something of


def har_cnn(config: HarCnn, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """Conv9(32)-pool-Conv9(64)-pool-FC(1024)-FC(512)-FC along the time, with rectifiers.

    For inputs [9, 128] or [9, 1, 128], UCI HAR's nine sensors and 128 readings: 2,253,958 parameters with 6 classes.
    Places: ``conv1``, ``conv2``, ``fc1``.

    Source: DBE's paper names no architecture; this is the one of its authors' library, PFLlib, with convolutions of
    series in place of images one pixel high.

    Raises
    ------
    ValueError
        If inputs are no series, or shorter than 28 readings.
    """
    series = len(input_shape) == 2 or (len(input_shape) == 3 and input_shape[1] == 1)
    if not series or input_shape[-1] < _LEAST:
        raise ValueError(
            f"model.name 'har_cnn' needs series [channels, {_LEAST} or more readings], got inputs of shape"
            f" {input_shape}; valid here: mlp, softmax_regression"
        )
    first, second = config.channels
    convolutions = nn.Sequential(
        nn.Flatten(2),
        nn.Conv1d(input_shape[0], first, _SIZE),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(first, second, _SIZE),
        nn.ReLU(),
        nn.MaxPool1d(2),
    )
    with torch.no_grad():
        width = convolutions(torch.zeros(1, *input_shape)).numel()
    wide, narrow = config.hidden
    body = nn.Sequential(
        *convolutions, nn.Flatten(), nn.Linear(width, wide), nn.ReLU(), nn.Linear(wide, narrow), nn.ReLU()
    )
    return Model(body, nn.Linear(narrow, num_classes), narrow, {"conv1": 4, "conv2": 7, "fc1": 10}, input_shape)
