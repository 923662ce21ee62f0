"""How many lanes a device's memory holds: an estimate before the first step, and half as many when it runs out."""

from __future__ import annotations

import gc

import torch

from fedcore.engine.local import Examples, Job, LocalTraining
from fedcore.trees import num_bytes
from fedcore.types import Params

_WAITING = 8  # clients per lane whose turn is planned at once: enough to fill gaps, and memory stays small
_MOST = 1000  # clients whose turn is planned at once
_SHARE = 0.8  # of the free memory; the rest is for what no estimate sees: workspaces, fragments


class LaneLimit:
    """The most lanes that train at a time.

    Parameters
    ----------
    lanes : int or None
        What was asked for; None asks for as many as keep busy.
    """

    def __init__(self, lanes: int | None = None):
        self.asked = lanes
        self._most: int | None = None  # what memory holds
        self._wanted = 0

    def bounded(self, wanted: int) -> int:
        """Return how many lanes there are where so many are wanted."""
        if self._most is None or wanted <= self._most:
            return wanted
        self._wanted = max(wanted, self._wanted)
        return self._most

    @property
    def group(self) -> int:
        """How many clients are planned at once."""
        bounds = [bound for bound in (self.asked, self._most) if bound is not None]
        if not bounds:
            return _MOST
        return group_size(min(bounds))

    @property
    def remarks(self) -> list[str]:
        """A line if memory made a difference."""
        if self._most is None or self._wanted <= self._most:
            return []
        return [
            f"{self._most} client{'s' * (self._most > 1)} trained at a time where {self._wanted} were to:"
            " the device's memory held no more (see train.block_size; a smaller train.batch_size takes less)"
        ]

    def estimate(self, free: int, lane: int, client: int) -> None:
        """Choose the most lanes that fit into `free` bytes, of `lane` bytes each, and `client` for each one planned."""
        budget = int(_SHARE * free)
        fitting = (n for n in range(_MOST, 0, -1) if n * lane + group_size(n) * client <= budget)
        most = next(fitting, 1)
        self._most = None if most == _MOST else most

    def halve(self, lanes: int) -> None:
        """Let half of these lanes be the most from now on: memory did not hold them."""
        self._wanted = max(self._wanted, lanes)
        self._most = max(1, lanes // 2)


def group_size(lanes: int) -> int:
    """Return how many clients are planned at once for so many lanes; on a single one nobody need wait."""
    return 1 if lanes == 1 else max(lanes, min(_WAITING * lanes, _MOST))


def lane_bytes(job: Job, training: LocalTraining, examples: Examples) -> tuple[int, int]:
    """Estimate the bytes a lane takes while it trains, and those of a client that is planned or through.

    What autograd keeps is measured on two rows; passes beyond the one forward and backward of a step are not counted.
    """
    params, buffers, state = num_bytes(job.params), num_bytes(job.buffers), num_bytes(job.state)
    momentum = params if training.train.momentum else 0
    carry = params + buffers + state + momentum
    own = params + num_bytes(job.received)
    width = max(schedule.positions.shape[1] for schedule in job.schedules)
    some = examples.normalise(examples.inputs_of(torch.from_numpy(job.rows[[0, 0]]).to(examples.device)))
    row = num_bytes({"x": some}) // 2
    kept = kept_bytes(training, job.params, job.buffers, some) // 2
    validation = 0 if job.validation is None else row * len(job.validation)
    # Before and after the step, and the gradient; activations with their gradients.
    return 3 * carry + own + validation + 2 * width * (row + kept), 2 * carry + own


def kept_bytes(training: LocalTraining, params: Params, buffers: Params, x: torch.Tensor) -> int:
    """Return the bytes that a forward pass on `x` keeps for the way back, parameters left out."""
    net = training.net.bind(buffers, training=True)
    learning = {name: p.detach().requires_grad_() for name, p in params.items()}
    known = {p.untyped_storage().data_ptr() for p in learning.values()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = training.composition.forward(net, learning, x)
    del output  # until here nothing it keeps was freed, so that no address was counted for two tensors
    return sum(kept.values())


def free_bytes(device: torch.device) -> int:
    """Return what a GPU has left for this process, what PyTorch holds in reserve included."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def release(device: torch.device) -> None:
    """Give back what a failed attempt held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
