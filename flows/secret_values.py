"""Secrets by name: from the environment, or from a Secret block of the Prefect server."""

from __future__ import annotations

import os


def secret_value(name: str) -> str | None:
    """Return a secret; None when neither the environment nor the server has one of that name.

    Parameters
    ----------
    name : str
        Name of an environment variable, or of a Secret block. Block names have no underscores and no capitals, so
        ``NIGHTLY_WEBHOOK`` is also looked for as the block ``nightly-webhook``.
    """
    if os.environ.get(name):
        return os.environ[name]
    from prefect.blocks.system import Secret

    try:
        block = Secret.load(name.lower().replace("_", "-"))
    except ValueError:
        return None
    value = block.get()  # type: ignore[union-attr]
    return value if isinstance(value, str) else None
