"""How far clients' models lie from their mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def client_drift(models: Iterable[Mapping[str, Tensor]], mean: Mapping[str, Tensor]) -> float:
    """Return the mean over clients of ||w_i - w||_2, over all parameters together and not squared.

    Parameters
    ----------
    models : iterable of mapping from name to tensor
        Each client's parameters after its local training, before aggregation. Read once and not kept, so a
        generator will do. Without buffers: a batch normalisation's counters and running statistics would drown
        what the parameters do.
    mean : mapping from name to tensor
        The aggregated parameters w of the same round, of the same names and shapes.

    Raises
    ------
    ValueError
        If there is no model, or a model's names or shapes are not those of `mean`.

    Source      Tang et al., ICML 2022 (VHL), client drift. https://arxiv.org/abs/2206.02465
    """
    distances = [_distance(model, mean, number) for number, model in enumerate(models)]
    if not distances:
        raise ValueError("client drift needs at least one client's model, got none")
    return math.fsum(distances) / len(distances)


def _distance(model: Mapping[str, Tensor], mean: Mapping[str, Tensor], number: int) -> float:
    if model.keys() != mean.keys():
        raise ValueError(f"model {number} and the mean differ in the names {sorted(model.keys() ^ mean.keys())}")
    for name, value in model.items():
        if value.shape != mean[name].shape:
            raise ValueError(f"model {number}, {name}: shape {list(value.shape)}, the mean's {list(mean[name].shape)}")
    # In double precision: the difference of two near models of millions of parameters is small beside them.
    norms = [float(torch.linalg.vector_norm(model[name].double() - mean[name].double())) for name in mean]
    return math.hypot(*norms)
