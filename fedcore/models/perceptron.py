"""A multilayer perceptron that a method or add-on brings beside the model: a generator, a head, an adversary.

It is a flat tree of leaves ``<layer>.weight`` and ``<layer>.bias``, layers numbered from 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from fedcore.models.net import Net
from fedcore.types import Params


def draw(net: Net, prefix: str, widths: Sequence[int], generator: np.random.Generator) -> Params:
    """Return a perceptron's leaves, of the type and on the device of the net's, drawn as `torch.nn.Linear` draws.

    Parameters
    ----------
    prefix : str
        What every leaf's name begins with.
    widths : at least two int, >= 1
        Of the input, of the hidden layers, of the output.
    """
    like = next(iter(net.initial_params.values()))
    params = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        bound = inputs**-0.5
        for name, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            drawn = generator.uniform(-bound, bound, shape)
            params[f"{prefix}{layer}.{name}"] = torch.as_tensor(drawn, dtype=like.dtype, device=like.device)
    return params


def forward(params: Params, x: Tensor) -> Tensor:
    """Return the outputs [B, O] of inputs [B, I], with rectifiers between the layers.

    Parameters
    ----------
    params : leaves without a prefix
    """
    for layer in range(len(params) // 2):
        x = linear(torch.relu(x) if layer else x, params[f"{layer}.weight"], params[f"{layer}.bias"])
    return x
