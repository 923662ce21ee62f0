"""Small federations with ragged clients, and a short way to train on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from fedcore import models
from fedcore.compose import Composition, build
from fedcore.config import MethodBlock, Train
from fedcore.config import Model as ModelConfig
from fedcore.data.dataset import Dataset
from fedcore.data.federation import Federation
from fedcore.data.partitions import PartitionTable
from fedcore.engine.executors import make_executor
from fedcore.engine.local import Examples
from fedcore.engine.rounds import Progress, Training
from fedcore.models.net import Net
from fedcore.seeds import stream
from fedcore.trees import tree_map

SIZES = (20, 9, 8, 31, 3)  # train examples per client: padded last batches and idle steps in a block
CPU = torch.device("cpu")


def federation(
    sizes: tuple[int, ...] = SIZES, *, image: bool = False, unseen: int = 0, classes: int = 3, seed: int = 0
) -> Federation:
    """Clients of these train sizes, each with 4 validation and 6 test rows; inputs shift with the client."""
    generator = stream(seed, "toy")
    shape = (1, 8, 8) if image else (5,)
    owners, splits = [], []
    for client, size in enumerate(sizes):
        owners += [client] * (size + 10)
        splits += [0] * size + [2] * 4 + [1] * 6
    client, split = np.array(owners), np.array(splits)
    order = generator.permutation(len(client))
    client, split = client[order], split[order]
    labels = generator.integers(0, classes, len(client))
    centers = generator.normal(size=(classes, *shape))
    inputs = (generator.normal(size=(len(client), *shape)) + centers[labels]).astype(np.float32)
    inputs += 0.3 * client.reshape(-1, *[1] * len(shape)).astype(np.float32)
    if image:
        inputs = np.clip(32 * inputs + 128, 0, 255).astype(np.uint8)
    data = Dataset(
        name="toy",
        inputs=inputs,
        labels=labels.astype(np.int64),
        class_names=tuple(f"class {c}" for c in range(classes)),
        offset=(128.0,) if image else (0.0,),
        scale=(1 / 32,) if image else (1.0,),
        num_train_rows=len(client),
    )
    table = PartitionTable(client, split, len(sizes) - unseen, unseen, json.dumps({"scheme": "toy"}))
    return Federation(data, table)


def composition(name: str = "fedavg", add: Mapping[str, Any] | None = None, **settings: Any) -> Composition:
    """A method by name, with add-ons."""
    return build("toy", MethodBlock(method=name, add=dict(add or {}), **settings))


def net(model: Mapping[str, Any] | None = None, *, image: bool = False, classes: int = 3, seed: int = 0) -> Net:
    """A small multilayer perceptron, or what `model` says."""
    config: Any = TypeAdapter(ModelConfig).validate_python(model or {"name": "mlp", "hidden": [16, 6]})
    return models.build(config, (1, 8, 8) if image else (5,), classes, seed)


def shared_data(fed: Federation, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Any]:
    """Virtual data of 4 rows a class, and one set of pseudo data of 11 rows with uniform soft labels."""
    generator, data = stream(seed, "toy/resources"), fed.dataset
    classes, shape = data.num_classes, data.input_shape
    labels = np.repeat(np.arange(classes), 4)
    centers = generator.normal(size=(classes, *shape))
    virtual = centers[labels] + 0.3 * generator.normal(size=(len(labels), *shape))
    pseudo = generator.normal(size=(1, 11, *shape))
    return {
        "virtual": {"x": torch.from_numpy(virtual).to(dtype), "y": torch.from_numpy(labels)},
        "pseudo": {
            "x": torch.from_numpy(pseudo).to(dtype),
            "y": torch.full((1, 11, classes), 1 / classes, dtype=dtype),
        },
    }


def training(
    composed: Composition | None = None,
    fed: Federation | None = None,
    model: Net | None = None,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    resources: dict[str, Any] | None = None,
    protected: np.ndarray | None = None,
    **train: Any,
) -> Training:
    """A training on the toy federation; `train` overrides three rounds of one epoch, batch 8, rate 0.1.

    `resources` are by default those of `shared_data`; `protected` [n, 2] tells which of the first two values of a row
    are above their mean.
    """
    fed = fed or federation()
    section = Train(**{"rounds": 3, "batch_size": 8, "lr": 0.1, "executor": "serial", "device": "cpu", **train})
    composed = composed or composition()
    data = fed.dataset
    if model is None:
        model = net(classes=composed.num_outputs(data.num_classes))
    built = model.to(device, dtype)
    if protected is None:
        values = data.inputs.reshape(len(data.inputs), -1)[:, :2]
        protected = (values > values.mean(0)).astype(np.uint8)
    examples = Examples(data.inputs, data.labels, data.offset, data.scale, device, dtype, protected)
    executor = make_executor(composed, built, section, examples, fed)
    held = tree_map(lambda t: t.to(device), resources or shared_data(fed, dtype))
    return Training(composed, built, fed, section, seed, executor, examples, held)


def run(*args: Any, **kwargs: Any) -> Progress:
    """Train and return what came of it."""
    return training(*args, **kwargs).run()


def distance(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The largest absolute difference of two sets of tensors with the same names."""
    assert one.keys() == other.keys()
    return max((float((one[n] - other[n]).abs().max()) for n in one), default=0.0)


def equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether two sets of tensors are the same bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
