"""Trained models as open files, and back: safetensors in, logits out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fedcore import models
from fedcore.compose import Composition, build
from fedcore.config import MethodBlock
from fedcore.config import Model as ModelConfig
from fedcore.engine.local import Examples
from fedcore.engine.personal_file import PersonalFile
from fedcore.engine.rounds import Training
from fedcore.methods.base import Method
from fedcore.models.net import Net
from fedcore.trees import stack
from fedcore.types import Params

_FORMAT = {"format": "fedcore-1"}


def model_bytes(training: Training) -> bytes:
    """Return the server's model of the round its validation accuracy chose, as safetensors.

    Personal leaves are there with their initial values, or the server's last where they travelled before. A method
    without a global view gives the server's part of the round its personal validation accuracy chose.
    """
    view = "global" if training.composition.method.has_global else "personal"
    chosen = training.progress.selected[view]
    initial, server = chosen.store.initial, chosen.server
    return _save({**initial["params"], **initial["buffers"], **server.params, **server.buffers})


def personal_bytes(training: Training) -> bytes:
    """Return the clients' own models of the round their validation accuracy chose, as safetensors.

    ``clients`` [m] are the clients that have one: all that train, and newcomers by then; ``own/<name>`` [m, ...] are
    the leaves that differ between clients, ``shared/<name>`` those that do not. Without own models there is nothing
    but an empty ``clients``.
    """
    server = training.progress.selected["personal"].server
    method = training.composition.method
    differs = bool(method.adapt_phases(training.train)) or type(method).personal is not Method.personal
    clients, rows = [], []
    for outcome in training.chosen_models():
        every = {**outcome.params, **outcome.buffers}
        clients.append(outcome.client)
        rows.append({n: p for n, p in every.items() if differs or (n not in server.params and n not in server.buffers)})
    leaves = {"clients": torch.tensor(clients, dtype=torch.int64)}
    if clients:
        leaves.update({f"own/{n}": p for n, p in stack(rows).items()})
        shared = {**server.params, **server.buffers}
        leaves.update({f"shared/{n}": p for n, p in shared.items() if n not in rows[0]})
    return _save(leaves)


class Classifier(nn.Module):
    """One model with fixed weights: raw inputs [n, *input_shape] -> logits [n, Y].

    A module so that it can be traced into other formats; normalisation and what add-ons change are part of it.
    """

    def __init__(self, composition: Composition, net: Net, leaves: Params, examples: Examples, num_classes: int):
        super().__init__()
        self._composition, self._net, self._examples = composition, net, examples
        self._num_classes = num_classes
        # Torch allows no dots in the names of a module's tensors.
        self._names = {name.replace(".", "__"): name for name in leaves}
        for plain, name in self._names.items():
            self.register_buffer(plain, leaves[name])

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of raw inputs."""
        leaves = {name: getattr(self, plain) for plain, name in self._names.items()}
        buffers = {n: leaves.pop(n) for n in self._net.initial_buffers}
        x = self._examples.normalise(inputs)
        output = self._composition.forward(self._net.bind(buffers, training=False), leaves, x)
        # Outputs beyond the task's classes serve training only.
        return output.logits[:, : self._num_classes]


class Predictor:
    """The models of one run: the server's, and each client's own, which is read when it is asked for.

    Attributes
    ----------
    input_shape : tuple of int
        Shape of one example, in raw units (pixels as stored, features as given).
    class_names : tuple of str
    num_tokens : int or None
        Size of the vocabulary where inputs are token ids.
    clients : frozenset of int
        Clients that have a model of their own.
    """

    def __init__(self, config: Mapping[str, Any], model: Params, personal: PersonalFile):
        facts = config["input"]
        self.input_shape = tuple(facts["shape"])
        self.class_names = tuple(facts["class_names"])
        self.num_classes = len(self.class_names)
        block = MethodBlock(method=config["method"], add=config["add"], **config["settings"])
        self._composition: Composition = build(config["label"], block)
        model_config: Any = TypeAdapter(ModelConfig).validate_python(config["model"])
        self._net: Net = models.build(
            model_config, self.input_shape, self._composition.num_outputs(self.num_classes), 0
        )
        self._model = model
        self._personal = personal
        self.clients = personal.clients
        self.num_tokens: int | None = facts.get("num_tokens")
        nothing = np.empty((0, *self.input_shape), np.float32 if self.num_tokens is None else np.int32)
        self._examples = Examples(nothing, np.empty(0, np.int64), facts["offset"], facts["scale"], torch.device("cpu"))

    @torch.no_grad()
    def logits(self, inputs: NDArray[Any], client: int | None = None) -> NDArray[np.float32]:
        """Return logits [n, Y] of raw inputs [n, *input_shape].

        Parameters
        ----------
        client : int or None
            Whose model; None and clients without one get the server's.

        Raises
        ------
        ValueError
            If the inputs have another shape, or are not token ids where the model takes them.
        """
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise ValueError(f"inputs have shape {tuple(inputs.shape[1:])} per example, expected {self.input_shape}")
        if self.num_tokens is not None:
            # A table of features holds ids as floats; what is no whole number would be cut off without a word.
            wrong = (inputs != np.floor(inputs)) | (inputs < 0) | (inputs >= self.num_tokens)
            if wrong.any():
                raise ValueError(f"inputs must be token ids 0..{self.num_tokens - 1}, got {inputs[wrong][0]}")
        logits: NDArray[np.float32] = self.classifier(client)(torch.from_numpy(np.ascontiguousarray(inputs))).numpy()
        return logits

    def classifier(self, client: int | None = None) -> Classifier:
        """Return a client's model, or the server's, as a function of raw inputs; see `logits`."""
        known = client is not None and client in self.clients
        leaves = self._personal.leaves(client) if known and client is not None else dict(self._model)
        return Classifier(self._composition, self._net, leaves, self._examples, self.num_classes)

    def raw(self, x: Tensor) -> Tensor:
        """Return the raw inputs that normalisation makes `x` of."""
        return self._examples.raw(x)


def load_predictor(folder: Path) -> Predictor:
    """Read the models of a run folder.

    Raises
    ------
    ValueError
        If a file is missing or not readable.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        if not isinstance(config, dict):
            raise ValueError(f"config.json: expected an object, got {type(config).__name__}")
        personal = PersonalFile(folder / "personal.safetensors")
        return Predictor(config, load_file(folder / "model.safetensors"), personal)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ValueError(f"{folder}: not a complete run folder ({' '.join(str(error).split())})") from None


def _save(leaves: Mapping[str, Tensor]) -> bytes:
    return save({n: leaf.detach().cpu().contiguous() for n, leaf in leaves.items()}, _FORMAT)
