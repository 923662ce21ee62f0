"""The ``dataset`` section: one class per source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedcore.config.sections import Count, NonNegative, Section, Seed


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
