"""Labels that are shares of classes, of mixed examples and of pseudo data."""

from __future__ import annotations

import torch
from torch import Tensor

from fedcore.types import Batch


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy [B] of logits [B, O] against shares of the first Y <= O classes [B, Y].

    Outputs that an add-on appended to the head have target zero.
    """
    return -(targets * torch.log_softmax(logits, -1)[..., : targets.shape[-1]]).sum(-1)


def soft_labels(batch: Batch, like: Tensor) -> Tensor:
    """Return a batch's labels as shares of classes [B, Y], both labels' where it is mixed; of the type of `like`."""
    labels = _one_hot(batch.y, like)
    if batch.second:
        others, share = batch.second
        labels = share * labels + (1 - share) * _one_hot(others, like)
    return labels


def _one_hot(labels: Tensor, like: Tensor) -> Tensor:
    classes = torch.arange(like.shape[-1], device=like.device)
    return (labels[:, None] == classes).type_as(like)
