"""Data sources: the ``dataset`` section of the parameters -> arrays."""

from __future__ import annotations

import http.client
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedcore import config as settings
from fedcore import seeds
from fedcore.config import ConfigError, DigitsData, MnistData, Problem, SyntheticData
from fedcore.data.dataset import Dataset

SYNTHETIC_FEATURES = 60
SYNTHETIC_CLASSES = 10
# A dead network must not hold a pipeline for minutes.
_DOWNLOAD_TIMEOUT_SECONDS = 30.0


def read(config: settings.Dataset) -> Dataset:
    """Return the data set that `config` names.

    Official train rows come first, then the official test rows; a set without an official split counts all its
    rows as train rows. Only ``mnist`` and ``fashion_mnist`` touch the disk or the network.

    Raises
    ------
    ConfigError
        When files are missing and cannot be downloaded.
    ValueError
        When a file is damaged; one line naming it.
    """
    if isinstance(config, DigitsData):
        return _digits()
    if isinstance(config, MnistData):
        return _mnist(config)
    return _synthetic(config)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    inputs = bunch.images.astype(np.uint8)[:, None]  # grey levels 0..16
    labels = bunch.target.astype(np.int64)
    return Dataset("digits", inputs, labels, tuple(map(str, range(10))), (8.0,), (1 / 8,), len(labels))


# --- synthetic -------------------------------------------------------------------------------------------------------


def _synthetic(config: SyntheticData) -> Dataset:
    """Synthetic(alpha, beta) of FedProx: each client labels its own inputs with its own linear model.

    Differs from the original code in one thing: a client's draws depend on its id alone, so more clients leave the
    first ones as they are. The original's 90/10 split is left to the partition.

    As in the original, `alpha` moves all logits of a client by the same amount, so it does not change a label:
    clients differ because each draws its own weights, and in their features by `beta`.
    """
    drawn = [_synthetic_client(config, client) for client in range(config.clients)]
    inputs = np.concatenate([inputs for inputs, _ in drawn])
    labels = np.concatenate([labels for _, labels in drawn])
    clients = np.repeat(np.arange(config.clients, dtype=np.int32), [len(labels) for _, labels in drawn])
    names = tuple(map(str, range(SYNTHETIC_CLASSES)))
    return Dataset("synthetic", inputs, labels, names, (0.0,), (1.0,), len(labels), clients)


def _synthetic_client(config: SyntheticData, client: int) -> tuple[np.ndarray, np.ndarray]:
    random = seeds.stream(config.seed, "data/synthetic", client=client)
    num_examples = int(random.lognormal(4.0, 2.0)) + 50
    model_mean = random.normal(0.0, config.alpha)
    input_mean_mean = random.normal(0.0, config.beta)
    weight = random.normal(model_mean, 1.0, (SYNTHETIC_FEATURES, SYNTHETIC_CLASSES))
    bias = random.normal(model_mean, 1.0, SYNTHETIC_CLASSES)
    input_mean = random.normal(input_mean_mean, 1.0, SYNTHETIC_FEATURES)
    # The covariance is diag(j**-1.2), so the standard deviation is j**-0.6.
    deviation = np.arange(1, SYNTHETIC_FEATURES + 1) ** -0.6
    inputs = (input_mean + deviation * random.standard_normal((num_examples, SYNTHETIC_FEATURES))).astype(np.float32)
    # Labels follow from the stored, rounded inputs, so they can be checked against them exactly.
    labels = (inputs.astype(np.float64) @ weight + bias).argmax(axis=1).astype(np.int64)
    return inputs, labels


# --- MNIST and Fashion-MNIST -----------------------------------------------------------------------------------------


def _mnist(config: MnistData) -> Dataset:
    from torchvision import datasets  # type: ignore[import-untyped]
    from torchvision.datasets.mnist import read_image_file, read_label_file  # type: ignore[import-untyped]

    official = {"mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}[config.name]
    folder = Path(config.root) / official.__name__ / "raw"
    with tempfile.TemporaryDirectory() as scratch:
        # Files are unpacked here, never beside the originals: those may lie in a read-only folder.
        stage = Path(scratch) / official.__name__ / "raw"
        missing = _unpack(official.resources, folder, stage)
        if missing:
            _download(official, config, folder, stage, missing)
        inputs, labels, rows = [], [], []
        for part in ("train", "t10k"):
            pair = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
            images = _parse(read_image_file, stage, folder, pair[0])
            targets = _parse(read_label_file, stage, folder, pair[1])
            if len(images) != len(targets):
                raise ValueError(f"{folder}: {pair[0]} has {len(images)} rows, {pair[1]} has {len(targets)}")
            inputs.append(images[:, None])
            labels.append(targets)
            rows.append(len(images))
    if inputs[0].shape[1:] != inputs[1].shape[1:]:
        raise ValueError(f"{folder}: train images are {inputs[0].shape[2:]}, test images {inputs[1].shape[2:]}")
    names = tuple(map(str, range(10))) if config.name == "mnist" else tuple(official.classes)
    pixels, targets = np.concatenate(inputs), np.concatenate(labels)
    return Dataset(config.name, pixels, targets, names, (127.5,), (1 / 127.5,), rows[0])


def _unpack(resources: list[tuple[str, str]], folder: Path, stage: Path) -> list[str]:
    """Check and unpack what `folder` holds into `stage`; return the names of the official files it lacks."""
    from torchvision.datasets.utils import calculate_md5, extract_archive  # type: ignore[import-untyped]

    stage.mkdir(parents=True)
    missing = []
    for name, expected in resources:
        archive, plain = folder / name, folder / Path(name).stem
        if archive.is_file():
            found = calculate_md5(archive)
            if found != expected:
                size = archive.stat().st_size
                raise ValueError(
                    f"{archive}: damaged or not the official file ({size} bytes, MD5 {found}; official MD5 {expected});"
                    " replace it, or delete it to have it downloaded"
                )
            (stage / name).symlink_to(archive.resolve())
            extract_archive(str(archive), str(stage))
        elif plain.is_file():
            # A copy, not a link: a download of the others unpacks every file into `stage` again.
            shutil.copyfile(plain, stage / plain.name)
        else:
            missing.append(name)
    return missing


def _download(official: Any, config: MnistData, folder: Path, stage: Path, missing: list[str]) -> None:
    """Fetch the official files into `stage`, then put the missing ones into `folder`, each in one step."""
    wanted = f"put {', '.join(missing)} into {folder}, or point dataset.root at a folder with {official.__name__}/raw"
    if not config.download:
        raise ConfigError([Problem(("dataset", "root"), f"files are missing and dataset.download is false; {wanted}")])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        message = f"files are missing and {folder} cannot be written ({error.strerror}); {wanted}"
        raise ConfigError([Problem(("dataset", "root"), message)]) from None
    try:
        with _network_timeout():
            official(str(stage.parents[1]), download=True)
    except (RuntimeError, OSError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        message = f"files are missing and the download failed; {wanted} ({reason})"
        raise ConfigError([Problem(("dataset", "root"), message)]) from None
    for name in missing:
        temporary = folder / f".{name}.part"
        try:
            shutil.copyfile(stage / name, temporary)
            temporary.replace(folder / name)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _network_timeout() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _parse(reader: Callable[[str], Any], stage: Path, folder: Path, name: str) -> np.ndarray:
    try:
        return np.asarray(reader(str(stage / name)).numpy())
    except (AssertionError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{folder / name}: damaged or not an idx file ({reason}); delete it and run again") from None
