"""The table a partition is: which client holds which row, in which split, and what each client's images look like."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedcore.data.splits import TRAIN, UNUSED, VALIDATION


@dataclass(frozen=True, eq=False)
class PartitionTable:
    """Client and split of every row of a data set, and how each client's images are changed.

    Parameters
    ----------
    client : array [n] int32
        Client id of each row, -1 for an unused row.
    split : array [n] int8
        0 train, 1 test, 2 validation; -1 for an unused row.
    num_clients : int, >= 1
        Training clients, ids 0..num_clients-1.
    num_unseen : int, >= 0
        Clients that never train, ids num_clients..num_clients+num_unseen-1.
    scheme : str
        The partition's parameters as JSON.
    rotation : array [num_total] float32, finite, default all 0
        Degrees by which the images of each client are turned, counter-clockwise.
    noise : array [num_total] float32, finite, >= 0, default all 0
        Standard deviation of the Gaussian noise on the images of each client; 1 is the whole range of a pixel.
    noise_seed : int, >= 0
        Seed of that noise.
    """

    client: np.ndarray
    split: np.ndarray
    num_clients: int
    num_unseen: int
    scheme: str
    rotation: np.ndarray = field(default_factory=lambda: np.zeros(0))
    noise: np.ndarray = field(default_factory=lambda: np.zeros(0))
    noise_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rotation", "noise"):
            if not np.size(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(max(self.num_total, 0)))
        for name, dtype in (("client", np.int32), ("split", np.int8), ("rotation", np.float32), ("noise", np.float32)):
            array = np.array(getattr(self, name), dtype=dtype)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if self.client.ndim != 1 or self.client.shape != self.split.shape:
            raise ValueError(f"partition: client {self.client.shape} and split {self.split.shape} must be equal [n]")
        if self.num_clients < 1 or self.num_unseen < 0:
            raise ValueError(f"partition: needs a client, got num_clients {self.num_clients}, unseen {self.num_unseen}")
        check_values("partition", self.client, self.split, self.num_total)
        check_rotation("partition", self.rotation, self.num_total)
        check_noise("partition", self.noise, self.num_total)

    @property
    def num_total(self) -> int:
        """Number of clients, those that train and those that never do."""
        return self.num_clients + self.num_unseen

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 (64 hex digits) over the assignment, rotation, noise, the client counts and the scheme."""
        digest = hashlib.sha256(f"{self.num_clients} {self.num_unseen} {len(self.client)} {self.scheme}".encode())
        digest.update(self.client.astype("<i4").data)
        digest.update(self.split.data)
        digest.update(self.rotation.astype("<f4").data)
        if self.noise.any():  # a partition without noise keeps the hash it had before there was noise
            digest.update(f"noise {self.noise_seed}".encode())
            digest.update(self.noise.astype("<f4").data)
        return digest.hexdigest()


def check_values(where: str, client: np.ndarray, split: np.ndarray, num_total: int) -> None:
    """Raise ValueError, beginning with `where`, for a client or split that does not exist."""
    wrong = np.flatnonzero((client < UNUSED) | (client >= num_total))
    if len(wrong):
        raise ValueError(f"{where}: client {client[wrong[0]]} in row {wrong[0]}; valid: -1 (unused) to {num_total - 1}")
    wrong = np.flatnonzero((client >= 0) & ((split < TRAIN) | (split > VALIDATION)))
    if len(wrong):
        message = f"split {split[wrong[0]]} in row {wrong[0]}; valid: 0 (train), 1 (test), 2 (validation)"
        raise ValueError(f"{where}: {message}")


def check_rotation(where: str, degrees: np.ndarray, num_total: int) -> None:
    """Raise ValueError, beginning with `where`, unless there is a finite number of degrees per client."""
    _check_one_per_client(where, "rotation", "number of degrees", degrees, num_total)
    wrong = np.flatnonzero(~np.isfinite(degrees))
    if len(wrong):
        raise ValueError(f"{where}: rotation {degrees[wrong[0]]} of client {wrong[0]} is no finite number of degrees")


def check_noise(where: str, levels: np.ndarray, num_total: int) -> None:
    """Raise ValueError, beginning with `where`, unless there is a finite level of 0 or more per client."""
    _check_one_per_client(where, "noise", "level", levels, num_total)
    wrong = np.flatnonzero(~(np.isfinite(levels) & (levels >= 0)))
    if len(wrong):
        raise ValueError(f"{where}: noise {levels[wrong[0]]} of client {wrong[0]} is no finite level of 0 or more")


def _check_one_per_client(where: str, name: str, what: str, values: np.ndarray, num_total: int) -> None:
    if values.dtype.kind not in "iuf" or values.shape != (num_total,):
        raise ValueError(
            f"{where}: '{name}' must hold one {what} per client ({num_total}), got {values.dtype} {list(values.shape)}"
        )
