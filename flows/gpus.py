"""The `gpu` concurrency limit: runs of one server share the GPUs of its machine through it."""

from __future__ import annotations

import os
import shutil
import subprocess

from prefect import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.exceptions import ObjectNotFound

LIMIT = "gpu"


def is_visible() -> bool:
    """Return whether a process started from here would see an NVIDIA GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU 0" in listed.stdout


def ensure_limit() -> None:
    """Create the limit with one slot if the server has none; a limit somebody changed stays as it is."""
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(LIMIT)
        except ObjectNotFound:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=LIMIT, limit=1))
