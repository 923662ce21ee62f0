"""The shape of ``params.yaml``: frozen models, unknown keys forbidden, one line per mistake.

`validate` turns a plain mapping into a `Config` or raises `ConfigError` with one `Problem` per mistake.
What depends on methods and add-ons (their names and hyper-parameters) is checked by `fedcore.compose`.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedcore.problems import ConfigError, Path, Problem, explain, nearest


class Section(BaseModel):
    """Base of every section: immutable, no unknown keys, no NaN, no silent conversion of text to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


__all__ = ["Config", "ConfigError", "Problem", "nearest", "validate"]

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


# --- dataset ---------------------------------------------------------------------------------------------------------


class DigitsData(Section):
    """scikit-learn's digits: 1,797 real 8x8 grey images, 10 classes; ships with the package, no download."""

    name: Literal["digits"]


class MnistData(Section):
    """MNIST or Fashion-MNIST: 60,000 train + 10,000 test 28x28 grey images, 10 classes."""

    name: Literal["mnist", "fashion_mnist"]
    root: str = "data/raw"  # folder that holds MNIST/raw or FashionMNIST/raw; filled by a download if it does not
    download: bool = True


class SyntheticData(Section):
    """Synthetic(alpha, beta) of the FedProx paper: 60 features, 10 classes, one generating model per client."""

    name: Literal["synthetic"]
    alpha: NonNegative = 0.0  # spread of the clients' models (a standard deviation)
    beta: NonNegative = 0.0  # spread of the clients' feature means (a standard deviation)
    clients: Count = 100
    seed: Seed = 0


Dataset = Annotated[DigitsData | MnistData | SyntheticData, Field(discriminator="name")]


# --- partition -------------------------------------------------------------------------------------------------------


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


# --- shared data sets ------------------------------------------------------------------------------------------------


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


# --- model -----------------------------------------------------------------------------------------------------------

BatchNormPolicy = Literal["sync", "local_stats", "local_all"]


class SoftmaxRegression(Section):
    """One linear layer on the flattened input; the body is the flattening."""

    name: Literal["softmax_regression"]


class Mlp(Section):
    """Fully connected layers with rectifiers; the head is the last layer."""

    name: Literal["mlp"]
    hidden: Annotated[list[Count], Field(min_length=1)] = [200]


class Cnn(Section):
    """The papers' 4-layer CNN: two 5x5 convolutions with pooling, one hidden layer, one output layer."""

    name: Literal["cnn"]
    channels: tuple[Count, Count] = (32, 64)
    hidden: Count = 512
    norm: Literal["none", "batch", "group"] = "none"
    # What of batch normalisation travels: everything / all but the running statistics / nothing.
    batch_norm: BatchNormPolicy = "sync"

    @model_validator(mode="before")
    @classmethod
    def _channels_from_list(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and isinstance(values.get("channels"), list):
            return {**values, "channels": tuple(values["channels"])}
        return values


Model = Annotated[SoftmaxRegression | Mlp | Cnn, Field(discriminator="name")]


# --- training --------------------------------------------------------------------------------------------------------


class Train(Section):
    """Local training, participation and where it runs."""

    rounds: Count = 60
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0  # cohort size / clients
    local_epochs: Count = 1
    local_steps: Count | None = None  # fixed number of local steps instead of epochs
    batch_size: Count = 10
    # A last batch that is not full: kept short, filled up with the client's own examples, or dropped.
    last_batch: Literal["keep", "wrap", "drop"] = "keep"
    sampling: Literal["epochs", "replacement"] = "epochs"
    lr: Positive = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # the learning rate of round r is lr * lr_decay**r
    weighting: Literal["examples", "uniform"] = "examples"  # aggregation weights
    evaluate_every: Count = 1
    checkpoint_every: Count = 10
    executor: Literal["auto", "serial", "stacked"] = "auto"
    workers: Count = 1  # clients trained in parallel by the serial executor, one thread each
    block_size: Count | None = None  # clients per block of the stacked executor; None: the whole cohort
    device: str = "auto"  # auto, cpu, cuda, cuda:0, ...

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sampling == "replacement" and self.local_steps is None:
            raise ValueError("sampling: replacement has no epochs; set local_steps")
        if self.evaluate_every > self.rounds:
            raise ValueError(f"evaluate_every ({self.evaluate_every}) must not exceed rounds ({self.rounds})")
        return self


class Compare(Section):
    """Which seeds are run, against whom the methods are compared, and the targets of rounds-to-accuracy."""

    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    baseline: str = "fedavg"
    targets: list[Annotated[float, Field(gt=0, lt=1)]] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must differ, got {self.seeds}")
        return self


class MethodBlock(Section):
    """One line of the comparison: a method, its add-ons, and what of ``train`` it overrides.

    Every other key is a hyper-parameter of the method; `fedcore.compose` checks those.
    """

    model_config = ConfigDict(extra="allow")

    method: str | None = None
    add: dict[str, dict[str, Any]] = {}
    train: dict[str, Any] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """The method's own hyper-parameters."""
        return dict(self.model_extra or {})


Label = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]


class Config(Section):
    """All of ``params.yaml``."""

    experiment: Label
    dataset: Dataset
    partition: Partition
    virtual: Virtual | None = None
    pseudo: Pseudo | None = None
    model: Model
    train: Train
    methods: Annotated[dict[Label, MethodBlock], Field(min_length=1)]
    compare: Compare

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.compare.baseline not in self.methods:
            raise ValueError(
                f"compare.baseline '{self.compare.baseline}' is not one of the methods"
                + nearest(self.compare.baseline, self.methods)
            )
        if self.partition.scheme == "natural" and self.dataset.name != "synthetic":
            raise ValueError(
                f"partition.scheme 'natural' needs a data set with clients of its own; '{self.dataset.name}' has none."
                " Valid: dirichlet, file, iid"
            )
        if self.dataset.name == "synthetic" and self.partition.scheme == "dirichlet":
            raise ValueError(
                "partition.scheme 'dirichlet' would mix the clients of 'synthetic'. Valid: file, iid, natural"
            )
        if self.virtual is not None and self.dataset.name == "synthetic":
            raise ValueError("virtual data are images; 'synthetic' has 60 features. Valid: null")
        if self.model.name == "cnn" and self.dataset.name == "synthetic":
            raise ValueError(
                "model.name 'cnn' needs images; 'synthetic' has 60 features. Valid: mlp, softmax_regression"
            )
        return self


def train_for(config: Config, label: str) -> Train:
    """Return the training section of one method: ``train`` with the method's own overrides."""
    override = config.methods[label].train
    merged = {**config.train.model_dump(), **override}
    return typing.cast(Train, validate_section(Train, merged, ("methods", label, "train")))


def validate(values: Any) -> Config:
    """Check a mapping read from ``params.yaml``.

    Raises
    ------
    ConfigError
        With one `Problem` per mistake, each naming the key, what was found and what is valid.
    """
    if not isinstance(values, Mapping):
        raise ConfigError([Problem((), f"expected a mapping of sections, got {type(values).__name__}")])
    config = typing.cast(Config, validate_section(Config, values, ()))
    for label in config.methods:
        train_for(config, label)
    return config


def validate_section(section: type[Section], values: Any, path: Path) -> Section:
    """Check one section; `path` is where it stands, for the messages."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(section, path, detail) for detail in error.errors()) from None
