"""How many bits a GPU's products have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedcore.config import Train


def problem(train: Train, device: torch.device) -> str | None:
    """Return in one line why `train.precision` is not to be had on this device; None if it is."""
    if train.precision == "tf32" and device.type != "cuda":
        return (
            f"train.precision: 'tf32' is of NVIDIA GPUs, and this training runs on '{device}';"
            " valid here: float32, bfloat16"
        )
    return None


@contextmanager
def products(precision: str, device: torch.device) -> Iterator[None]:
    """Make a GPU's products of single-precision numbers TF32 if `precision` says so, and single precision otherwise.

    Without it PyTorch computes convolutions in TF32. The switch is the process's: nothing else may compute meanwhile.
    """
    if device.type != "cuda":
        yield
        return
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value
