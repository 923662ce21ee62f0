"""The one owner of randomness: independent streams keyed by what they are for.

A stream depends on its key alone, never on what was drawn before, so switching a feature off cannot
shift the draws of another, a client's draws do not depend on the other clients, and a resumed run
draws exactly what an uninterrupted one would have.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

# Set-up rounds count down from -1 and "no client" is -1; seed sequences take non-negative words only.
_OFFSET = 1 << 20
_WORD = 1 << 32


def stream(seed: int, purpose: str, round: int = 0, client: int = -1) -> np.random.Generator:
    """Return the random stream of one purpose, round and client.

    Parameters
    ----------
    seed : int, >= 0
        The run's (or the partition's) seed.
    purpose : str
        What the numbers are for, for example ``"batches"``; different purposes never share numbers.
    round : int, > -2**20
        Round index; set-up rounds are negative.
    client : int, >= -1
        Client id, or -1 for a stream of the server.
    """
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")
    words = (seed, zlib.crc32(purpose.encode()), round + _OFFSET, client + _OFFSET)
    # An array of words is what numpy makes of numbers that are one word each, which takes it half of the time.
    entropy = np.array(words, np.uint32) if seed < _WORD else words
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def torch_stream(seed: int, purpose: str, round: int = 0, client: int = -1) -> torch.Generator:
    """Return the same keyed stream as a CPU `torch.Generator`."""
    generator = torch.Generator()
    generator.manual_seed(int(stream(seed, purpose, round, client).integers(0, 2**63 - 1)))
    return generator


@contextmanager
def module_stream(seed: int, purpose: str) -> Iterator[None]:
    """Give torch's module constructors, which draw from the global generator, a keyed stream of their own."""
    state = torch.random.get_rng_state()
    try:
        torch.random.set_rng_state(torch_stream(seed, purpose).get_state())
        yield
    finally:
        torch.random.set_rng_state(state)
