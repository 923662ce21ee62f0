"""The sections of data every client gets a copy of: virtual data of VHL, pseudo data of FedBR."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedcore.config.dataset import Dataset
from fedcore.config.sections import Count, LearningRate, NonNegative, Section, Seed, Width


class NoiseVirtual(Section):
    """Up-sampled Gaussian noise; a class is a mean image."""

    generator: Literal["noise"]
    per_class: Count = 200
    seed: Seed = 0
    spread: NonNegative = 0.5  # of the examples around their mean
    classes: Count | None = None  # how many; null: as many as labels. Others need a map, `labels` of the add-on vhl


class StyleganVirtual(Section):
    """Images of one untrained StyleGAN-v2; a class is a mean latent vector."""

    generator: Literal["stylegan"]
    per_class: Count = 200
    seed: Seed = 0
    latent: Width = 64  # the paper: 256 for 100 classes
    mean_spread: NonNegative = 0.5
    spread: NonNegative = 0.3  # the paper: 0.2 for 100 classes, 0.15 for 200
    width: Width = 512  # channels of every layer; time falls with its square
    classes: Count | None = None  # as of the noise


class CnnVirtual(Section):
    """Images of small untrained convolutional networks; a class is a network."""

    generator: Literal["cnn"]
    per_class: Count = 200
    seed: Seed = 0
    latent: Width = 64
    width: Width = 64  # channels of every convolution; time falls with its square
    diversity_steps: Annotated[int, Field(ge=0)] = 50  # that make a network's images differ; nearly all of the time
    diversity_batch: Annotated[int, Field(ge=2)] = 64
    diversity_lr: LearningRate = 0.01
    classes: Count | None = None  # as of the noise


class ImagesVirtual(Section):
    """Images of another data set, resized; a class is one of its classes."""

    generator: Literal["images"]
    source: Dataset
    classes: int | list[str] | None = None  # how many, or which one stands for each label; null: as many as labels
    per_class: Count = 200
    seed: Seed = 0  # draws classes and images

    @field_validator("source")
    @classmethod
    def _has_images(cls, value: Dataset) -> Dataset:
        if not value.is_image:
            raise ValueError(f"needs images; '{value.name}' has {value.kind}")
        return value

    @field_validator("classes", mode="plain")
    @classmethod
    def _number_or_names(cls, value: Any) -> Any:
        if value is None or (type(value) is int and value >= 1):
            return value
        if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
            if len(set(value)) < len(value):
                raise ValueError(f"classes must differ, got {value}")
            return value
        raise ValueError(f"expected a number of classes, a list of the source's class names or null, got {value!r}")


Virtual = Annotated[NoiseVirtual | StyleganVirtual | CnnVirtual | ImagesVirtual, Field(discriminator="generator")]


class _Pseudo(Section):
    rows: Count = 32  # in a set
    examples: Count = 10  # in a mean
    transfer: Literal["once", "every_round"] = "once"
    transfers: Count = 1  # different sets; round r of "every_round" uses set r modulo this
    seed: Seed = 0

    @model_validator(mode="after")
    def _sets(self) -> Self:
        if self.transfer == "once" and self.transfers > 1:
            raise ValueError(
                f"transfers: {self.transfers} sets cannot be sent once; set 1, or transfer to 'every_round'"
            )
        if self.transfer == "every_round" and self.transfers == 1:
            raise ValueError("transfers: transfer 'every_round' needs at least 2 different sets; 1 set is sent 'once'")
        return self


class RsmPseudo(_Pseudo):
    """Random-sample means: means of training examples of one client, drawn as they are or by class."""

    generator: Literal["rsm", "rsm_balanced"]


class MixturePseudo(_Pseudo):
    """Means of examples of a public data set, which clients mix with their own."""

    generator: Literal["mixture"]
    proxy: Dataset


Pseudo = Annotated[RsmPseudo | MixturePseudo, Field(discriminator="generator")]
