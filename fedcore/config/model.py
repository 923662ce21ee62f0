"""The ``model`` section: one class per model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedcore.config.sections import Count, Section, Width

BatchNormPolicy = Literal["sync", "local_stats", "local_all"]


class SoftmaxRegression(Section):
    """One linear layer on the flattened input; the body is the flattening."""

    needs_images: ClassVar[bool] = False
    name: Literal["softmax_regression"]


class Mlp(Section):
    """Fully connected layers with rectifiers; the head is the last layer."""

    needs_images: ClassVar[bool] = False
    name: Literal["mlp"]
    hidden: Annotated[list[Width], Field(min_length=1)] = [200]


class Cnn(Section):
    """The papers' 4-layer CNN: two 5x5 convolutions with pooling, one hidden layer, one output layer."""

    needs_images: ClassVar[bool] = True
    name: Literal["cnn"]
    channels: tuple[Width, Width] = (32, 64)
    hidden: Width = 512
    norm: Literal["none", "batch", "group"] = "none"
    # What of batch normalisation travels: everything / all but the running statistics / nothing.
    batch_norm: BatchNormPolicy = "sync"

    @model_validator(mode="before")
    @classmethod
    def _channels_from_list(cls, values: Any) -> Any:
        return _with_tuples(values, "channels")


class LeNet(Section):
    """LG-FedAvg's LeNet: two 5x5 convolutions with pooling, hidden layers of 120 and 100, one output layer."""

    needs_images: ClassVar[bool] = True
    name: Literal["lenet"]


class GroupCnn(Section):
    """FedBR's CNN for rotated MNIST: four 3x3 convolutions with group normalisation, averaged to 128 features."""

    needs_images: ClassVar[bool] = True
    name: Literal["group_cnn"]


class Vgg11(Section):
    """VGG-11 without normalisation, averaged over the image: FedBR's model of CIFAR-10."""

    needs_images: ClassVar[bool] = True
    name: Literal["vgg11"]
    # Of the first convolution; the later ones have 2, 4 and 8 times as many channels.
    width: Width = 64


class ResNet(Section):
    """A residual network: VHL's with the stem ``cifar``, DBE's and FedLC's with torchvision's, ``stock``."""

    needs_images: ClassVar[bool] = True
    name: Literal["resnet"]
    depth: Literal[10, 18, 34, 50] = 18
    stem: Literal["cifar", "stock"] = "cifar"
    # Of the first stage; each later one has twice as many channels.
    width: Width = 64
    norm: Literal["batch", "group"] = "batch"
    batch_norm: BatchNormPolicy = "sync"


class Cct(Section):
    """A compact convolutional transformer with a 3x3 convolution; by default CCT-7/3x1, FedBR's model of CIFAR-100."""

    needs_images: ClassVar[bool] = True
    name: Literal["cct"]
    layers: Count = 7
    heads: Count = 4
    width: Width = 256

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.width % self.heads:
            valid = self.width + self.heads - self.width % self.heads
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}; valid: {valid}")
        return self


class FastText(Section):
    """The mean of a text's word embeddings, a hidden linear layer and the head: DBE's model of AG News."""

    needs_images: ClassVar[bool] = False
    name: Literal["fast_text"]
    # Token ids are below it; 0 is padding.
    vocabulary: Count = 98_635
    width: Width = 32


class HarCnn(Section):
    """Two convolutions along the time and two hidden layers, for series of sensor readings."""

    needs_images: ClassVar[bool] = False
    name: Literal["har_cnn"]
    channels: tuple[Width, Width] = (32, 64)
    hidden: tuple[Width, Width] = (1024, 512)

    @model_validator(mode="before")
    @classmethod
    def _pairs_from_lists(cls, values: Any) -> Any:
        return _with_tuples(values, "channels", "hidden")


def _with_tuples(values: Any, *keys: str) -> Any:
    """Return the section with these keys' lists as tuples: YAML has no others."""
    if not isinstance(values, Mapping):
        return values
    return {**values, **{key: tuple(values[key]) for key in keys if isinstance(values.get(key), list)}}


Model = Annotated[
    SoftmaxRegression | Mlp | Cnn | LeNet | GroupCnn | Vgg11 | ResNet | Cct | FastText | HarCnn,
    Field(discriminator="name"),
]
