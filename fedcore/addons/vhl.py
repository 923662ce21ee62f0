"""VHL: virtual homogeneity learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedcore.addons.base import Addon
from fedcore.addons.parts import supcon, trained_on
from fedcore.config import Train
from fedcore.models.moved_images import moved
from fedcore.models.net import Net
from fedcore.types import Batch, ClientInfo, Output, Params, Population, State, View, cross_entropy


@dataclass(frozen=True)
class Vhl(Addon):
    """VHL: every client also learns the same virtual data, and pulls natural features to the virtual ones.

    Head:      C + V outputs; virtual class v is output C + v, and the features of natural class l(v) go with it.
    Step:      natural rows (x, y) and virtual rows (x~, y~) in one forward pass; h their features
    Loss:      CE(x, y) + alpha * CE(x~, C + y~) + contrast * SC([h; sg(h~)], [y; l(y~)])
               + contrast_virtual * SC(h~, y~)
               SC: supervised contrastive loss, sg: stop-gradient; the softmax of CE is over all C + V outputs

    Parameters
    ----------
    alpha, contrast, contrast_virtual : float, >= 0, default 1.0, 1.0, 0.1
        Weights of virtual cross-entropy, calibration, and contrast among virtual rows.
    temperature : float, > 0, default 0.07
    virtual_batch : int or None, >= 0
        Virtual rows per step; None: as many as natural ones. With 0 only the head and natural contrast are left.
    layer : str or None
        Whose output, flattened, h is; None: the whole body's.
    variant : {"full", "naive", "vfa", "vftl"}
        "naive": the two cross-entropies alone. "vfa" (virtual feature alignment): no virtual rows and C outputs; all
        share one random feature per class, a_c ~ U[0, 1], and each step adds SC([h; e], [y; c]) over floor(B / C) + 1
        draws e ~ N(a_c, anchor_std^2) of every class. "vftl" (transfer learning): C outputs; the server trains the
        initial model on the virtual data, puts the head's initial values back, and the method runs as it is.
    labels : list of int, one for each virtual class, or None
        l(v), 0 to C - 1; as many as the virtual data has classes, which is V. None: l(v) = v and V = C.
    crop : int, >= 0, default 0
        Pixels of black border that virtual images are cropped back from, anew at every step; 0: no crop.
    flip : bool, default False
        Whether virtual images are flipped left and right, with probability 1/2.
    std : float, > 0, default 0.5
        Virtual pixels of 0 to 1 reach the model as (pixel - 0.5) / std.
    anchor_std : float, >= 0, default 0.05
        Of "vfa".
    pretrain_steps, pretrain_batch, pretrain_lr : default 500, 64, 0.01
        Of "vftl": plain SGD on the cross-entropy, rows drawn with replacement.

    State
    -----
    server  anchors [C, D]  a_c, "vfa" alone. For the others every client holds the resource ``virtual``:
                            x [M, ...] model inputs, y [M] int64 in 0..V-1

    Costs       the virtual data down once per client, counted as float32 (four times the stored bytes of images); V
                rows of the head each way per round; per step a forward and backward pass over the virtual rows.
                "vfa": C D scalars down per round; "vftl": nothing per round.
    Differs     from the released code: virtual rows are drawn with replacement, step by step, instead of by epochs of
                their own; the calibration acts in every local epoch (there in the first five
                of a round, which is the same for up to five). Only the code has a term with `contrast_virtual`, not
                eq. 4. In evaluation a virtual class as prediction is an error, as there; ``accuracy_natural`` (over
                the natural outputs) and ``accuracy_shifted`` (a virtual output counts as its class) come beside it.
                "vftl" hands over parameters alone: with batch normalisation the running statistics start at their
                initial values, which passes in evaluation mode use until training has moved them.
    Source      Tang et al., ICML 2022, eq. 4 and Algorithm 1. https://arxiv.org/abs/2206.02465
    """

    alpha: Annotated[float, Field(ge=0)] = 1.0
    contrast: Annotated[float, Field(ge=0)] = 1.0
    contrast_virtual: Annotated[float, Field(ge=0)] = 0.1
    temperature: Annotated[float, Field(gt=0)] = 0.07
    virtual_batch: Annotated[int, Field(ge=0)] | None = None
    layer: str | None = None
    variant: Literal["full", "naive", "vfa", "vftl"] = "full"
    labels: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, min_length=1)] | None = None
    crop: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    std: Annotated[float, Field(gt=0)] = 0.5
    anchor_std: Annotated[float, Field(ge=0)] = 0.05
    pretrain_steps: Annotated[int, Field(ge=0)] = 500
    pretrain_batch: Annotated[int, Field(ge=1)] = 64
    pretrain_lr: Annotated[float, Field(gt=0)] = 0.01
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {
            "crop": 4,
            "flip": True,
            "std": 0.25,
            "train": {
                "batch_size": 128,
                "lr": 0.01,
                "momentum": 0.9,
                "weight_decay": 1e-4,
                "lr_decay": 0.992,
                "lr_decay_by": "participation",
                "momentum_state": "kept",
            },
        },
    }

    @property
    def needs(self) -> tuple[str, ...]:
        """Use virtual data, except for the alignment with random features."""
        return () if self.variant == "vfa" else ("virtual",)

    @property
    def place(self) -> str | None:
        """Look at h."""
        return self.layer

    @property
    def _joins(self) -> bool:
        return self.variant in ("full", "naive")

    def num_outputs(self, num_classes: int) -> int:
        """Add the virtual classes."""
        return self._num_virtual(num_classes) if self._joins else 0

    def _num_virtual(self, num_classes: int) -> int:
        return num_classes if self.labels is None else len(self.labels)

    def check(self, net: Net, train: Train) -> None:
        """Refuse a layer the model does not have, labels the data set does not have, and crops of no image."""
        net.check_layer(self.layer)
        num_classes = net.num_classes - (len(self.labels) if self.labels and self._joins else 0)
        for virtual, label in enumerate(self.labels or ()):
            if label >= num_classes:
                raise ValueError(
                    f"add.vhl.labels: virtual class {virtual} goes with label {label}, which does not exist;"
                    f" valid: 0 to {num_classes - 1}"
                )
        shape = net.input_shape
        if self.crop and (len(shape) != 3 or self.crop >= min(shape[1:])):
            most = min(shape[1:]) - 1 if len(shape) == 3 else 0
            raise ValueError(f"add.vhl.crop: {self.crop} leaves nothing of inputs of shape {shape}; use at most {most}")

    def check_resources(self, resources: State, num_classes: int) -> None:
        """Refuse virtual classes that do not map to labels."""
        if not self.needs:
            return
        found, wanted = int(resources["virtual"]["y"].max()) + 1, self._num_virtual(num_classes)
        if found != wanted:
            said = "there are" if self.labels is None else "the list has"
            raise ValueError(
                f"add.vhl.labels: the virtual data has {found} classes, {said} {wanted} labels; give each virtual class"
                f" a label, 0 to {num_classes - 1}, or make {wanted} classes (virtual.classes)"
            )

    def prepare(self, net: Net, params: Params, resources: State, generator: np.random.Generator) -> Params:
        """Train the body on the virtual data ("vftl")."""
        if self.variant != "vftl":
            return params
        inputs, labels = self._seen(resources["virtual"]["x"]), self._label(resources["virtual"]["y"])
        draws = generator.integers(0, len(labels), (self.pretrain_steps, self.pretrain_batch))
        own = {n: params[n] for n in net.initial_params}
        trained = trained_on(net, own, inputs, labels, draws, self.pretrain_lr)
        return {**params, **{n: p for n, p in trained.items() if not n.startswith("head.")}}

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Draw a_c ("vfa")."""
        if self.variant != "vfa":
            return {}
        shape = (len(population.class_counts), prod(net.layer_shape(self.layer)))
        return {"anchors": population.class_counts.new_tensor(population.generator.random(shape))}

    def broadcast(self, server: State) -> State:
        """Send a_c."""
        return server

    def draws(
        self, net: Net, generator: np.random.Generator, steps: int, batch_size: int, info: ClientInfo
    ) -> dict[str, Any]:
        """Draw row numbers, which the hooks take modulo the number of virtual rows; or noise around every a_c."""
        if self.variant == "vftl":
            return {}
        if self.variant == "vfa":
            classes, width = len(info.class_counts), prod(net.layer_shape(self.layer))
            return {"vhl.noise": generator.standard_normal((steps, batch_size // classes + 1, classes, width))}
        size = batch_size if self.virtual_batch is None else self.virtual_batch
        drawn = {"vhl.rows": generator.integers(0, 2**62, (steps, size))}
        if self.crop:
            drawn["vhl.crop"] = generator.integers(-self.crop, self.crop + 1, (steps, size, 2))
        if self.flip:
            drawn["vhl.flip"] = generator.integers(0, 2, (steps, size))
        return drawn

    def rows(self, batch: Batch, view: View) -> Tensor | None:
        """Return the virtual inputs of this step."""
        if not self._joins or self.virtual_batch == 0:
            return None
        images: Tensor = view.resources["virtual"]["x"][_index(batch, view)]
        if self.crop or self.flip:
            border = images.new_full((1, 1, 1), -1.0)
            images = moved(images, batch.draws.get("vhl.crop"), batch.draws.get("vhl.flip"), border)
        return self._seen(images)

    def _seen(self, images: Tensor) -> Tensor:
        return images if self.std == 0.5 else images * (0.5 / self.std)

    def _label(self, virtual: Tensor) -> Tensor:
        found = virtual
        for number, label in enumerate(self.labels or ()):  # a table of labels would come from the host in every step
            found = torch.where(virtual == number, label, found)
        return found

    def penalty(
        self, net: Net, params: Params, state: State, batch: Batch, output: Output, rows: Output | None, view: View
    ) -> tuple[Tensor | float, State]:
        """Add the virtual cross-entropy and the contrasts."""
        if self.variant == "vftl":
            return 0.0, state
        own = output.features.flatten(1)
        if self.variant == "vfa":
            anchors = view.server["anchors"]
            drawn = (anchors + self.anchor_std * batch.draws["vhl.noise"]).flatten(0, 1)
            labels = torch.arange(len(drawn), device=drawn.device) % len(anchors)
            return self._calibration(own, batch, drawn, labels), state
        contrasts = self.variant == "full"
        if rows is None:
            return (self._calibration(own, batch, own[:0].detach(), batch.y[:0]) if contrasts else 0.0), state
        virtual, shared = view.resources["virtual"]["y"][_index(batch, view)], rows.features.flatten(1)
        term: Tensor | float = 0.0
        if self.alpha:
            num_classes = view.info.class_counts.shape[-1]
            term = self.alpha * cross_entropy(rows.logits, num_classes + virtual).mean()
        if contrasts and self.contrast_virtual:
            ones = torch.ones_like(virtual, dtype=batch.mask.dtype)
            term = term + self.contrast_virtual * supcon(shared, virtual, ones, self.temperature)
        if contrasts:
            term = term + self._calibration(own, batch, shared.detach(), self._label(virtual))
        return term, state

    def _calibration(self, own: Tensor, batch: Batch, others: Tensor, labels: Tensor) -> Tensor | float:
        if not self.contrast:
            return 0.0
        mask = torch.cat([batch.mask, torch.ones_like(labels, dtype=batch.mask.dtype)])
        joined = supcon(torch.cat([own, others]), torch.cat([batch.y, labels]), mask, self.temperature)
        return self.contrast * joined

    def predictions(self, logits: Tensor, num_classes: int) -> dict[str, Tensor]:
        """Read the natural outputs alone, and virtual outputs as their natural class."""
        if not self._joins:
            return {}
        chosen = logits.argmax(1)
        shifted = torch.where(chosen >= num_classes, self._label((chosen - num_classes).clamp(min=0)), chosen)
        return {"natural": logits[:, :num_classes].argmax(1), "shifted": shifted}


def _index(batch: Batch, view: View) -> Tensor:
    index: Tensor = batch.draws["vhl.rows"] % len(view.resources["virtual"]["y"])
    return index
