"""Which executor runs a training, and why."""

from __future__ import annotations

import os

import torch

from fedcore.compose import Composition
from fedcore.config import Train
from fedcore.engine.local import Examples, LocalTraining
from fedcore.engine.serial import SerialExecutor
from fedcore.engine.stacked import StackedExecutor
from fedcore.models.net import Net

_SMALL = 100_000  # parameters; below, a step on a CPU is all overhead and stacking clients shares it


def resolve_device(name: str) -> torch.device:
    """Return the device `name` means; ``auto`` is the first GPU, or the CPU.

    Raises
    ------
    ValueError
        If the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"train.device: '{name}' is no device. Valid: auto, cpu, cuda, cuda:<number>") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"train.device: '{name}' asked for, but there is no GPU here. Valid: auto, cpu")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"train.device: '{name}' is not supported. Valid: auto, cpu, cuda, cuda:<number>")
    return device


def resolve_executor(train: Train, net: Net, device: torch.device) -> str:
    """Return ``serial`` or ``stacked``: what ``train.executor`` says, or what suits device and model."""
    if train.executor != "auto":
        return train.executor
    if device.type == "cuda":
        return "stacked"
    convolutional = any(issubclass(kind, torch.nn.Conv2d) for kind in net.module_types.values())
    size = sum(p.numel() for p in net.initial_params.values())
    return "stacked" if size < _SMALL and not convolutional else "serial"


def make_executor(
    composition: Composition, net: Net, train: Train, examples: Examples
) -> SerialExecutor | StackedExecutor:
    """Return the executor of a training."""
    training = LocalTraining(composition, net, train)
    if resolve_executor(train, net, examples.device) == "stacked":
        return StackedExecutor(training, examples, train.block_size)
    return SerialExecutor(training, examples, min(train.workers, os.cpu_count() or 1))
