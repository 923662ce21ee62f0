"""Traced steps as CUDA graphs: the kernels of several steps are sent to the GPU by one call.

A recording knows addresses, not values: what it reads is copied to where it reads, what it wrote is copied from there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedcore.engine.example_space import Places

Run = Callable[[], list[Tensor]]
Recorder = Callable[[Run], tuple[Callable[[], None], list[Tensor]]]

_STEPS = 8  # in a graph: sending one takes as long as a few kernels of a small step
_WARM_UPS = 2  # libraries choose and reserve in the first calls, which cannot be recorded


class CudaGraphs:
    """A `Backend` that records.

    Parameters
    ----------
    record : callable
        Runs a function; returns what does the same again, and the tensors that this writes.
    """

    def __init__(self, record: Recorder):
        self._record = record

    @property
    def rules(self) -> dict[Any, Any]:
        """Nothing: a GPU's operators stay."""
        return {}

    def unrolled(self, num_params: int, rows: int, convolves: bool) -> int:
        """Return how many steps make one function."""
        return _STEPS

    def made(self, graph: GraphModule, examples: list[Tensor], places: Places | None) -> Replayed | None:
        """Return the recorded function; None if a weight is to be exchanged."""
        return None if places is not None else Replayed(graph, examples, self._record)


class Replayed:
    """A function of tensors, recorded on tensors of its own.

    Raises
    ------
    RuntimeError
        If the recording does not give what the function gives.
    """

    def __init__(self, function: Callable[..., list[Tensor]], examples: list[Tensor], record: Recorder):
        self._inputs = examples
        self._copied: list[tuple[weakref.ref[Tensor], int] | None] = [None] * len(examples)
        with torch.no_grad():
            self._replay, self._outputs = record(lambda: function(*self._inputs))
            self._replay()
            for again, once in zip(self._outputs, function(*self._inputs), strict=True):
                if not torch.isclose(again, once, rtol=1e-3, atol=1e-6, equal_nan=True).all().item():
                    raise RuntimeError("the recorded steps give other numbers than the steps")

    def __call__(self, *given: Tensor) -> list[Tensor]:
        """Return what the function makes of these tensors, in memory of their own."""
        for place, (tensor, own) in enumerate(zip(given, self._inputs, strict=True)):
            copied = self._copied[place]
            if copied is None or copied[0]() is not tensor or copied[1] != tensor._version:
                own.copy_(tensor)
                self._copied[place] = weakref.ref(tensor), tensor._version
        self._replay()
        return [output.clone() for output in self._outputs]


class CudaRecorder:
    """Records CUDA graphs, which share the memory they work in: they never run at the same time."""

    def __init__(self, device: torch.device):
        self._device = device
        self._pool: Any = None

    def __call__(self, run: Run) -> tuple[Callable[[], None], list[Tensor]]:
        """Run a function a few times and record it."""
        with torch.cuda.device(self._device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    run()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # Other threads, a tracker's for example, may do on the GPU what they like meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                outputs = run()

        def replay() -> None:
            with torch.cuda.device(self._device):
                graph.replay()

        return replay, outputs
