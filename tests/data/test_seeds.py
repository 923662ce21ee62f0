"""Streams are keyed by what they are for, and stay what they are from version to version."""

import itertools
import zlib

import numpy as np
import pytest

from fedcore.seeds import stream


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
