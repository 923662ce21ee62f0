"""A device that holds shapes and no values, to see on any machine what a training asks of a GPU.

Tensors on PyTorch's device ``meta`` refuse to meet those of the host, as those of a GPU do. What comes back from it is
noted and is made up here, what is sent there is noted.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fedcore

META = torch.device("meta")
_ROOT = str(Path(fedcore.__file__).parent)
_aten = torch.ops.aten


class Crossing(NamedTuple):
    """A copy between host and device: either waits for the device, and none can be part of a CUDA graph."""

    direction: str  # "to the device" or "to the host"
    where: str  # file:line: code


class Pretended(TorchDispatchMode):
    """Notes the operators that ran, and what crossed between host and device."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()
        self.calls = 0
        self.crossings: list[Crossing] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.calls += 1
        self.operators.add(func.overloadpacket._qualified_op_name.removeprefix("aten::"))
        given = {t.device.type for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        if func is _aten._local_scalar_dense.default and "meta" in given:
            self._note("to the host")
            return 1
        if func is _aten._to_copy.default and "meta" in given and kwargs.get("device", META).type == "cpu":
            self._note("to the host")
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        out = func(*args, **kwargs)
        if func in (_aten._to_copy.default, _aten.copy_.default) and "cpu" in given and out.device == META:
            self._note("to the device")
        return out

    @contextmanager
    def alone(self) -> Iterator[list[Crossing]]:
        """Give what crosses within."""
        begin = len(self.crossings)
        found: list[Crossing] = []
        yield found
        found += self.crossings[begin:]

    def _note(self, direction: str) -> None:
        frames = [f for f in traceback.extract_stack() if f.filename.startswith(_ROOT)]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}" if frames else "a test"
        self.crossings.append(Crossing(direction, where))
