"""The shape of ``params.yaml``: frozen models, unknown keys forbidden, one line per mistake.

`validate` turns a plain mapping into a `Config` or raises `ConfigError` with one `Problem` per mistake.
What depends on methods and add-ons (their names and hyper-parameters) is checked by `fedcore.compose`.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from fedcore.config.dataset import (
    AdultData,
    AgNewsData,
    Cifar10Data,
    Cifar100Data,
    CsvData,
    Dataset,
    DigitsData,
    EmnistData,
    FemnistData,
    HarData,
    ImageFolderData,
    ImagenetData,
    MnistData,
    Normalise,
    NpzData,
    ParquetData,
    SvhnData,
    SyntheticData,
    TableData,
    TinyImagenetData,
)
from fedcore.config.gate import Gate
from fedcore.config.model import (
    BatchNormPolicy,
    Cct,
    Cnn,
    FastText,
    GroupCnn,
    HarCnn,
    LeNet,
    Mlp,
    Model,
    ResNet,
    SoftmaxRegression,
    Vgg11,
)
from fedcore.config.nightly import Drift, Incoming, Notify
from fedcore.config.partition import (
    DirClientPartition,
    DirichletPartition,
    DominantPartition,
    FilePartition,
    IidPartition,
    KClassesPartition,
    LgShardsPartition,
    LogNormalPartition,
    NaturalPartition,
    Partition,
    PathologicalPartition,
    PowerLawPartition,
    ShardsPartition,
    Splits,
    StablePartition,
    valid_schemes,
)
from fedcore.config.resources import (
    CnnVirtual,
    ImagesVirtual,
    MixturePseudo,
    NoiseVirtual,
    Pseudo,
    RsmPseudo,
    StyleganVirtual,
    Virtual,
)
from fedcore.config.sections import Label, Section
from fedcore.config.train import Augment, Compare, MethodBlock, Ray, Train
from fedcore.problems import ConfigError, Path, Problem, explain, nearest

__all__ = [
    "AdultData",
    "AgNewsData",
    "Augment",
    "BatchNormPolicy",
    "Cct",
    "Cifar10Data",
    "Cifar100Data",
    "Cnn",
    "CnnVirtual",
    "Compare",
    "Config",
    "ConfigError",
    "CsvData",
    "Dataset",
    "DigitsData",
    "DirClientPartition",
    "DirichletPartition",
    "DominantPartition",
    "Drift",
    "EmnistData",
    "FastText",
    "FemnistData",
    "FilePartition",
    "Gate",
    "GroupCnn",
    "HarCnn",
    "HarData",
    "IidPartition",
    "ImageFolderData",
    "ImagenetData",
    "ImagesVirtual",
    "Incoming",
    "KClassesPartition",
    "LeNet",
    "LgShardsPartition",
    "LogNormalPartition",
    "MethodBlock",
    "MixturePseudo",
    "Mlp",
    "MnistData",
    "Model",
    "NaturalPartition",
    "NoiseVirtual",
    "Normalise",
    "Notify",
    "NpzData",
    "ParquetData",
    "Partition",
    "PathologicalPartition",
    "PowerLawPartition",
    "Problem",
    "Pseudo",
    "Ray",
    "ResNet",
    "RsmPseudo",
    "Section",
    "ShardsPartition",
    "SoftmaxRegression",
    "Splits",
    "StablePartition",
    "StyleganVirtual",
    "SvhnData",
    "SyntheticData",
    "TableData",
    "TinyImagenetData",
    "Train",
    "Vgg11",
    "Virtual",
    "nearest",
    "train_for",
    "valid_schemes",
    "validate",
    "validate_section",
]


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
    gate: Gate = Gate()
    incoming: Incoming | None = None
    drift: Drift = Drift()
    notify: Notify = Notify()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.compare.baseline not in self.methods:
            raise ValueError(
                f"compare.baseline '{self.compare.baseline}' is not one of the methods"
                + nearest(self.compare.baseline, self.methods)
            )
        if self.partition.by_client and self.dataset.own_clients is False:
            raise ValueError(
                f"partition.scheme 'natural' needs a data set with clients of its own; '{self.dataset.name}' has none."
                f" Valid: {valid_schemes(own_clients=False)}"
            )
        if self.partition.mixes_clients and self.dataset.own_clients:
            raise ValueError(
                f"partition.scheme '{self.partition.scheme}' would mix the clients of '{self.dataset.name}'."
                f" Valid: {valid_schemes(own_clients=True)}"
            )
        if isinstance(self.partition, Splits) and self.partition.rotates and not self.dataset.is_image:
            raise ValueError(
                f"partition.rotation turns images; '{self.dataset.name}' has {self.dataset.kind}."
                " Valid: rotation 0 and unseen_rotation null"
            )
        if isinstance(self.partition, Splits) and self.partition.noise and not self.dataset.is_image:
            raise ValueError(
                f"partition.noise is for images; '{self.dataset.name}' has {self.dataset.kind}. Valid: noise 0"
            )
        if self.virtual is not None and not self.dataset.is_image:
            raise ValueError(f"virtual data are images; '{self.dataset.name}' has {self.dataset.kind}. Valid: null")
        if self.pseudo is not None and self.dataset.kind == "token ids":
            raise ValueError(f"pseudo data are means of examples; '{self.dataset.name}' has token ids. Valid: null")
        if isinstance(self.pseudo, MixturePseudo) and self.pseudo.proxy.kind != self.dataset.kind:
            raise ValueError(
                f"pseudo.proxy '{self.pseudo.proxy.name}' has {self.pseudo.proxy.kind},"
                f" dataset '{self.dataset.name}' {self.dataset.kind}; they need one shape"
            )
        if self.train.augment.is_on and not self.dataset.is_image:
            raise ValueError(f"train.augment is for images; '{self.dataset.name}' has {self.dataset.kind}. Valid: {{}}")
        if self.incoming is not None and self.dataset.kind not in ("images", "feature vectors"):
            raise ValueError(
                f"incoming takes images and feature vectors; '{self.dataset.name}' has {self.dataset.kind}. Valid: null"
            )
        if self.incoming is not None and not isinstance(self.partition, StablePartition):
            raise ValueError(
                f"incoming needs partition.scheme 'stable': '{self.partition.scheme}' deals all examples anew when some"
                " arrive, and what was tested yesterday would be trained on"
            )
        own = [*getattr(self.dataset, "files", ()), *getattr(self.dataset, "test_files", ())]
        own += [self.dataset.root] if hasattr(self.dataset, "root") else []
        moved = [path for path in own if self.incoming is not None and self.incoming.holds(path)]
        if self.incoming is not None and moved:
            raise ValueError(
                f"incoming.folder '{self.incoming.folder}' holds '{moved[0]}' of the data set itself, which would be"
                " moved away; expected a folder for new files alone"
            )
        if self.model.needs_images and not self.dataset.is_image:
            raise ValueError(
                f"model.name '{self.model.name}' needs images; '{self.dataset.name}' has {self.dataset.kind}."
                " Valid: mlp, softmax_regression"
            )
        return self


def train_for(config: Config, label: str, preset: Mapping[str, Any] | None = None) -> Train:
    """Return the training section of one method: ``train``, over it what presets set, over that its own overrides."""
    merged = {**config.train.model_dump(), **(preset or {}), **config.methods[label].train}
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
        train = train_for(config, label)
        if train.augment.is_on and not config.dataset.is_image:
            message = f"is for images; '{config.dataset.name}' has {config.dataset.kind}. Valid: {{}}"
            raise ConfigError([Problem(("methods", label, "train", "augment"), message)])
        evaluations = -(-train.rounds // train.evaluate_every)
        if (config.compare.average or 0) > evaluations:
            message = (
                f"is {config.compare.average}, but '{label}' is evaluated {evaluations} times ({train.rounds} rounds,"
                f" every {train.evaluate_every}). Valid: null" + f", 2 to {evaluations}" * (evaluations > 1)
            )
            raise ConfigError([Problem(("compare", "average"), message)])
    return config


def validate_section(section: type[Section], values: Any, path: Path) -> Section:
    """Check one section; `path` is where it stands, for the messages."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(section, path, detail) for detail in error.errors()) from None
