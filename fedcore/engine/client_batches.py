"""One client's batches of a phase."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.engine.gathered import Gathered
from fedcore.engine.local import Examples, batch_mask
from fedcore.engine.schedule import Schedule
from fedcore.types import Batch


class ClientBatches:
    """The batches of one client's schedule; their inputs are raw.

    Parameters
    ----------
    rows : [N]
        The client's train split, as rows of `examples`.
    """

    def __init__(self, examples: Examples, rows: NDArray[np.int64], schedule: Schedule, draws: dict[str, Tensor]):
        self.examples, self.schedule, self.draws = examples, schedule, draws
        self.width = schedule.positions.shape[1]
        self._own = rows
        self._gathered = Gathered(examples, torch.from_numpy(rows[schedule.positions]).to(examples.device))
        self._masks = batch_mask(schedule.lengths, self.width, examples.device)

    @property
    def num_examples(self) -> int:
        """N."""
        return len(self._own)

    def one(self, k: int) -> Batch:
        """Return the batch of a step, without padding."""
        gathered, length = self._gathered, self.schedule.lengths[k]
        drawn = {name: d[k] for name, d in self.draws.items()}
        labels, mask, protected = (part[k, :length] for part in (gathered.labels, self._masks, gathered.protected))
        return Batch(gathered.inputs(k, 1)[0, :length], labels, mask, drawn, protected=protected)

    def several(self, begin: int, size: int, with_inputs: bool = True) -> Batch:
        """Return the batches of `size` steps, full and masked, with a leading axis; without inputs memory for them."""
        gathered, cut = self._gathered, slice(begin, begin + size)
        drawn = {name: d[cut] for name, d in self.draws.items()}
        x = gathered.inputs(begin, size) if with_inputs else gathered.unfilled(size)
        return Batch(x, gathered.labels[cut], self._masks[cut], drawn, protected=gathered.protected[cut])

    def positions(self, begin: int, size: int) -> Tensor:
        """Return which of the client's examples the batches of `size` steps have, [size, B], 0 to N - 1."""
        return torch.from_numpy(self.schedule.positions[begin : begin + size]).to(self.examples.device)

    def all_inputs(self) -> Tensor:
        """Return what a model sees of the client's examples, [N, I]."""
        rows = torch.from_numpy(self._own).to(self.examples.device)
        return self.examples.normalise(self.examples.inputs_of(rows)).flatten(1)
