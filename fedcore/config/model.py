"""The ``model`` section: one class per model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from fedcore.config.sections import Count, Section

BatchNormPolicy = Literal["sync", "local_stats", "local_all"]


class SoftmaxRegression(Section):
    """One linear layer on the flattened input; the body is the flattening."""

    needs_images: ClassVar[bool] = False
    name: Literal["softmax_regression"]


class Mlp(Section):
    """Fully connected layers with rectifiers; the head is the last layer."""

    needs_images: ClassVar[bool] = False
    name: Literal["mlp"]
    hidden: Annotated[list[Count], Field(min_length=1)] = [200]


class Cnn(Section):
    """The papers' 4-layer CNN: two 5x5 convolutions with pooling, one hidden layer, one output layer."""

    needs_images: ClassVar[bool] = True
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


class LeNet(Section):
    """LG-FedAvg's LeNet: two 5x5 convolutions with pooling, hidden layers of 120 and 100, one output layer."""

    needs_images: ClassVar[bool] = True
    name: Literal["lenet"]


class GroupCnn(Section):
    """FedBR's CNN for rotated MNIST: four 3x3 convolutions with group normalisation, averaged to 128 features."""

    needs_images: ClassVar[bool] = True
    name: Literal["group_cnn"]


Model = Annotated[SoftmaxRegression | Mlp | Cnn | LeNet | GroupCnn, Field(discriminator="name")]
