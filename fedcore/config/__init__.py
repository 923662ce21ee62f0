"""The shape of ``params.yaml``: frozen models, unknown keys forbidden, one line per mistake.

`validate` turns a plain mapping into a `Config` or raises `ConfigError` with one `Problem` per mistake.
What depends on methods and add-ons (their names and hyper-parameters) is checked by `fedcore.compose`.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from fedcore.config.dataset import Dataset, DigitsData, MnistData, SyntheticData
from fedcore.config.model import BatchNormPolicy, Cnn, Mlp, Model, SoftmaxRegression
from fedcore.config.partition import (
    DirichletPartition,
    FilePartition,
    IidPartition,
    NaturalPartition,
    Partition,
    Splits,
)
from fedcore.config.resources import Pseudo, Virtual
from fedcore.config.sections import Label, Section
from fedcore.config.train import Compare, MethodBlock, Train
from fedcore.problems import ConfigError, Path, Problem, explain, nearest

__all__ = [
    "BatchNormPolicy",
    "Cnn",
    "Compare",
    "Config",
    "ConfigError",
    "Dataset",
    "DigitsData",
    "DirichletPartition",
    "FilePartition",
    "IidPartition",
    "MethodBlock",
    "Mlp",
    "MnistData",
    "Model",
    "NaturalPartition",
    "Partition",
    "Problem",
    "Pseudo",
    "Section",
    "SoftmaxRegression",
    "Splits",
    "SyntheticData",
    "Train",
    "Virtual",
    "nearest",
    "train_for",
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
