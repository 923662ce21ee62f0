"""Several clients' own models on their own rows at a time: for devices that one small model does not keep busy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedcore.engine.local import Examples
from fedcore.types import Params

Forward = Callable[[Params, Params, Tensor], Tensor]  # params, buffers, inputs [B, ...] -> logits [B, Y]
Read = Callable[[Tensor, Tensor], tuple[dict[str, Tensor], Tensor]]  # logits, labels [B] -> hits by name, losses [B]
Model = tuple[Params, Params]  # parameters and buffers

_ROWS = 4096  # of all clients together in one forward pass
_CHUNK = 128  # of one client


@torch.no_grad()
def score_rows(
    forward: Forward, read: Read, examples: Examples, models: Sequence[Model], rows: Sequence[NDArray[np.int64]]
) -> tuple[dict[str, NDArray[np.bool_]], NDArray[np.float64]]:
    """Return what `read` finds on the rows of every model's client, client after client; not for no rows at all.

    The client with the most rows comes first, so that those who have some left are always the first ones, and only
    last chunks are padded.
    """
    lengths = np.array([len(own) for own in rows])
    order = np.argsort(-lengths, kind="stable")
    padded = np.zeros((len(rows), int(lengths.max())), np.int64)
    for place, client in enumerate(order):
        padded[place, : lengths[client]] = rows[client]
    index = torch.from_numpy(padded).to(examples.device)
    (params, over_params), (buffers, over_buffers) = (_stacked([models[c][part] for c in order]) for part in (0, 1))
    batched = vmap(forward, in_dims=(over_params, over_buffers, 0))
    hits: dict[str, Tensor] = {"": torch.zeros(padded.shape, dtype=torch.bool, device=examples.device)}
    loss = torch.zeros(padded.shape, dtype=torch.float64, device=examples.device)
    begin = 0
    while clients := int((lengths > begin).sum()):
        stretch = slice(begin, min(begin + min(_CHUNK, max(1, _ROWS // clients)), padded.shape[1]))
        chosen = index[:clients, stretch]
        x = examples.normalise(examples.inputs_of(chosen))
        logits = batched(_first(params, over_params, clients), _first(buffers, over_buffers, clients), x)
        found, losses = read(logits.flatten(0, 1), examples.labels[chosen].flatten())
        loss[:clients, stretch] = losses.double().view(clients, -1)
        for name, right in found.items():
            hits.setdefault(name, torch.zeros_like(hits[""]))[:clients, stretch] = right.view(clients, -1)
        begin = stretch.stop
    places = np.argsort(order)
    is_real = np.arange(padded.shape[1]) < lengths[:, None]
    return {name: each.cpu().numpy()[places][is_real] for name, each in hits.items()}, loss.cpu().numpy()[places][
        is_real
    ]


def not_shared(trees: Sequence[Params]) -> Params:
    """Return the first model's tensors that the others do not all share."""
    return {name: first for name, first in trees[0].items() if not all(tree[name] is first for tree in trees)}


def _stacked(trees: Sequence[Params]) -> tuple[Params, dict[str, int | None]]:
    """Stack the models' tensors; one that all of them share stays as it is, and has no axis of clients."""
    stacked, axes = dict(trees[0]), dict.fromkeys(trees[0], None)
    for name in not_shared(trees):
        stacked[name], axes[name] = torch.stack([tree[name] for tree in trees]), 0
    return stacked, axes


def _first(stacked: Params, axes: dict[str, int | None], clients: int) -> Params:
    return {name: tensor if axes[name] is None else tensor[:clients] for name, tensor in stacked.items()}
