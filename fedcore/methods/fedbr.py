"""FedBR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from fedcore.methods.base import Fit, Local, Method, named
from fedcore.methods.parts import soft_cross_entropy, soft_labels
from fedcore.models import perceptron
from fedcore.models.net import Net
from fedcore.types import Batch, ClientInfo, Params, State, View

_PREFIX = "disc."


@dataclass(frozen=True)
class Fedbr(Method):
    """FedBR: pseudo-data that looks like nobody's keep local features and classifiers unbiased.

    Pairs:       row b of the batch (x, y) with a row (x_p, y_p) of the pseudo-data; z, z_p their features under the
                 local body, z_g those of x_p under the received one (constant)
    Contrast:    L_con = mean_b softplus(cos(P z_p, P z) / tau2 - cos(P z_p, P z_g) / tau1),  P: d -> d -> d, ReLU
    Max step:    P <- P + lr * grad_P L_con, features held constant
    Min step:    body, head <- - lr * grad of CE(x, y) + pseudo_strength * CE(x_p, y_p) + mu * L_con,
                 with the new P held constant
    Server:      uniform mean of body, head and P

    Parameters
    ----------
    pseudo_strength : float, >= 0, default 1.0
        Component 1: pseudo-data's soft labels keep the classifier unbiased.
    mu : float, >= 0, default 0.5
        Component 2: the contrast keeps features close to the received ones. Both 0: FedAvg, bit for bit.
    tau1, tau2 : float, > 0, default 0.5
        Temperatures towards the received model's features and away from the batch's.
    max_step : bool, default True
        False leaves P as it was drawn.
    projection : bool, default True
        False takes the cosines of the features themselves; there is no max step then.
    projection_layers : {2, 3}
        Layers of P: d -> d -> d, of the size in the paper's Table 7, or d -> 2d -> 2d -> d of the released code.
    mixture : int, >= 0, default 0
        K: at every step a pseudo row is mixed with K rows of the batch, drawn uniformly: the mean of the K + 1 inputs,
        and of their labels, the pseudo row's uniform. Goes with pseudo data of ``generator: mixture``; the paper has 1.
    global_features : {"fresh", "stale"}
        z_g of this step's x_p, or of x_p as it was mixed at the round's first step (the released code). The same, bit
        for bit, with mixture 0.

    State
    -----
    client  first [P, ...]  sums of the rows that the round's first step mixed into each pseudo row, begun []  whether
                            there was one; scratch of a round (``stale`` with `mixture`)
            buffers         the received model's running statistics, scratch of a round (batch normalisation)
    every client holds resource ``pseudo``: x [S, P, ...] model inputs, y [S, P, Y] soft labels, S sets of
    which round r uses set r modulo S

    Costs       the pseudo-data down once per client; 2 d (d + 1) scalars each way per round; per step about twice
                FedAvg's computation and one forward pass.
    Differs     from the paper: temperatures divide the cosine as in its eq. 5, with the default 1/2 that its code
                makes of the printed 2; Algorithm 1's line for the head is read with the whole loss. Pseudo rows are
                a window at a random offset, wrapped round, so a short batch uses each at most once. The max step is
                plain gradient ascent whatever momentum and weight decay are set, and is skipped with mu = 0. The
                received model's features are taken in evaluation mode, with the running statistics it came with. The
                paper trains FedBR without momentum, its baselines with 0.9. Preset ``paper`` is its CIFAR setting.
    Source      Guo et al., ICML 2023, eq. 2-5, Algorithm 1. https://arxiv.org/abs/2205.13462
    """

    pseudo_strength: Annotated[float, Field(ge=0)] = 1.0
    mu: Annotated[float, Field(ge=0)] = 0.5
    tau1: Annotated[float, Field(gt=0)] = 0.5
    tau2: Annotated[float, Field(gt=0)] = 0.5
    max_step: bool = True
    projection: bool = True
    projection_layers: Literal[2, 3] = 2
    mixture: Annotated[int, Field(ge=0)] = 0
    global_features: Literal["fresh", "stale"] = "fresh"
    weighting: ClassVar[str | None] = "uniform"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {
            "global_features": "stale",
            "train": {"batch_size": 32, "lr": 0.01, "momentum": 0.0, "sampling": "replacement", "local_steps": 50},
        },
    }

    @property
    def needs(self) -> tuple[str, ...]:
        """Use pseudo data."""
        return ("pseudo",)

    @property
    def compares_features(self) -> bool:
        """Compare with the received model's."""
        return self.mu > 0

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Bring P, drawn as `torch.nn.Linear` draws."""
        if not self.projection:
            return {}
        d = net.feature_dim
        widths = {2: [d, d, d], 3: [d, 2 * d, 2 * d, d]}[self.projection_layers]
        return perceptron.draw(net, _PREFIX, widths, generator)

    def is_trained(self, net: Net, name: str, phase: str) -> bool:
        """Leave P to the max step."""
        return not name.startswith(_PREFIX)

    def draws(
        self, net: Net, generator: np.random.Generator, steps: int, batch_size: int, info: ClientInfo
    ) -> dict[str, Any]:
        """Draw offsets into the pseudo-data, which `loss` takes modulo its size, and rows of the batch alike."""
        drawn = {"fedbr.offset": generator.integers(0, 2**62, steps)}
        if self.mixture:
            drawn["fedbr.partners"] = generator.integers(0, 2**62, (steps, self.mixture, batch_size))
        return drawn

    def start(self, net: Net, params: Params, state: State, view: View) -> tuple[Params, State]:
        """Note the received model's running statistics; have mixed nothing in this round."""
        noted: State = {"buffers": {n: b.clone() for n, b in net.buffers.items()}}
        if self.mixture and self.global_features == "stale":
            x = view.resources["pseudo"]["x"][0]
            noted.update({"first": torch.zeros_like(x), "begun": x.new_zeros(())})
        return params, noted

    def loss(self, fit: Fit, net: Net, params: Params, state: State, batch: Batch, view: View) -> tuple[Tensor, State]:
        """Take the max step, and return the min step's loss with the new P."""
        projection = {n: p.detach() for n, p in named(params, _PREFIX).items()}
        if not self.pseudo_strength and not self.mu:
            return fit(params, batch), {**state, "projection": projection}
        pseudo = view.resources["pseudo"]
        offset = batch.draws["fedbr.offset"]
        sets, size = pseudo["y"].shape[:2]
        inputs, targets = pseudo["x"].flatten(0, 1), pseudo["y"].flatten(0, 1)
        rows = (offset + torch.arange(len(batch.y), device=offset.device)) % size
        chosen = rows + view.round % sets * size
        x, y = inputs[chosen], targets[chosen]
        seen = x  # by the received model
        if self.mixture:
            sums, shares = self._partners(fit.mix(batch), y)
            first = sums
            if self.global_features == "stale":
                state = _with_first(state, sums, torch.arange(size, device=offset.device) - offset, batch)
                first = state["first"][rows]
            parts = self.mixture + 1
            x, y, seen = (x + sums) / parts, (y + shares) / parts, (x + first) / parts
        total, natural, generated = fit.joined(params, batch, x)
        if self.pseudo_strength:
            total = total + self.pseudo_strength * batch.mean(soft_cross_entropy(generated.logits, y))
        if self.mu:
            received = net.bind(state["buffers"], training=False).features(view.anchor, seen).detach()
            if self.max_step and self.projection:
                pseudo_features, own_features = generated.features.detach(), natural.features.detach()
                slopes = fit.slopes(
                    lambda p: self._contrast(p, pseudo_features, own_features, received, batch), projection
                )
                projection = {n: p + view.lr * slopes[n] for n, p in projection.items()}
            total = total + self.mu * self._contrast(projection, generated.features, natural.features, received, batch)
        return total, {**state, "projection": projection}

    def step(
        self, local: Local, net: Net, params: Params, state: State, batch: Batch, view: View
    ) -> tuple[Params, State]:
        """Descend along the min step's gradient; take over the P it was computed with."""
        gradient, after = local.gradient(params, state, batch)
        new = local.descend(params, gradient)
        projection = {_PREFIX + n: p for n, p in after["projection"].items()}
        return {**new, **projection}, {name: after[name] for name in state}

    def finish(self, shared: Params, params: Params, state: State, view: View) -> tuple[State, State]:
        """Keep nothing."""
        return super().finish(shared, params, {}, view)

    def _partners(self, batch: Batch, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of the batch's rows that go with each pseudo row [B, ...], and of their labels [B, Y]."""
        # Examples come before padding in a batch.
        partners = batch.draws["fedbr.partners"][:, : len(like)] % batch.mask.sum().long()
        return batch.x[partners].sum(0), soft_labels(batch, like)[partners].sum(0)

    def _contrast(self, projection: Params, pseudo: Tensor, natural: Tensor, received: Tensor, batch: Batch) -> Tensor:
        anchor = perceptron.forward(projection, pseudo)
        near = cosine_similarity(anchor, perceptron.forward(projection, received), dim=-1)
        far = cosine_similarity(anchor, perceptron.forward(projection, natural), dim=-1)
        return batch.mean(softplus(far / self.tau2 - near / self.tau1))


def _with_first(state: State, sums: Tensor, places: Tensor, batch: Batch) -> State:
    """Return the state with the sums of the round's first step, by pseudo row; `places` [P] are the rows' in the batch.

    A row the first batch was too short for has the sum of an earlier place.
    """
    found = sums[places % len(places) % batch.mask.sum().long()]
    first = torch.where(state["begun"] > 0, state["first"], found)
    return {**state, "first": first, "begun": torch.ones_like(state["begun"])}
