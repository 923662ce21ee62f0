"""The files of a run folder that are the same for the same run, and their hashes."""

from __future__ import annotations

import hashlib
from pathlib import Path

FILE_TAG = "file."  # tag of a version: the hash of a file of its run
FALLBACK_TAG = "fallback.file."  # the same of the run whose global model serves unknown clients
# Not timing.csv, whose seconds always differ, and not lineage.json, which names the commit.
REPRODUCIBLE = (
    "config.json",
    "metrics.json",
    "history.csv",
    "clients.parquet",
    "model.safetensors",
    "personal.safetensors",
)


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every reproducible file that a run folder has, by its name."""
    hashes = {}
    for name in REPRODUCIBLE:
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes
