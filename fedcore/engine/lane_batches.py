"""The batches of a phase in the order the lanes take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.engine.gathered import Gathered
from fedcore.engine.lanes import Plan
from fedcore.engine.local import Examples, Job, as_tensors, batch_mask
from fedcore.types import Batch


class LaneBatches:
    """Rows, labels, masks and draws of all steps, on the device before the first one; inputs follow some at a time.

    Parameters
    ----------
    jobs : sequence of Job
        In the plan's order.
    phase : int
        Which of their schedules.
    """

    def __init__(self, jobs: Sequence[Job], phase: int, plan: Plan, examples: Examples):
        schedules = [job.schedules[phase] for job in jobs]
        width = schedules[0].positions.shape[1]
        shape = (plan.length, plan.lanes)
        rows, lengths = np.empty((*shape, width), np.int64), np.empty(shape, np.int64)
        active, seated = np.zeros(shape, bool), np.zeros(shape, bool)
        draws = [{name: np.asarray(value) for name, value in job.draws[phase].items()} for job in jobs]
        drawn = {name: np.empty((*shape, *first.shape[1:]), first.dtype) for name, first in draws[0].items()}
        for c, lane, begin, until, end in plan.stays:
            number = np.arange(until - begin)
            taken = number < plan.steps[c]
            # Idle steps see real rows, so that nothing masked out is ever NaN.
            index = np.where(taken, number, 0)
            rows[begin:until, lane] = jobs[c].rows[schedules[c].positions[index]]
            lengths[begin:until, lane] = schedules[c].lengths[index]
            active[begin:until, lane] = taken
            seated[begin:end, lane] = True
            for name, array in drawn.items():
                array[begin:until, lane] = draws[c][name][index]
        device = examples.device
        self._gathered = Gathered(examples, torch.from_numpy(rows).to(device))
        self._masks = batch_mask(lengths, width, device)
        self._draws = as_tensors(drawn, device)
        self._active = torch.from_numpy(active).to(device)
        self._idles: NDArray[np.bool_] = np.any(seated & ~active, axis=1)

    def several(self, begin: int, size: int, *, masked: bool = False) -> tuple[Batch, Tensor | None]:
        """Return `size` steps' batches [size, L, B, ...], and who takes them [size, L].

        None in place of the latter means everybody who is on a lane; `masked` never gives None.
        """
        gathered, cut = self._gathered, slice(begin, begin + size)
        drawn = {name: d[cut] for name, d in self._draws.items()}
        labels, mask, protected = (part[cut] for part in (gathered.labels, self._masks, gathered.protected))
        batches = Batch(gathered.inputs(begin, size), labels, mask, drawn, protected=protected)
        return batches, self._active[cut] if masked or self._idles[cut].any() else None
