"""Streams are keyed by what they are for, and stay what they are from version to version."""

import itertools
import zlib

import numpy as np
import pytest

from fedcore import seeds
from fedcore.seeds import Streams, stream


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**70])
@pytest.mark.parametrize(("round", "client"), [(0, -1), (-1, 3), (2**19, 10**6)])
def test_a_stream_is_pcg64_of_its_key(seed, round, client):
    key = (seed, zlib.crc32(b"batches/0"), 2**20 + round, 2**20 + client)
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
    assert np.array_equal(stream(seed, "batches/0", round, client).random(5), expected.random(5))


def test_streams_of_different_keys_differ():
    keys = itertools.product([0, 1, 2**32, 2**32 + 1], ["batches", "draws"], [-1, 0, 1], [-1, 0, 1])
    assert len({stream(*key).integers(0, 2**62) for key in keys}) == 4 * 2 * 3 * 3


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="got -1"):
        stream(-1, "batches")


KEYS = [("batches/0", 3), ("batches/1", 3), ("batches/0", 10**6), ("draws", -1)]


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**70])
@pytest.mark.parametrize("round", [-1, 0, 2**19])
def test_streams_that_are_made_together_are_those_that_are_made_alone(seed, round):
    streams = Streams(seed, round, KEYS)
    for purpose, client in [*KEYS, ("not named", 5), KEYS[0]]:
        expected = stream(seed, purpose, round, client)
        found = streams.of(purpose, client)
        assert np.array_equal(found.permutation(50), expected.permutation(50))
        assert np.array_equal(found.random(5), expected.random(5))


def test_streams_that_are_named_are_made_together(monkeypatch):
    streams = Streams(1, 2, KEYS)
    monkeypatch.setattr(seeds, "stream", None)
    assert [streams.of(*key).integers(0, 2**62) for key in KEYS]
    with pytest.raises(TypeError):
        streams.of("not named", 5)


def test_streams_of_a_negative_seed_are_refused():
    with pytest.raises(ValueError, match="got -1"):
        Streams(-1, 0, KEYS).of(*KEYS[0])
