"""The ``dataset`` section: one class per source."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedcore.config.sections import Count, NonNegative, Section, Seed

# half: (pixel - 127.5) / 127.5, which is -1..1. official: minus the mean, over the deviation, per channel; the figures
# in common use for the set.
Normalise = Literal["half", "official"]

Content = Literal["images", "feature vectors", "signals", "token ids"]


class Source(Section):
    """What every source says about its examples."""

    content: ClassVar[Content] = "images"

    @property
    def kind(self) -> Content:
        """What an example is: images [C, H, W], feature vectors [F], signals [C, L] or token ids [L]."""
        return self.content

    @property
    def is_image(self) -> bool:
        """Whether an example is an image."""
        return self.kind == "images"

    @property
    def own_clients(self) -> bool | None:
        """Whether the set says which client holds what; None when only its files tell."""
        return False


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

    content: ClassVar[Content] = "feature vectors"

    name: Literal["synthetic"]
    alpha: NonNegative = 0.0  # spread of the clients' models (a standard deviation)
    beta: NonNegative = 0.0  # spread of the clients' feature means (a standard deviation)
    clients: Count = 100
    examples_per_client: Count | None = None  # null: at least 50, a log-normal number more
    seed: Seed = 0

    @property
    def own_clients(self) -> bool:
        """True: every client has a generating model of its own."""
        return True


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

    content: ClassVar[Content] = "feature vectors"

    name: Literal["adult"]
    root: str = "data/raw"  # folder that holds adult/adult.data, as it is or with .gz
    test_file: bool = False  # also read adult/adult.test; its rows come after those of adult.data


class SvhnData(Source):
    """SVHN, cropped digits: 73,257 train + 26,032 test 32x32 colour images, 10 classes."""

    name: Literal["svhn"]
    root: str = "data/raw"  # folder that holds svhn/{train,test}_32x32.mat; filled by a download if it does not
    download: bool = True
    normalise: Normalise = "half"


class EmnistData(Source):
    """EMNIST: MNIST's digits and letters beside them, 28x28 grey images, in the official six selections."""

    name: Literal["emnist"]
    # 47, 26, 10, 62, 47 and 10 classes; upper and lower case are one class in `letters`, and where they look alike in
    # `balanced` and `bymerge`.
    split: Literal["balanced", "letters", "digits", "byclass", "bymerge", "mnist"] = "balanced"
    # Folder that holds EMNIST/raw/ with the four idx files of the split, as they are or with .gz, or the official
    # gzip.zip; filled by a download of the last if it holds neither.
    root: str = "data/raw"
    download: bool = True


class ImagenetData(Source):
    """Some classes of ImageNet, resized to square images, from folders of JPEG files; never downloaded."""

    name: Literal["imagenet"]
    root: str = "data/raw"
    folder: str = "imagenet/train"  # folder under root with <wnid>/*.JPEG
    test_folder: str | None = None  # such as imagenet/val: the same folders; its rows come after the train rows
    # How many, first by name; or the names of their folders, in the order of the labels.
    classes: Count | Annotated[list[str], Field(min_length=1)] = 12
    size: Count = 64  # pixels; every image becomes size x size
    normalise: Normalise = "half"


class FemnistData(Source):
    """FEMNIST as LEAF writes it: 28x28 grey handwriting, 62 classes; clients are the writers; never downloaded."""

    name: Literal["femnist"]
    root: str = "data/raw"  # folder that holds femnist/train/*.json and, if there is a test part, femnist/test/*.json

    @property
    def own_clients(self) -> bool:
        """True: the writers."""
        return True


class HarData(Source):
    """UCI HAR, raw signals: what does a person do? 9 channels x 128 samples, 6 classes; clients are the 30 subjects."""

    content: ClassVar[Content] = "signals"

    name: Literal["har"]
    root: str = "data/raw"  # folder that holds har/{train,test}.parquet; never downloaded

    @property
    def own_clients(self) -> bool:
        """True: the subjects."""
        return True


