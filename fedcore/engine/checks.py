"""What can be known to be impossible before anything trains."""

from __future__ import annotations

import numpy as np

from fedcore.compose import Composition
from fedcore.config import Train
from fedcore.data.federation import Federation
from fedcore.engine import augment, precision
from fedcore.engine.executors import resolve_device
from fedcore.models.net import Net


def check_training(
    label: str,
    composition: Composition,
    net: Net,
    train: Train,
    federation: Federation,
    available: frozenset[str] = frozenset(),
) -> None:
    """Refuse a training that cannot work on this federation.

    Parameters
    ----------
    available : frozenset of str
        Names of the resources there are.

    Raises
    ------
    ValueError
        One line naming the method's label, the parameter at fault and what would be valid.
    """
    sizes = federation.num_examples[: federation.num_clients]
    smallest = int(np.argmin(sizes))
    if sizes[smallest] == 0:
        raise ValueError(f"partition: client {smallest} has no training example; raise partition.min_examples")
    if train.last_batch == "drop" and sizes[smallest] < train.batch_size:
        raise ValueError(
            f"methods.{label}: train.last_batch 'drop' leaves client {smallest} without a batch ({sizes[smallest]}"
            f" examples, train.batch_size {train.batch_size}); use last_batch keep or wrap, or a smaller batch_size"
        )
    if train.newcomer_rounds and not federation.num_unseen:
        raise ValueError(
            f"methods.{label}: train.newcomer_rounds {train.newcomer_rounds} needs clients that never trained before;"
            " set partition.unseen_clients"
        )
    missing = np.flatnonzero(federation.class_counts[: federation.num_clients].sum(0) == 0)
    if len(missing):
        names = ", ".join(f"'{federation.dataset.class_names[c]}'" for c in missing)
        raise ValueError(
            f"partition: no client has a training example of class {names}; a model cannot learn it."
            " Use another partition.seed, more examples, or a data set without that class"
        )
    if net.has_batch_norm and train.last_batch == "keep":
        raise ValueError(
            f"methods.{label}: train.last_batch 'keep' makes short batches, and batch normalisation needs full ones;"
            " use wrap or drop, or model.norm: group"
        )
    data = federation.dataset
    attributes, known = len(data.protected_names), ", ".join(data.protected_names)
    for name, addon in composition.addons.items():
        wanted = getattr(addon, "attributes", None)
        if wanted is not None and attributes and wanted != attributes:
            raise ValueError(
                f"methods.{label}: add.{name}.attributes is {wanted}, data set '{data.name}' has {attributes} protected"
                f" attributes ({known}); set {attributes}"
            )
    if composition.measures_protected and not attributes:
        raise ValueError(
            f"methods.{label}: data set '{data.name}' has no protected attributes for add.adversary;"
            " use adult, or a data set of your own that names them"
        )
    for name in sorted(composition.needs - available):
        raise ValueError(f"methods.{label}: needs the section '{name}', which is missing or null in the parameters")
    wrong = augment.problem(train.augment, data.input_shape)
    if wrong is not None:
        raise ValueError(f"methods.{label}: train.augment: {wrong}")
    wrong = precision.problem(train, resolve_device(train.device))
    if wrong is not None:
        raise ValueError(f"methods.{label}: {wrong}")
    try:
        composition.check(net, train)
    except ValueError as error:
        raise ValueError(f"methods.{label}: {error}") from None
