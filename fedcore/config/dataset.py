"""The ``dataset`` section: one class per source."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedcore.config.sections import Count, NonNegative, Section, Seed

# half: (pixel - 127.5) / 127.5, which is -1..1. official: minus the mean, over the deviation, per channel; the figures
# in common use for the set.
Normalise = Literal["half", "official"]


class Source(Section):
    """What every source says about its examples."""

    is_image: ClassVar[bool] = True  # images [C, H, W]; otherwise feature vectors [F]


class DigitsData(Source):
    """scikit-learn's digits: 1,797 real 8x8 grey images, 10 classes; ships with the package, no download."""

    name: Literal["digits"]


class MnistData(Source):
    """MNIST or Fashion-MNIST: 60,000 train + 10,000 test 28x28 grey images, 10 classes."""

    name: Literal["mnist", "fashion_mnist"]
    root: str = "data/raw"  # folder that holds MNIST/raw or FashionMNIST/raw; filled by a download if it does not
    download: bool = True
    normalise: Normalise = "half"


class SyntheticData(Source):
    """Synthetic(alpha, beta) of the FedProx paper: 60 features, 10 classes, one generating model per client."""

    is_image: ClassVar[bool] = False

    name: Literal["synthetic"]
    alpha: NonNegative = 0.0  # spread of the clients' models (a standard deviation)
    beta: NonNegative = 0.0  # spread of the clients' feature means (a standard deviation)
    clients: Count = 100
    seed: Seed = 0


class Cifar10Data(Source):
    """CIFAR-10: 50,000 train + 10,000 test 32x32 colour images, 10 classes."""

    name: Literal["cifar10"]
    # Folder that holds cifar10/{train,test}.parquet or the official binary version, unpacked (cifar-10-batches-bin/) or
    # not (cifar-10-binary.tar.gz); filled by a download of the last if it holds none of them.
    root: str = "data/raw"
    download: bool = True
    normalise: Normalise = "half"


class Cifar100Data(Source):
    """CIFAR-100: 50,000 train + 10,000 test 32x32 colour images, 100 classes in 20 superclasses."""

    name: Literal["cifar100"]
    labels: Literal["fine", "coarse"] = "fine"  # the 100 classes, or the 20 superclasses
    # Folder that holds cifar100/{train,test}.parquet or the official binary version, unpacked (cifar-100-binary/) or
    # not (cifar-100-binary.tar.gz); filled by a download of the last if it holds none of them.
    root: str = "data/raw"
    download: bool = True
    normalise: Normalise = "half"


class TinyImagenetData(Source):
    """Tiny-ImageNet, whole or some of its classes: 64x64 colour images; never downloaded."""

    name: Literal["tiny_imagenet"]
    root: str = "data/raw"
    folder: str = "tinyimagenet20"  # folder under root with train.parquet and val.parquet
    normalise: Normalise = "half"


class AdultData(Source):
    """UCI Adult: does a person earn more than $50,000 a year? Race and sex are protected; never downloaded."""

    is_image: ClassVar[bool] = False

    name: Literal["adult"]
    root: str = "data/raw"  # folder that holds adult/adult.data, as it is or with .gz
    test_file: bool = False  # also read adult/adult.test; its rows come after those of adult.data


class ImageFolderData(Source):
    """Your own images: one folder per class, ``<root>/<class>/<image>``."""

    name: Literal["image_folder"]
    root: str
    size: Count | None = None  # pixels; images are resized to size x size; without it all must have one size
    channels: Literal[1, 3] = 3  # 1 makes them grey


class ParquetData(Source):
    """Your own images: parquet files with a column of encoded images and a column of labels."""

    name: Literal["parquet"]
    files: Annotated[list[str], Field(min_length=1)]  # train rows, in this order
    test_files: list[str] = []  # official test rows, if there are any
    image: str = "image"  # column: encoded images (binary), or a struct with a field `bytes`
    label: str = "label"  # column: whole numbers from 0 on, or strings
    size: Count | None = None  # as in `image_folder`
    channels: Literal[1, 3] = 3


Dataset = Annotated[
    DigitsData
    | MnistData
    | SyntheticData
    | Cifar10Data
    | Cifar100Data
    | TinyImagenetData
    | AdultData
    | ImageFolderData
    | ParquetData,
    Field(discriminator="name"),
]
