"""Traced steps by PyTorch's compiler for CPUs, which fuses what a step does beside its matrix products."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedcore.engine import kept_functions
from fedcore.engine.convolutions import as_products
from fedcore.engine.example_space import Places, exchanged, rewrite
from fedcore.engine.fused_updates import fuse_updates
from fedcore.engine.pooling import as_comparisons

_LONGEST = 15  # of an epoch's steps, more often a multiple than 16
_LONGEST_OF_CONVOLUTIONS = 2  # a step of these is never short; more of them are slower, and take minutes to compile
_WORK = 16_000_000  # parameters times rows that are worth a call of their own
# With the wrapper in C++ a call releases the interpreter's lock, so that clients run in threads side by side. PyTorch's
# own cache of graphs is read by unpickling.
_OPTIONS = {"cpp_wrapper": True, "cpp.threads": 1, "compile_threads": 1, "fx_graph_cache": False}
_WORTHWHILE = 50_000  # client steps in a run below which compiling costs more than it gains


def can_compile() -> bool:
    """Return whether there is a C++ compiler here."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def is_worthwhile(steps: int) -> bool:
    """Return whether a run of so many client steps earns back the time of compiling; the same on every machine."""
    return steps >= _WORTHWHILE


class Inductor:
    """A `Backend` that compiles."""

    @property
    def rules(self) -> dict[Any, Any]:
        """What a CPU is slow at, in other words."""
        return {**as_products(), **as_comparisons()}

    def unrolled(self, num_params: int, rows: int, convolves: bool) -> int:
        """Return how many steps make one function: many where a step is short, one where it is long."""
        longest = _LONGEST_OF_CONVOLUTIONS if convolves else _LONGEST
        return max(1, min(longest, _WORK // max(num_params * rows, 1)))

    def made(self, graph: GraphModule, examples: list[Tensor], places: Places | None) -> kept_functions.Function | None:
        """Return the compiled function; None if its steps do not allow the exchange at `places`."""
        fuse_updates(graph)
        if places is not None:
            if not rewrite(graph, places):
                return None
            examples = exchanged(examples, places)
        with _without_advice():
            name = kept_functions.name_of(graph, examples, _OPTIONS)
            kept = None if name is None else kept_functions.load(name)
            if kept is not None:
                return kept
            try:
                return _compiled(graph, examples, name)
            except Exception as error:
                if not kept_functions.discard(str(error)):
                    raise
            return _compiled(graph, examples, name)


def _compiled(graph: GraphModule, examples: list[Tensor], name: str | None) -> kept_functions.Function:
    """Return a compiled function, kept by this name if that can be."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    sources: list[str] = []

    def inner(module: GraphModule, inputs: Any, **kwargs: Any) -> Any:
        made: Any = compile_fx_inner(module, inputs, **kwargs)
        # A source that wants more than the arguments, as tensors of the graph's own, reads past them when called alone.
        if len(inputs) == len(examples) and not made.constants:
            sources.append(made.source_code)
        return made

    compiled: Any = compile_fx(graph, [*examples], inner, config_patches={**_OPTIONS})
    with torch.no_grad():
        expected = compiled(*examples)
    alone = None
    if name is not None and len(sources) == 1:
        alone = kept_functions.keep(name, sources[0], examples, [*expected])
    function: kept_functions.Function = compiled if alone is None else alone
    return function


@contextmanager
def _without_advice() -> Iterator[None]:
    """Keep PyTorch from warning of a missing CUDA runtime when it compiles for a CPU."""
    logger = logging.getLogger("torch.utils.cpp_extension")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
