"""The ``partition`` section: one class per scheme."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedcore.config.sections import Count, Fraction, Positive, Section, Seed


class Splits(Section):
    """How each client's examples are split; part of every partition scheme."""

    test: Annotated[float, Field(gt=0, lt=1)] = 0.25  # share of a client's examples held out for testing
    validation: Fraction = 0.1  # share of the remaining examples held out for selection
    unseen_clients: Annotated[int, Field(ge=0)] = 0  # the last so many clients never take part in training
    seed: Seed = 0


class IidPartition(Splits):
    """Examples dealt at random, equal shares."""

    scheme: Literal["iid"]
    clients: Count = 20


class DirichletPartition(Splits):
    """Label skew: every class is cut by shares drawn from a symmetric Dirichlet distribution over clients."""

    scheme: Literal["dirichlet"]
    alpha: Positive = 0.1
    clients: Count = 20
    min_examples: Count = 10  # floor on a client's examples, all splits together
    max_redraws: Count = 1000


class NaturalPartition(Splits):
    """The data set's own clients (for example the devices of ``synthetic``)."""

    scheme: Literal["natural"]
    min_examples: Count = 2


class FilePartition(Section):
    """An ``.npz`` with ``client`` (-1 = unused) and ``split`` (0 train, 1 test, optionally 2 validation) per row."""

    scheme: Literal["file"]
    path: str
    validation: Fraction = 0.1  # share of the train examples cut off for selection when the file has no split 2
    unseen_clients: Annotated[int, Field(ge=0)] = 0
    seed: Seed = 0


Partition = Annotated[
    IidPartition | DirichletPartition | NaturalPartition | FilePartition, Field(discriminator="scheme")
]
