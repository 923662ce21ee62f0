"""A recorder for any device that does what a CUDA graph does: operators at fixed addresses, and nothing of Python."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Remembers every operator with its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        is_view = any(t.untyped_storage().data_ptr() in given for t in _tensors(out))
        if func._schema.is_mutable or not is_view:
            self._calls.append((func, args, kwargs or {}, None if is_view else out))
        return out

    def blank(self) -> None:
        """Take back what the operators gave: a CUDA graph computes nothing while it is recorded."""
        for *_, written in self._calls:
            for tensor in _tensors(written):
                tensor.zero_()

    def replay(self) -> None:
        """Call the operators again; what they give goes where it went."""
        with torch.no_grad():
            for func, args, kwargs, written in self._calls:
                again = func(*args, **kwargs)
                for old, new in zip(_tensors(written), _tensors(again), strict=False):
                    old.copy_(new)


def record(run: Any) -> Any:
    """Record a function as `fedcore.engine.cuda_graphs.CudaRecorder` does."""
    tape = Tape()
    run()
    with tape:
        outputs = run()
    tape.blank()
    return tape.replay, outputs


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]
