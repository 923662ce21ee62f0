"""FedLC's calibrated logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedcore.addons.base import Addon
from fedcore.models.net import Net
from fedcore.types import Batch, Output, Params, Population, State, View


@dataclass(frozen=True)
class Calibration(Addon):
    """FedLC: calibrate logits before the softmax by how often a client has seen each class.

    Loss:      -u_y + log sum_c exp(u_c)  with  u_c = f_c - tau * n_c^(-1/4)
               n_c: the client's train examples of class c

    Parameters
    ----------
    tau : float, >= 0, default 1.0
        Strength of the margin; 0 is the method without it, also for clients that miss classes.
    margin : {"count", "log_prior"}
        n_c^(-1/4) (eq. 5), or the log-prior calibration of eq. 4: u_c = f_c + tau * log(n_c / n).
    denominator : {"all", "others"}
        Classes the softmax sums over. "others" leaves the true class out, as eq. 5 and 7 print it; that loss has no
        lower bound and its gradient in u_y is -1 for every example.
    missing : {"mask", "floor", "clamp"}
        A class the client has no example of: leaves the softmax (its head row gets no gradient), counts as 1e-8
        examples, or as one.
    counts : {"local", "global"}
        Whose counts: the client's (the paper), or all clients' summed.

    Presets     ``paper``: the loss as it is printed, kept finite for a client of one class by ``missing: floor``, and
                the training section the paper states (5 epochs are ours).
    Costs       none; global counts are sent with every model, one scalar per class.
    Differs     from the paper in the default `denominator`; evaluation uses uncalibrated logits, as there.
    Source      Zhang et al., ICML 2022, eq. 4, 5, 7. https://arxiv.org/abs/2209.00189
    """

    tau: Annotated[float, Field(ge=0)] = 1.0
    margin: Literal["count", "log_prior"] = "count"
    denominator: Literal["all", "others"] = "all"
    missing: Literal["mask", "floor", "clamp"] = "mask"
    counts: Literal["local", "global"] = "local"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {
            "denominator": "others",
            "missing": "floor",
            "train": {"batch_size": 128, "lr": 0.01, "local_epochs": 5},
        },
    }

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Keep everybody's counts where they are asked for."""
        return {"class_counts": population.class_counts} if self.counts == "global" else {}

    def broadcast(self, server: State) -> State:
        """Send them."""
        return server

    def logits(self, logits: Tensor, view: View) -> Tensor:
        """Return u of f."""
        if self.tau == 0:
            return logits
        margins = self._margins(view)
        # Outputs beyond the task's classes (virtual ones) have no counts and no margin.
        return logits - torch.nn.functional.pad(margins, (0, logits.shape[-1] - margins.shape[-1]))

    def penalty(
        self, net: Net, params: Params, state: State, batch: Batch, output: Output, rows: Output | None, view: View
    ) -> tuple[Tensor | float, State]:
        """Add log(1 - softmax(u)_y), which takes the true class out of the denominator."""
        if self.denominator == "all":
            return 0.0, state
        u = output.logits
        true = batch.y[..., None] == torch.arange(u.shape[-1], device=u.device)
        others = torch.logsumexp(u.masked_fill(true, -torch.inf), -1)
        return batch.mean(others - torch.logsumexp(u, -1)), state

    def _margins(self, view: View) -> Tensor:
        counts = view.server["class_counts"] if self.counts == "global" else view.info.class_counts
        floor = {"mask": 0.0, "floor": 1e-8, "clamp": 1.0}[self.missing]
        seen = counts.clamp(min=floor)
        if self.margin == "log_prior":
            return -self.tau * torch.log(seen / counts.sum())
        return self.tau * seen**-0.25
