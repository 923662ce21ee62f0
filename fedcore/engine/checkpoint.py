"""Exact checkpoints: one safetensors file, replaced atomically, never unpickled."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


class Checkpoint:
    """Where one run keeps its progress; that no two processes train the run at once is for the caller to see to.

    Parameters
    ----------
    path : Path
        The file; its name should contain a hash of everything that determines the run.
    key : str
        That hash; a file with another one is ignored.
    when_damaged : function
        Called with a line for people when the file is damaged, and so ignored.
    """

    def __init__(self, path: Path, key: str, when_damaged: Callable[[str], object] = lambda line: None):
        self.path = path
        self.key = key
        self._when_damaged = when_damaged

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the checkpoint in one step.

        Raises
        ------
        OSError
            When it cannot be written, on a full disk for example; the checkpoint before it stays.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(f".{os.getpid()}.partial")
        content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        said = json.dumps({"key": self.key, **facts})
        try:
            save_file(content, temporary, {"fedcore": said, "crc32": _checksum(said, content)})
            temporary.replace(self.path)
        except SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, os.strerror(code), str(self.path)) from None
        finally:
            temporary.unlink(missing_ok=True)

    def load(self, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return tensors and facts, or None when there is no usable checkpoint of this run."""
        try:
            tensors, said = self._read(device)
        except FileNotFoundError:
            return None
        except (SafetensorError, KeyError):
            self._when_damaged(f"{self.path}: this checkpoint is damaged; the training starts anew")
            return None
        facts = json.loads(said)
        return (tensors, facts) if facts.pop("key") == self.key else None

    def _read(self, device: torch.device) -> tuple[dict[str, Tensor], str]:
        with safe_open(self.path, framework="pt", device=str(device)) as file:
            notes = file.metadata() or {}
            # Copies lie in memory like any other tensor; the last digits of a product depend on where it lies.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if notes["crc32"] != _checksum(notes["fedcore"], tensors):
            raise SafetensorError("another content than was written")
        return tensors, notes["fedcore"]

    def clear(self) -> None:
        """Forget the progress."""
        self.path.unlink(missing_ok=True)
        for left in self.path.parent.glob(f"{glob.escape(self.path.stem)}.*.partial"):  # by processes that were killed
            left.unlink(missing_ok=True)
        self.client_file.unlink(missing_ok=True)

    @property
    def client_file(self) -> Path:
        """Where clients' states lie that are kept on the disk."""
        return self.path.with_suffix(".clients")


def _checksum(said: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the CRC-32 of all a checkpoint holds: accidents need no more, and a SHA-256 takes four times as long."""
    total = zlib.crc32(said.encode())
    for name, tensor in sorted(tensors.items()):
        total = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"
