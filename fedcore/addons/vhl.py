"""VHL: virtual homogeneity learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedcore.addons.base import Addon
from fedcore.addons.parts import supcon
from fedcore.models.net import Net
from fedcore.types import Batch, ClientInfo, Output, Params, State, View, cross_entropy


@dataclass(frozen=True)
class Vhl(Addon):
    """VHL: every client also learns the same virtual data, and pulls natural features to the virtual ones.

    Head:      C + V outputs, V = C; virtual class v is output C + v, and natural class v's features go with it.
    Step:      natural rows (x, y) and virtual rows (x~, y~) in one forward pass; h their features
    Loss:      CE(x, y) + alpha * CE(x~, C + y~) + contrast * SC([h; sg(h~)], [y; y~]) + contrast_virtual * SC(h~, y~)
               SC: supervised contrastive loss, sg: stop-gradient; the softmax of CE is over all C + V outputs

    Parameters
    ----------
    alpha, contrast, contrast_virtual : float, >= 0, default 1.0, 1.0, 0.1
        Weights of virtual cross-entropy, calibration, and contrast among virtual rows.
    temperature : float, > 0, default 0.07
    virtual_batch : int or None, >= 0
        Virtual rows per step; None: as many as natural ones. With 0 only the head and natural contrast are left.
    variant : {"full", "naive"}
        "naive" is the two cross-entropies alone, whatever `contrast` and `contrast_virtual`.

    State
    -----
    none; every client holds resource ``virtual``: x [M, ...] model inputs, y [M] int64 in 0..V-1

    Costs       the virtual data down once per client; V rows of the head each way per round; per step a forward and
                backward pass over the virtual rows.
    Differs     from the released code: virtual rows are drawn with replacement, step by step, instead of by epochs of
                their own; they are not augmented; the calibration acts in every local epoch (there in the first five
                of a round, which is the same for up to five); features are the body's output (there the default,
                with the blocks before it as options). Only the code has a term with `contrast_virtual`, not eq. 4.
                In evaluation a virtual class as prediction is an error, as there.
    Source      Tang et al., ICML 2022, eq. 4 and Algorithm 1. https://arxiv.org/abs/2206.02465
    """

    alpha: Annotated[float, Field(ge=0)] = 1.0
    contrast: Annotated[float, Field(ge=0)] = 1.0
    contrast_virtual: Annotated[float, Field(ge=0)] = 0.1
    temperature: Annotated[float, Field(gt=0)] = 0.07
    virtual_batch: Annotated[int, Field(ge=0)] | None = None
    variant: Literal["full", "naive"] = "full"

    @property
    def needs(self) -> tuple[str, ...]:
        """Use virtual data."""
        return ("virtual",)

    def num_outputs(self, num_classes: int) -> int:
        """Add the virtual classes."""
        return num_classes

    def draws(
        self, net: Net, generator: np.random.Generator, steps: int, batch_size: int, info: ClientInfo
    ) -> dict[str, Any]:
        """Draw row numbers; the hooks take them modulo the number of virtual rows."""
        size = batch_size if self.virtual_batch is None else self.virtual_batch
        return {"vhl.rows": generator.integers(0, 2**62, (steps, size))}

    def rows(self, batch: Batch, view: View) -> Tensor | None:
        """Return the virtual inputs of this step."""
        if self.virtual_batch == 0:
            return None
        inputs: Tensor = view.resources["virtual"]["x"][_index(batch, view)]
        return inputs

    def penalty(
        self, net: Net, params: Params, state: State, batch: Batch, output: Output, rows: Output | None, view: View
    ) -> tuple[Tensor | float, State]:
        """Add the virtual cross-entropy and the contrasts."""
        contrasts = self.variant == "full"
        term: Tensor | float = 0.0
        features, labels, mask = [output.features], [batch.y], [batch.mask]
        if rows is not None:
            virtual = view.resources["virtual"]["y"][_index(batch, view)]
            ones = torch.ones_like(virtual, dtype=batch.mask.dtype)
            features, labels, mask = [*features, rows.features.detach()], [*labels, virtual], [*mask, ones]
            if self.alpha:
                num_classes = view.info.class_counts.shape[-1]
                term = term + self.alpha * cross_entropy(rows.logits, num_classes + virtual).mean()
            if contrasts and self.contrast_virtual:
                term = term + self.contrast_virtual * supcon(rows.features, virtual, ones, self.temperature)
        if contrasts and self.contrast:
            joined = supcon(torch.cat(features), torch.cat(labels), torch.cat(mask), self.temperature)
            term = term + self.contrast * joined
        return term, state


def _index(batch: Batch, view: View) -> Tensor:
    index: Tensor = batch.draws["vhl.rows"] % len(view.resources["virtual"]["y"])
    return index
