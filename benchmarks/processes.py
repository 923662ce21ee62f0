"""What a process and its children use: CPU seconds and memory, from the kernel's files. Linux; None elsewhere."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """Return the ids of a process and all that descend from it."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        try:
            queue += [int(child) for task in (_PROC / str(pid) / "task").iterdir() for child in _children(task)]
        except OSError:
            continue
    return found


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


def cpu_seconds() -> float:
    """Return user and system time of this process and its living descendants, in seconds."""
    total = time.process_time()
    for pid in tree(os.getpid())[1:]:
        try:
            # The command's name is in parentheses and may hold anything.
            values = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    return total


def resident_bytes(root: int) -> int | None:
    """Return the proportional memory of a tree: pages that several processes share count once."""
    total, seen = 0, False
    for pid in tree(root):
        try:
            lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
        total += 1024 * sum(sizes)
        seen = seen or bool(sizes)
    return total if seen else None
