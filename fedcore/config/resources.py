"""The sections of data every client gets a copy of."""

from __future__ import annotations

from typing import Literal

from fedcore.config.sections import Count, Section, Seed


class Virtual(Section):
    """Virtual data of VHL: labelled images made of noise, one copy for every client."""

    generator: Literal["noise"]
    per_class: Count = 200
    seed: Seed = 0


class Pseudo(Section):
    """Pseudo data of FedBR: means of clients' training examples, one copy for every client."""

    generator: Literal["rsm", "rsm_balanced"]
    rows: Count = 32
    examples: Count = 10  # examples in a mean
    seed: Seed = 0
