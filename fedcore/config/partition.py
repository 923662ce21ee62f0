"""The ``partition`` section: one class per scheme."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from fedcore.config.sections import Count, Fraction, Positive, Section, Seed

Degrees = Annotated[float, Field(ge=-360, le=360)]


class Splits(Section):
    """How each client's examples are split and its images changed; part of every partition scheme."""

    # Would mix a data set's own clients, and is refused there; iid does so on purpose, as the case without any skew.
    mixes_clients: ClassVar[bool] = False
    by_client: ClassVar[bool] = False  # takes the data set's own clients

    test: Annotated[float, Field(gt=0, lt=1)] = 0.25  # share of a client's examples held out for testing
    validation: Fraction = 0.1  # share of the remaining examples held out for selection
    unseen_clients: Annotated[int, Field(ge=0)] = 0  # the last so many clients never take part in training
    rotation: Degrees = 0.0  # degrees: client i's images are turned by i times this, counter-clockwise
    unseen_rotation: Degrees | None = None  # degrees, the same for every unseen client; null: as the other clients
    # Client i of N gets Gaussian noise of standard deviation noise * i / N; 1 is the whole range of a pixel.
    noise: Annotated[float, Field(ge=0, le=10)] = 0.0
    keep: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of every class's examples that is dealt at all
    seed: Seed = 0

    @model_validator(mode="after")
    def _check_unseen(self) -> Self:
        if self.unseen_rotation is not None and self.unseen_clients == 0:
            raise ValueError("unseen_rotation turns the images of unseen clients; set unseen_clients to at least 1")
        return self

    @property
    def rotates(self) -> bool:
        """Whether any client's images may be turned."""
        return self.rotation != 0 or bool(self.unseen_rotation)


class IidPartition(Splits):
    """Examples dealt at random, equal shares."""

    scheme: Literal["iid"]
    clients: Count = 20


class PowerLawPartition(Splits):
    """Quantity skew: the r-th largest client has a share proportional to r ** -exponent; labels as in the whole set."""

    mixes_clients: ClassVar[bool] = True

    scheme: Literal["quantity_power_law"]
    clients: Count = 20
    exponent: Annotated[float, Field(ge=0, le=20)] = 1.0  # 0: equal sizes; 1: Zipf's law
    min_examples: Count = 10  # floor on a client's examples, all splits together


class LogNormalPartition(Splits):
    """Quantity skew: shares in proportion to the exponential of a normal variable; labels as in the whole set."""

    mixes_clients: ClassVar[bool] = True

    scheme: Literal["quantity_log_normal"]
    clients: Count = 20
    sigma: Annotated[float, Field(ge=0, le=20)] = 1.0  # deviation of the logarithm of a size; 0: equal sizes
    min_examples: Count = 10  # floor on a client's examples, all splits together


class LabelSkew(Splits):
    """Base of the schemes that deal rows by label."""

    mixes_clients: ClassVar[bool] = True

    clients: Count = 20


class DirichletPartition(LabelSkew):
    """Label skew: every class is cut by shares drawn from a symmetric Dirichlet distribution over clients."""

    scheme: Literal["dirichlet"]
    alpha: Positive = 0.1
    min_examples: Count = 10  # floor on a client's examples, all splits together
    max_redraws: Count = 1000


class DirClientPartition(LabelSkew):
    """Label skew of FedBR: every client draws its class shares from a Dirichlet distribution; all are equally large.

    With ``prior: remaining`` the concentration of class k is alpha times the share of k among the rows not yet dealt,
    so alpha 0.1 is about 0.01 per class of ten: nearly one class per client. ``ones``: alpha for every class.
    """

    scheme: Literal["dir_client"]
    alpha: Positive = 0.1
    prior: Literal["remaining", "ones"] = "remaining"


class ShardsPartition(LabelSkew):
    """Label skew Q(shards) of FedLC: rows sorted by label, cut into clients * shards equal sets, `shards` a client."""

    scheme: Literal["shards"]
    shards: Count = 2


class KClassesPartition(LabelSkew):
    """Exactly `classes` classes per client: class i mod K for client i, the others at random."""

    scheme: Literal["k_classes"]
    classes: Count = 2


class LgShardsPartition(LabelSkew):
    """Label skew of LG-FedAvg: every class cut into shards * clients / K pieces, `shards` pieces a client."""

    scheme: Literal["lg_shards"]
    clients: Count = 100
    shards: Count = 2


class PathologicalPartition(LabelSkew):
    """Label skew of PFLlib: class after class goes, in unequal pieces, to the first clients that have room."""

    scheme: Literal["pathological"]
    classes: Count = 2  # room of a client; it fills up for all when K is a multiple of it
    min_examples: Count = 40  # a piece, but the last of its class, has at least min_examples / K rows


class DominantPartition(LabelSkew):
    """One main class per client, class i mod K; the rest of every class is spread over the other clients."""

    scheme: Literal["dominant"]
    share: Annotated[float, Field(gt=0, le=1)] = 0.99  # of a class's examples, for the clients whose main class it is


class NaturalPartition(Splits):
    """The data set's own clients (for example the devices of ``synthetic``)."""

    by_client: ClassVar[bool] = True

    scheme: Literal["natural"]
    min_examples: Count = 2


class StablePartition(Splits):
    """Client and split of an example follow from the example alone, so that they stay when more examples arrive.

    The client is the data set's own, or else one of `clients` by a hash of the input, with shares per class drawn from
    a Dirichlet distribution if `alpha` is given. The split is by a hash of the input.
    """

    scheme: Literal["stable"]
    clients: Count | None = None  # null: the data set's own
    alpha: Positive | None = None  # null: equal shares
    min_examples: Count = 10  # a client takes part from then on

    @model_validator(mode="after")
    def _check_stable(self) -> Self:
        if self.unseen_clients:
            raise ValueError("unseen_clients are the last ones, which change as clients arrive. Valid: 0")
        if self.keep != 1:
            raise ValueError("keep depends on how many examples there are. Valid: 1")
        return self


class FilePartition(Section):
    """An ``.npz`` with ``client`` (-1 = unused) and ``split`` (0 train, 1 test, optionally 2 validation) per row.

    It may hold ``rotation``, the degrees by which the images of each client are turned, and ``noise``, the standard
    deviation of the noise on them.
    """

    mixes_clients: ClassVar[bool] = False
    by_client: ClassVar[bool] = False

    scheme: Literal["file"]
    path: str
    validation: Fraction = 0.1  # share of the train examples cut off for selection when the file has no split 2
    unseen_clients: Annotated[int, Field(ge=0)] = 0
    seed: Seed = 0


Partition = Annotated[
    IidPartition
    | PowerLawPartition
    | LogNormalPartition
    | DirichletPartition
    | DirClientPartition
    | ShardsPartition
    | KClassesPartition
    | LgShardsPartition
    | PathologicalPartition
    | DominantPartition
    | NaturalPartition
    | StablePartition
    | FilePartition,
    Field(discriminator="scheme"),
]


def valid_schemes(*, own_clients: bool) -> str:
    """Return the names of the schemes for a data set with, or without, clients of its own: ``file, iid, natural``."""
    found: list[str] = []
    for scheme in get_args(get_args(Partition)[0]):
        if not (scheme.mixes_clients if own_clients else scheme.by_client):
            found += get_args(scheme.model_fields["scheme"].annotation)
    return ", ".join(sorted(found))
