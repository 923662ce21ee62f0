"""Jobs and outcomes as arrays, for the way between processes.

Arrays go through shared memory without a copy; what all jobs of a round have in common goes there once. The receiver
copies them into tensors of its own, because the last digits of a product depend on where its operands lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.engine.local import Assignment, Folded, Job, Outcome
from fedcore.engine.schedule import Schedule
from fedcore.trees import Tree, tree_map
from fedcore.types import ClientInfo


@dataclass(frozen=True)
class Header:
    """What all jobs of a round have in common."""

    number: int  # counts up, so that a worker knows what it has seen
    assignment: Assignment  # without server and resources
    common: Tree  # arrays: the broadcast, and the first job's trees


@dataclass(frozen=True)
class Parcel:
    """A `Job` without its rows, which its worker knows, and without what is in the header."""

    client: int
    schedules: tuple[Schedule, ...]
    draws: tuple[dict[str, Any], ...]
    learning_steps: int
    lr: float
    mass: float
    info: tuple[NDArray[Any], ...]
    changes: Tree
    has_validation: bool


@dataclass(frozen=True)
class Returned:
    """An `Outcome` as arrays."""

    client: int
    trees: Tree
    loss: NDArray[Any]
    steps: int
    folded: Folded | None


def trees_of(job: Job) -> Tree:
    """Return what a job holds in tensors; `Parcel.changes` and `Header.common` are trees of this form."""
    return {"params": job.params, "buffers": job.buffers, "state": job.state, "received": job.received}


def pack(job: Job, common: Tree) -> Parcel:
    """Return the parcel of a job; leaves that are those of `common` stay behind."""
    return Parcel(
        job.client,
        job.schedules,
        job.draws,
        job.learning_steps,
        job.lr,
        job.mass,
        tuple(_array(value) for value in job.info),
        to_arrays(_changes(trees_of(job), common)),
        job.validation is not None,
    )


def unpack(
    parcel: Parcel, common: Tree, train: NDArray[np.int64], validation: NDArray[np.int64], device: torch.device
) -> Job:
    """Return the job of a parcel, with the client's rows as this process numbers them."""
    trees = _with_changes(common, to_tensors(parcel.changes, device))
    return Job(
        parcel.client,
        train,
        trees["params"],
        trees["buffers"],
        trees["state"],
        ClientInfo(*(torch.tensor(value, device=device) for value in parcel.info)),
        parcel.schedules,
        parcel.draws,
        parcel.learning_steps,
        parcel.lr,
        parcel.mass,
        trees["received"],
        validation if parcel.has_validation else None,
    )


def reduced(outcome: Outcome, assignment: Assignment) -> Outcome:
    """Return an outcome without the parameters that nobody wants back."""
    if assignment.returned is None:
        return outcome
    return replace(outcome, params={n: outcome.params[n] for n in assignment.returned})


def pack_outcome(outcome: Outcome) -> Returned:
    """Return an outcome as arrays."""
    trees = {name: getattr(outcome, name) for name in ("params", "buffers", "state", "upload")}
    folded = outcome.folded
    if folded is not None and folded.total is not None:
        folded = replace(folded, total=to_arrays(folded.total))
    return Returned(outcome.client, to_arrays(trees), _array(outcome.loss), outcome.steps, folded)


def unpack_outcome(returned: Returned, device: torch.device) -> Outcome:
    """Undo `pack_outcome`."""
    folded = returned.folded
    if folded is not None and folded.total is not None:
        folded = replace(folded, total=to_tensors(folded.total, device))
    trees, loss = to_tensors(returned.trees, device), torch.tensor(returned.loss, device=device)
    return Outcome(returned.client, loss=loss, steps=returned.steps, folded=folded, **trees)


def to_arrays(tree: Mapping[str, Any]) -> Tree:
    """Return a tree of tensors as arrays; on a CPU they share the tensors' memory."""
    return tree_map(_array, tree)


def to_tensors(tree: Mapping[str, Any], device: torch.device) -> Tree:
    """Return a tree of arrays as tensors of their own memory."""
    return tree_map(lambda array: torch.tensor(array, device=device), tree)


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().contiguous().numpy()
    return array


def _changes(tree: Mapping[str, Any], base: Mapping[str, Any]) -> Tree:
    """Return the leaves of `tree` that are not the very ones of `base`."""
    result: Tree = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            below = _changes(value, base.get(name, {}))
            if below:
                result[name] = below
        elif value is not base.get(name):
            result[name] = value
    return result


def _with_changes(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tree:
    return {
        name: _with_changes(value, changes.get(name, {})) if isinstance(value, Mapping) else changes.get(name, value)
        for name, value in base.items()
    }
