"""The one owner of randomness: independent streams keyed by what they are for.

A stream depends on its key alone, never on what was drawn before, so switching a feature off cannot
shift the draws of another, a client's draws do not depend on the other clients, and a resumed run
draws exactly what an uninterrupted one would have.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

# Set-up rounds count down from -1 and "no client" is -1; seed sequences take non-negative words only.
_OFFSET = 1 << 20
_WORD = 1 << 32

# Of numpy's `SeedSequence`: a hash of O'Neill's, https://www.pcg-random.org/posts/developing-a-seed_seq-alternative.html.
_POOL = 4  # words
_SHIFT = np.uint32(16)
_LEFT, _RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_IN, _OUT = (0x43B0D7E5, 0x931E8875), (0x8B51F9DD, 0x58F38DED)  # the first constant, and the factor to the next


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
    words = _key(seed, purpose, round, client)
    # An array of words is what numpy makes of numbers that are one word each, which takes it half of the time.
    entropy = np.array(words, np.uint32) if seed < _WORD else words
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


class Streams:
    """The streams of one seed and round; those that are named in advance take a third of the time.

    Parameters
    ----------
    seed, round
        As for `stream`.
    keys : iterable of (str, int)
        Purposes and clients of the streams that will be asked for.
    """

    def __init__(self, seed: int, round: int, keys: Iterable[tuple[str, int]] = ()):
        self._seed, self._round = seed, round
        named = list(dict.fromkeys(keys)) if 0 <= seed < _WORD else []
        if named:
            words = _seed_words(np.array([_key(seed, purpose, round, client) for purpose, client in named], np.uint32))
            self._words = dict(zip(named, words, strict=True))
        else:
            self._words = {}

    def of(self, purpose: str, client: int) -> np.random.Generator:
        """Return what ``stream(seed, purpose, round, client)`` does."""
        words = self._words.get((purpose, client))
        if words is None:
            return stream(self._seed, purpose, self._round, client)
        return np.random.Generator(np.random.PCG64(_KnownWords(words)))  # type: ignore[arg-type]  # any `ISeedSequence`


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


def _key(seed: int, purpose: str, round: int, client: int) -> tuple[int, int, int, int]:
    return seed, zlib.crc32(purpose.encode()), round + _OFFSET, client + _OFFSET


class _KnownWords(ISeedSequence):
    """What PCG64 asks of a seed sequence, known in advance."""

    def __init__(self, words: NDArray[np.uint64]):
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> NDArray[np.uint64]:
        if n_words != len(self._words) or dtype is not np.uint64:
            raise ValueError(f"{len(self._words)} words of 64 bits are known, not {n_words} of {dtype}")
        return self._words


def _seed_words(keys: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return what numpy's `SeedSequence` gives PCG64, [n, 4], for n keys of four words each, [n, 4]."""
    pool = list(np.ascontiguousarray(keys.T))
    constants = _constants(*_IN)
    for place in range(_POOL):
        pool[place] = _hashed(pool[place], constants)
    for source in range(_POOL):
        for place in range(_POOL):
            if place != source:
                mixed = _LEFT * pool[place] - _RIGHT * _hashed(pool[source], constants)
                pool[place] = mixed ^ (mixed >> _SHIFT)
    constants = _constants(*_OUT)
    halves = np.stack([_hashed(pool[number % _POOL], constants) for number in range(2 * _POOL)], 1).astype(np.uint64)
    return halves[:, 0::2] | halves[:, 1::2] << np.uint64(32)


def _constants(first: int, factor: int) -> Iterator[tuple[np.uint32, np.uint32]]:
    """Give what every call of `_hashed` takes: a constant, and the next one."""
    while True:
        following = first * factor % _WORD
        yield np.uint32(first), np.uint32(following)
        first = following


def _hashed(values: NDArray[np.uint32], constants: Iterator[tuple[np.uint32, np.uint32]]) -> NDArray[np.uint32]:
    first, following = next(constants)
    values = (values ^ first) * following
    return values ^ (values >> _SHIFT)
