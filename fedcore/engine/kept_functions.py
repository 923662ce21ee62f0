"""Compiled functions on disk, so that the next process with the same steps does not compile them.

What is kept is the source that PyTorch's compiler wrote, by a hash of the traced graph and of all else it depends on;
importing it takes milliseconds, as the library that belongs to it is in PyTorch's own cache.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

Function = Callable[..., list[Tensor]]

_PLACE = "cutlass_dir"  # the one setting of the compiler that differs with the working folder, and is not for a CPU


def name_of(graph: GraphModule, examples: list[Tensor], options: Mapping[str, Any]) -> str | None:
    """Return the name of the function of a graph for such arguments; None if it holds tensors of its own."""
    from torch._inductor import config
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    if any(node.op in ("get_attr", "call_module") for node in graph.graph.nodes):
        return None
    facts = (
        torch.__version__,
        str(pick_vec_isa()),  # loops are written for the width of this processor's vectors
        torch.are_deterministic_algorithms_enabled(),
        sorted(options.items()),
        sorted((key, repr(value)) for key, value in config.get_config_copy().items() if not key.endswith(_PLACE)),
        [(tuple(t.shape), t.stride(), str(t.dtype), str(t.device)) for t in examples],
        graph.code,
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def load(name: str) -> Function | None:
    """Return a kept function; None if there is none, or none that runs with what is installed."""
    path = _path(name)
    if not path.exists():
        return None
    try:
        return _imported(name, path)
    except Exception:  # a compiler that is gone, a file cut short: it is made anew
        return None


def keep(name: str, source: str, examples: list[Tensor], expected: list[Tensor]) -> Function | None:
    """Write a function's source, whole or not at all, and return the function.

    None, and nothing is kept, where it cannot be written, or where the source alone does not make of the examples what
    is expected, bit for bit and in the same order in memory.
    """
    path = _path(name)
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(source)
        function = _imported(name, unfinished)
        with torch.no_grad():
            if not _same(function(*examples), expected):
                return None
        unfinished.replace(path)
    except Exception:  # no room, or a source that needs more than itself
        return None
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return function


def discard(reason: str) -> bool:
    """Remove the files of PyTorch's cache that a failure names, and return whether there were any.

    The compiler takes a library that is there for a whole one; a machine that stops while it writes leaves others.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    names = re.findall(rf"{re.escape(cache_dir())}{os.sep}[^\s:,()'\"]+", reason)
    files = [path for path in {Path(name) for name in names} if path.is_file()]
    for path in files:
        path.unlink(missing_ok=True)
    return bool(files)


def _same(ones: list[Tensor], others: list[Tensor]) -> bool:
    return len(ones) == len(others) and all(
        a.stride() == b.stride() and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(ones, others, strict=True)
    )


def _imported(name: str, path: Path) -> Function:
    loader = SourceFileLoader(f"fedcore_steps_{name}", str(path))
    module = ModuleType(loader.name)
    loader.exec_module(module)

    def function(*tensors: Tensor) -> list[Tensor]:
        results: list[Tensor] = module.call([*tensors])
        return results

    return function


def folder() -> Path:
    """Return where functions are kept: beside PyTorch's cache."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "fedcore"


def _path(name: str) -> Path:
    return folder() / f"{name}.py"
