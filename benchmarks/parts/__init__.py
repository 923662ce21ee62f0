"""Timings of the engine's parts, with pytest-benchmark; no part of the test suite."""