class AgNewsData(Source):
    """AG News as token ids: 120,000 train + 7,600 test texts, 4 classes; never downloaded."""

    content: ClassVar[Content] = "token ids"

    name: Literal["ag_news"]
    # Folder that holds agnews/{train,test}_tokens.parquet, or the official texts, agnews/{train,test}.csv or .csv.gz.
    root: str = "data/raw"
    max_length: Count = 200  # tokens of a text: longer ones are cut, shorter ones filled with id 0


class ImageFolderData(Source):
    """Your own images: one folder per class, ``<root>/<class>/<image>``."""

    name: Literal["image_folder"]
    root: str
    clients: bool = False  # a folder per client around those of the classes: ``<root>/<client>/<class>/<image>``
    size: Count | None = None  # pixels; images are resized to size x size; without it all must have one size
    channels: Literal[1, 3] = 3  # 1 makes them grey

    @property
    def own_clients(self) -> bool:
        """Whether the folders are those of clients."""
        return self.clients


class _OwnColumns(Source):
    label: str = "label"  # column: whole numbers or strings
    client: str | None = None  # column: who holds the row, whole numbers or strings
    protected: list[str] = []  # columns: 0 and 1, or any two values

    @property
    def own_clients(self) -> bool:
        """Whether a column names the clients."""
        return self.client is not None

    def _inputs(self) -> list[tuple[str, str]]:
        """Return key and column of the inputs."""
        return []

    @model_validator(mode="after")
    def _roles_differ(self) -> Self:
        roles = [("label", self.label), *([] if self.client is None else [("client", self.client)])]
        roles += [(f"protected.{number}", name) for number, name in enumerate(self.protected)]
        taken: dict[str, str] = {}
        for key, name in [*roles, *self._inputs()]:
            if name in taken:
                raise ValueError(f"{key}: column '{name}' is already {taken[name]}; a column has one role")
            taken[name] = key
        return self


class ParquetData(_OwnColumns):
    """Your own images: parquet files with a column of encoded images and a column of labels."""

    name: Literal["parquet"]
    files: Annotated[list[str], Field(min_length=1)]  # train rows, in this order
    test_files: list[str] = []  # official test rows, if there are any
    image: str = "image"  # column: encoded images (binary), or a struct with a field `bytes`
    size: Count | None = None  # as in `image_folder`
    channels: Literal[1, 3] = 3

    def _inputs(self) -> list[tuple[str, str]]:
        return [("image", self.image)]


class _OwnFiles(Source):
    content: ClassVar[Content] = "feature vectors"

    files: Annotated[list[str], Field(min_length=1)]  # train rows, in this order
    test_files: list[str] = []  # official test rows, if there are any
    standardise: bool = True  # features to mean 0 and deviation 1 over the rows of `files`; false: as they are


class _OwnTable(_OwnFiles, _OwnColumns):
    features: Annotated[list[str], Field(min_length=1)] | None = None  # columns; null: all others that are numeric

    def _inputs(self) -> list[tuple[str, str]]:
        return [(f"features.{number}", name) for number, name in enumerate(self.features or [])]


class CsvData(_OwnTable):
    """Your own feature vectors: CSV files, as they are or with .gz, whose first line names the columns."""

    name: Literal["csv"]
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","


class TableData(_OwnTable):
    """Your own feature vectors: parquet files with a column per feature."""

    name: Literal["table"]


class NpzData(_OwnFiles):
    """Your own arrays: ``.npz`` files with ``inputs`` and ``labels``, optionally ``clients`` and ``protected``."""

    name: Literal["npz"]
    images: bool = False  # inputs are images [n, C, H, W] uint8, scaled to -1..1; otherwise feature vectors [n, F]
    protected: list[str] = []  # names of the columns of the array `protected`; without them protected_0, ...

    @property
    def kind(self) -> Content:
        """Images or feature vectors, as ``images`` says."""
        return "images" if self.images else "feature vectors"

    @property
    def own_clients(self) -> None:
        """None: only the files tell."""
        return None


Dataset = Annotated[
    DigitsData
    | MnistData
    | SyntheticData
    | Cifar10Data
    | Cifar100Data
    | TinyImagenetData
    | AdultData
    | SvhnData
    | EmnistData
    | ImagenetData
    | FemnistData
    | HarData
    | AgNewsData
    | ImageFolderData
    | ParquetData
    | CsvData
    | TableData
    | NpzData,
    Field(discriminator="name"),
]
