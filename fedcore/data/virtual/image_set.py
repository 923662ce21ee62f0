"""A subset of a set of images as virtual data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedcore.config import ConfigError, Problem, nearest
from fedcore.data.dataset import Dataset
from fedcore.data.virtual.pixels import Images, ImageShape, Labels, class_labels, resized, to_pixels
from fedcore.seeds import stream

_LUMA = torch.tensor([0.299, 0.587, 0.114])  # of red, green, blue; ITU-R BT.601


def images(
    source: Dataset,
    image_shape: ImageShape,
    num_classes: int,
    per_class: int,
    seed: int,
    classes: Sequence[str] | None = None,
) -> tuple[Images, Labels]:
    """Return training images of another data set, resized; its classes stand for the labels 0 to num_classes - 1.

    The same class stands for a label however many labels and images there are. Colours become grey, or grey becomes
    colours, where the channels differ. The source's largest pixel becomes 255.

    Parameters
    ----------
    source : Dataset
        Of images.
    image_shape : (C, H, W)
    num_classes, per_class : int, >= 1
    seed : int, >= 0
        Draws the classes and the images, both without replacement.
    classes : num_classes names of the source's classes, or None
        The class that stands for label 0, for label 1, ...; None: drawn.

    Returns
    -------
    images : [num_classes * per_class, C, H, W] uint8
    labels : [num_classes * per_class] int64

    Raises
    ------
    ConfigError
        When the source has no images, too few classes or too few images of a class, or `classes` do not map to labels.

    References
    ----------
    Tang et al., ICML 2022, "Tiny-ImageNet". https://arxiv.org/abs/2206.02465
    """
    if len(source.input_shape) != 3:
        raise _problem("source", f"needs images, '{source.name}' has inputs of shape {source.input_shape}")
    chosen = chosen_classes(source, num_classes, seed, classes)
    labels = source.labels[: source.num_train_rows]
    brightest = max(1, int(source.inputs.max()))
    made = []
    for label, own in enumerate(chosen):
        rows = np.flatnonzero(labels == own)
        if len(rows) < per_class:
            name = source.class_names[own]
            raise _problem(
                "per_class", f"'{source.name}' has {len(rows)} training images of class '{name}', got {per_class}"
            )
        drawn = stream(seed, "virtual/images/examples", label).permutation(rows)[:per_class]
        values = torch.from_numpy(np.asarray(source.inputs[drawn]).astype(np.float32)) / brightest
        made.append(to_pixels(resized(_with_channels(values, image_shape[0]), image_shape)))
    return np.concatenate(made), class_labels(num_classes, per_class)


def chosen_classes(source: Dataset, num_classes: int, seed: int, classes: Sequence[str] | None = None) -> list[int]:
    """Return the source's class that stands for each label; see `images`."""
    names = source.class_names
    if classes is None:
        if len(names) < num_classes:
            raise _problem("source", f"'{source.name}' has {len(names)} classes for {num_classes} labels")
        order = stream(seed, "virtual/images/classes").permutation(len(names))
        return [int(c) for c in order[:num_classes]]
    if len(classes) != num_classes:
        raise _problem(
            "classes", f"{len(classes)} virtual classes do not map to {num_classes} labels; name one for each"
        )
    for name in classes:
        if name not in names:
            raise _problem("classes", f"'{source.name}' has no class '{name}'" + nearest(name, names))
    return [names.index(name) for name in classes]


def _with_channels(values: Tensor, channels: int) -> Tensor:
    if values.shape[1] == channels:
        return values
    if values.shape[1] == len(_LUMA):
        grey = (values * _LUMA[:, None, None]).sum(1, keepdim=True)
    else:
        grey = values.mean(1, keepdim=True)
    return grey.expand(-1, channels, -1, -1)


def _problem(key: str, message: str) -> ConfigError:
    return ConfigError([Problem(("virtual", key), message)])
