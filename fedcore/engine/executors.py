"""Which executor runs a training, and why."""

from __future__ import annotations

import os
import sys
import threading

import torch

from fedcore.compose import Composition
from fedcore.config import Train
from fedcore.data.federation import Federation
from fedcore.engine.augment import Augmentation
from fedcore.engine.backends import can_compile, make_compiler
from fedcore.engine.forked import ForkedExecutor
from fedcore.engine.inductor import is_worthwhile
from fedcore.engine.local import Examples, LocalTraining
from fedcore.engine.ray_executor import RayExecutor
from fedcore.engine.rounds import Executor
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
    """Return ``serial``, ``stacked`` or ``ray``: what ``train.executor`` says, or what suits device and model."""
    if train.executor != "auto":
        return train.executor
    if device.type == "cuda":
        return "stacked"
    size = sum(p.numel() for p in net.initial_params.values())
    return "stacked" if size < _SMALL and not net.has_convolutions else "serial"


def make_executor(
    composition: Composition, net: Net, train: Train, examples: Examples, federation: Federation
) -> Executor:
    """Return the executor of a training on this federation.

    Raises
    ------
    ValueError
        If it needs a package that is not installed.
    """
    augmentation = Augmentation(train.augment, examples.black) if train.augment.is_on else None
    training = LocalTraining(composition, net, train, augmentation)
    name = resolve_executor(train, net, examples.device)
    is_compiled = compiles(train, examples.device, federation)
    if name == "ray":
        return RayExecutor(training, examples, federation, is_compiled)
    compiler = make_compiler(examples.device) if is_compiled else None
    if name == "stacked":
        return StackedExecutor(training, examples, train.block_size, compiler)
    # On a GPU threads would only wait for each other.
    workers = min(train.workers, os.cpu_count() or 1) if examples.device.type == "cpu" else 1
    if workers > 1 and compiler is None and can_fork():
        return ForkedExecutor(SerialExecutor(training, examples), federation, workers)
    return SerialExecutor(training, examples, workers, compiler)


def can_fork() -> bool:
    """Return whether a copy of this process would be a whole one: on Linux, while it has a single thread."""
    return sys.platform == "linux" and threading.active_count() == 1


def compiles(train: Train, device: torch.device, federation: Federation) -> bool:
    """Return whether a run's local steps are compiled: where that can be done and, on ``auto``, pays for itself.

    On a GPU, where they are recorded as CUDA graphs, that is when told to. The length of a run is judged by its
    parameters alone, so that the same parameters give the same bytes everywhere there is a compiler.
    """
    return can_compile(device) and _should_compile(train, device, federation)


def remarks(executor: Executor, train: Train, device: torch.device, federation: Federation) -> list[str]:
    """Return, in a line each, what of a training ran slower than it could and why."""
    missing = "local steps ran uncompiled: there is no C++ compiler here (g++ or clang++)"
    is_missing = not can_compile(device) and _should_compile(train, device, federation)
    return [missing] * is_missing + executor.remarks


def _should_compile(train: Train, device: torch.device, federation: Federation) -> bool:
    if train.compile != "auto":
        return train.compile == "always"
    return device.type == "cpu" and is_worthwhile(_steps(train, federation))


def _steps(train: Train, federation: Federation) -> int:
    """Return about how many local steps the clients of a run take together."""
    clients = federation.num_clients
    epochs = train.local_epochs * float(federation.num_examples[:clients].sum()) / train.batch_size
    return int(train.rounds * train.participation * (train.local_steps * clients if train.local_steps else epochs))
