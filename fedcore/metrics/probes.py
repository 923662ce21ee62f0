"""Networks trained from scratch on frozen features, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcore.seeds import stream, torch_stream

_CHUNK = 1024  # rows of each probe per forward pass without gradients


@dataclass(frozen=True)
class Budget:
    """How a probe, a network with rectifiers, is trained.

    Attributes
    ----------
    hidden : tuple of int
        Widths of its layers.
    steps, batch_size, lr
        Of Adam; batches are drawn with replacement.
    checks : int, >= 1
        Where rows are held out: how often they are scored during training.
    """

    hidden: tuple[int, ...] = (512, 512)
    steps: int = 5000
    batch_size: int = 256
    lr: float = 1e-3
    checks: int = 50


class Probes:
    """Probes of I sizes for K orders of N rows, trained as one model with stacked parameters.

    Probe (i, k) is entry i * K + k of every parameter. It trains on the first ``fits[i]`` rows of order k, and
    standardises features by one mean and deviation over the first ``known[i]``. Its initial values and batches depend
    on the seed and k alone: no result depends on which other probes there are.

    Parameters
    ----------
    x : [N, D] float, on the device to train on
    y : [N] int64
        0 to num_classes - 1, the largest occurring.
    orders : [K, N] int64
        Permutations of the rows.
    fits, known : I int, >= 1
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        orders: NDArray[np.int64],
        fits: Sequence[int],
        known: Sequence[int],
        seed: int,
        budget: Budget,
    ):
        self.x, self.y, self.seed, self.budget = x, y, seed, budget
        self.num_classes = int(y.max()) + 1
        self.orders = torch.from_numpy(orders).to(x.device)
        self.fits = torch.tensor(fits, device=x.device)[:, None, None]
        moments = [torch.std_mean(x[order[:n]], correction=0) for n in known for order in self.orders]
        spreads, self.centers = (torch.stack(moment)[:, None, None] for moment in zip(*moments, strict=True))
        self.spreads = torch.where(spreads > 0, spreads, 1.0)
        layers = [_initial_values(x.shape[1], budget.hidden, self.num_classes, seed, k) for k in range(len(orders))]
        # [I * K, inputs, outputs] of each weight, [I * K, 1, outputs] of each bias, in turn
        stacked = [torch.stack(values).repeat(len(fits), 1, 1) for values in zip(*layers, strict=True)]
        self.layers = [layer.to(x.device).requires_grad_() for layer in stacked]

    def train(self, held_out: Sequence[slice] = ()) -> None:
        """Train all; with places of the orders held out for each size, keep every probe as it was best on them.

        The initial values are candidates, and are kept where a size has no such place.
        """
        generators = [stream(self.seed, "probes/batches", client=k) for k in range(len(self.orders))]
        optimiser = torch.optim.Adam(self.layers, self.budget.lr)
        every = max(1, self.budget.steps // self.budget.checks)
        best = _Best(self.layers)
        for step in range(self.budget.steps):
            if held_out and step % every == 0:
                best.update(self.layers, self.losses(held_out).flatten())
            draws = torch.from_numpy(np.stack([g.random(self.budget.batch_size) for g in generators]))
            self._step(optimiser, (draws.to(self.x.device) * self.fits).long())
        if held_out:
            best.update(self.layers, self.losses(held_out).flatten())
            self.layers = best.layers

    @torch.no_grad()
    def losses(self, places: Sequence[slice]) -> Tensor:
        """Return the summed cross-entropy [I, K] float64, in nats, at each size's own places of the orders."""
        return torch.stack([self._nats(i, self.orders[:, place]) for i, place in enumerate(places)])

    def _nats(self, i: int, rows: Tensor) -> Tensor:
        count = len(self.orders)
        total = torch.zeros(count, dtype=torch.float64, device=rows.device)
        for chunk in torch.split(rows, _CHUNK, 1):
            total += self._losses(chunk, slice(i * count, (i + 1) * count)).double().sum(1)
        return total

    def _step(self, optimiser: torch.optim.Optimizer, places: Tensor) -> None:
        """Take a step on the batches at these places [I, K, B] of the orders."""
        rows = torch.gather(self.orders.expand(len(places), -1, -1), 2, places).flatten(0, 1)
        optimiser.zero_grad()
        # A sum over probes, so that each has the gradient of its own mean loss.
        torch.autograd.backward(self._losses(rows, slice(None)).mean(1).sum())
        optimiser.step()

    def _losses(self, rows: Tensor, probes: slice) -> Tensor:
        """Return the cross-entropies [P, m] of each probe's own rows [P, m]."""
        z = (self.x[rows] - self.centers[probes]) / self.spreads[probes]
        for number in range(0, len(self.layers), 2):
            z = torch.relu(z) if number else z
            z = torch.baddbmm(self.layers[number + 1][probes], z, self.layers[number][probes])
        return cross_entropy(z.flatten(0, 1), self.y[rows].flatten(), reduction="none").view_as(rows)


class _Best:
    """Every probe's parameters where its loss was lowest."""

    def __init__(self, layers: Sequence[Tensor]):
        self.layers = [layer.detach().clone() for layer in layers]
        self.losses = torch.full((len(layers[0]),), torch.inf, dtype=torch.float64, device=layers[0].device)

    def update(self, layers: Sequence[Tensor], losses: Tensor) -> None:
        better = losses < self.losses
        self.losses[better] = losses[better]
        for kept, layer in zip(self.layers, layers, strict=True):
            kept[better] = layer.detach()[better]


def _initial_values(inputs: int, hidden: tuple[int, ...], outputs: int, seed: int, k: int) -> list[Tensor]:
    """Return weight [inputs, outputs] and bias [1, outputs] of every layer, uniform within 1 / sqrt(inputs)."""
    generator = torch_stream(seed, "probes/initial values", client=k)
    widths = (inputs, *hidden, outputs)
    shapes = [(rows, width, n**-0.5) for n, width in pairwise(widths) for rows in (n, 1)]
    return [bound * (2 * torch.rand(rows, width, generator=generator) - 1) for rows, width, bound in shapes]
