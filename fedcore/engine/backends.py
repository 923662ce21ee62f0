"""What makes functions of local steps, by device."""

from __future__ import annotations

import torch

from fedcore.engine import inductor
from fedcore.engine.compiled import Compiler
from fedcore.engine.cuda_graphs import CudaGraphs, CudaRecorder


def can_compile(device: torch.device) -> bool:
    """Return whether there is what it takes: on a GPU nothing more, on a CPU a C++ compiler."""
    return device.type == "cuda" or inductor.can_compile()


def make_compiler(device: torch.device) -> Compiler:
    """Return a compiler for a device: CUDA graphs on a GPU, PyTorch's compiler on a CPU."""
    return Compiler(CudaGraphs(CudaRecorder(device)) if device.type == "cuda" else inductor.Inductor())
