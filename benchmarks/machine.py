"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

_ROOT = Path(__file__).parent.parent
_SECONDS = 0.3  # of measuring one peak, at least
_PRODUCTS = 20  # at least, for a machine that is kept from working now and then


def facts() -> dict[str, Any]:
    """Return the machine, the versions and the state of the code."""
    found: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--", "fedcore", "benchmarks", ":!benchmarks/results")),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def load_average() -> float:
    """Return the machine's load over the last minute."""
    return os.getloadavg()[0]


def peak_gflops(threads: int) -> float:
    """Return what `torch.mm` reaches on 1024 x 1024 float32 matrices on the CPU, GFLOP/s: the best of many."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _best_product(1024, torch.device("cpu"))
    finally:
        torch.set_num_threads(before)


def gpu_peak_gflops() -> float:
    """Return what `torch.mm` reaches on 8192 x 8192 float32 matrices on the GPU, GFLOP/s, in default precision."""
    return _best_product(8192, torch.device("cuda"))


def _best_product(size: int, device: torch.device) -> float:
    a, b = torch.ones(size, size, device=device), torch.ones(size, size, device=device)
    out = torch.empty(size, size, device=device)
    best, end = float("inf"), time.perf_counter() + _SECONDS
    torch.mm(a, b, out=out)
    done = 0
    while time.perf_counter() < end or done < _PRODUCTS:
        done += 1
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best / 1e9


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
