"""Local SGD as a function: parameters and momentum in, parameters and momentum out."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fedcore.config import Train
from fedcore.types import Params


def learning_rate(train: Train, round: int, participations: int) -> float:
    """Return a client's learning rate in a round; set-up rounds use the first round's."""
    return float(train.lr * train.lr_decay ** (max(round, 0) if train.lr_decay_by == "round" else participations))


def descend(
    params: Params, gradient: Params, momentum: Params, lr: float | Tensor, train: Train
) -> tuple[Params, Params]:
    """Return parameters and momentum after one step; leaves without a gradient stay untouched.

    Weight decay is part of the gradient, momentum is without dampening, as in `torch.optim.SGD`.
    """
    new, velocity = dict(params), dict(momentum)
    for name, slope in gradient.items():
        if train.weight_decay:
            slope = slope + train.weight_decay * params[name]
        if train.momentum:
            slope = train.momentum * momentum[name] + slope
            velocity[name] = slope
        # With a plain number one pass does it, and one tensor less is made.
        new[name] = params[name] - lr * slope if isinstance(lr, Tensor) else params[name].sub(slope, alpha=lr)
    return new, velocity


class Motion(NamedTuple):
    """What an optimiser does to a scalar whose gradient is always one."""

    moved: float
    velocity: float  # afterwards


def unit_motion(steps: int, lr: float, momentum: float, damping: float, velocity: float = 0.0) -> Motion:
    """Return how some steps move a scalar whose gradient is always one.

    How far is the step mass: eta * ||a||_1 of FedNova and the divisor of SCAFFOLD's control update. That is
    ``lr * steps`` for plain SGD, more with momentum, less with a proximal term (``damping``) inside it.

    Parameters
    ----------
    velocity : float
        At the first step: of a client that keeps its momentum, what its last round ended with.
    """
    moved = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - damping * moved
        moved += lr * velocity
    return Motion(moved, velocity)
