"""Clients' trees in a file, for those that memory has no room for."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedcore.engine.store import ClientStore, grown
from fedcore.trees import Tree, flatten

_CLIENTS, _PLACES = "#clients", "#places"  # no client's path begins so


class ClientFile:
    """Records in a file; one that several stores hold is never written over.

    A record that the disk damages passes unnoticed: a checkpoint's checksum covers where it is, not what it holds.

    Parameters
    ----------
    path : Path or None
        The file, made when it is needed; None is a temporary one without a name, gone with the process.
    """

    def __init__(self, path: Path | None = None):
        self.path = path  # may change until the first record
        self._file: int | None = None
        self._end = 0
        self._holders: dict[int, int] = {}  # by place
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # places by size

    def read(self, place: int, size: int) -> bytes:
        """Return a record; OSError if it is not there."""
        found = os.pread(self._open(), size, place)
        if len(found) != size:
            raise OSError(f"{self.path}: ends in the middle of a client's state; remove it and its checkpoint")
        return found

    def write(self, record: bytes, place: int | None) -> int:
        """Write a record, over the one at `place` if that has a single holder; return where it is."""
        if place is None or self._holders[place] > 1:
            if place is not None:
                self._holders[place] -= 1
            free = self._free[len(record)]
            place = free.pop() if free else self._end
            self._end = max(self._end, place + len(record))
            self._holders[place] = 1
        done = 0
        try:
            while done < len(record):
                done += os.pwrite(self._open(), record[done:], place + done)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), str(self.path)) from None
        return place

    def hold(self, places: Mapping[int, int], size: int) -> None:
        """Count another holder of records, by client."""
        for place in places.values():
            self._holders[place] = self._holders.get(place, 0) + 1
            self._end = max(self._end, place + size)

    def release(self, places: Mapping[int, int], size: int) -> None:
        """Count a holder less; what nobody holds is written over later."""
        for place in places.values():
            self._holders[place] -= 1
            if not self._holders[place]:
                del self._holders[place]
                self._free[size].append(place)

    def sync(self) -> None:
        """Have all of it on the disk."""
        if self._file is not None:
            os.fsync(self._file)

    def _open(self) -> int:
        if self._file is None:
            if self.path is None:
                with tempfile.TemporaryFile() as file:
                    self._file = os.dup(file.fileno())
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            weakref.finalize(self, os.close, self._file)
        return self._file


class DiskStore(ClientStore):
    """A `ClientStore` that keeps in memory only where each client's tree is; a tree read back is the same bit for bit.

    Copies share records, so that a copy takes no room until one of the two goes on.
    """

    def __init__(self, initial: Tree, file: ClientFile):
        super().__init__(initial)
        self._records = file
        self._like = flatten(initial)
        self._order = sorted(self._like)  # in a record; a tree from a checkpoint may have another one
        self._size = sum(leaf.numel() * leaf.element_size() for leaf in self._like.values())
        self._places: dict[int, int] = {}
        weakref.finalize(self, file.release, self._places, self._size)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def clients(self) -> list[int]:
        """Ids of the clients with a tree of their own, ascending."""
        return sorted(self._places)

    def get(self, client: int) -> Tree:
        """Return a client's tree, read from the disk."""
        place = self._places.get(client)
        if place is None:
            return self.initial
        record, at = self._records.read(place, self._size), 0
        flat: dict[str, Tensor] = {}
        for path in self._order:
            leaf = self._like[path]
            raw = torch.tensor(np.frombuffer(record, np.uint8, leaf.numel() * leaf.element_size(), at))
            at += len(raw)
            flat[path] = raw.view(leaf.dtype).reshape(leaf.shape).to(leaf.device)
        return grown({path: flat[path] for path in self._like}, self.initial["state"])

    def put(self, client: int, tree: Tree) -> None:
        """Keep a client's tree.

        Raises
        ------
        ValueError
            If a leaf has another type or shape than the initial one.
        OSError
            If the disk is full.
        """
        if self._is_empty:
            return
        flat = flatten(tree)
        for path, leaf in self._like.items():
            if flat[path].shape != leaf.shape or flat[path].dtype != leaf.dtype:
                raise ValueError(
                    f"train.store: 'disk' needs states that keep their shapes, '{path}' does not; use memory"
                )
        record = b"".join(_bytes(flat[path]) for path in self._order)
        self._places[client] = self._records.write(record, self._places.get(client))

    def copy(self) -> ClientStore:
        """Return a store that later `put` calls to this one do not reach."""
        other = DiskStore(self.initial, self._records)
        other._take(self._places)
        return other

    def empty(self, initial: Tree) -> ClientStore:
        """Return a store in the same file without any client's tree."""
        return DiskStore(initial, self._records)

    def held(self) -> ClientStore | None:
        """Return a copy: while it is alive, what a checkpoint says of this store stays true."""
        return self.copy()

    def keep_in(self, path: Path) -> None:
        """Use this file, which is there after the process; to be called before the first `put` or `load_state_dict`."""
        self._records.path = path

    def sync(self) -> None:
        """Have all trees on the disk."""
        self._records.sync()

    def state_dict(self) -> dict[str, Tensor]:
        """Return where the trees are; they stay in the file."""
        clients = self.clients
        places = [self._places[client] for client in clients]
        return {_CLIENTS: torch.tensor(clients, dtype=torch.int64), _PLACES: torch.tensor(places, dtype=torch.int64)}

    def load_state_dict(self, leaves_by_path: Mapping[str, Tensor]) -> None:
        """Undo `state_dict`."""
        pairs = zip(leaves_by_path[_CLIENTS].tolist(), leaves_by_path[_PLACES].tolist(), strict=True)
        self._take(dict(pairs))

    def _take(self, places: Mapping[int, int]) -> None:
        self._records.hold(places, self._size)
        self._places.update(places)


def _bytes(leaf: Tensor) -> bytes:
    whole = leaf.detach().cpu().contiguous()
    return whole.reshape(-1).view(torch.uint8).numpy().tobytes()
