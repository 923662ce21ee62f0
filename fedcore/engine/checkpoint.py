"""Exact checkpoints: one safetensors file, replaced atomically, never unpickled."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
from collections.abc import Mapping
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
    """

    def __init__(self, path: Path, key: str):
        self.path = path
        self.key = key

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
        try:
            save_file(content, temporary, {"fedcore": json.dumps({"key": self.key, **facts})})
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
            with safe_open(self.path, framework="pt", device=str(device)) as file:
                facts = json.loads((file.metadata() or {}).get("fedcore", "{}"))
                if facts.pop("key", None) != self.key:
                    return None
                # Copies lie in memory like any other tensor; the last digits of a product depend on where it lies.
                return {name: file.get_tensor(name).clone() for name in file.keys()}, facts  # noqa: SIM118
        except (FileNotFoundError, SafetensorError, json.JSONDecodeError):
            return None

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
