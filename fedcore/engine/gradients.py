"""How an executor differentiates a client's objective."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value

from fedcore.objective import Objective
from fedcore.trees import Tree, tree_map
from fedcore.types import Params


def by_autograd(objective: Objective, params: Params) -> tuple[Params, Tensor, Tree]:
    """Return gradient, loss and the rest by reverse-mode differentiation."""
    inputs = {name: p.detach().requires_grad_() for name, p in params.items()}
    with torch.enable_grad():
        loss, rest = objective(inputs)
        slopes = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(inputs, slopes, strict=True)), loss.detach(), tree_map(torch.Tensor.detach, rest)


def by_transform(objective: Objective, params: Params) -> tuple[Params, Tensor, Tree]:
    """Return gradient, loss and the rest by a functional transform, which vmap can batch and a tracer can follow."""
    gradient, (loss, rest) = grad_and_value(objective, has_aux=True)(params)
    return gradient, loss, rest
