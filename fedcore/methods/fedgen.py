"""FedGen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import grad

from fedcore.config import Train
from fedcore.methods.base import Fit, Method, named
from fedcore.models import perceptron
from fedcore.models.net import Net
from fedcore.trees import add, stack, subtract, zeros_like
from fedcore.types import Batch, ClientInfo, Cohort, Params, Population, State, View, cross_entropy

_GEN = "gen."


@dataclass(frozen=True)
class FedGen(Method):
    """FedGen: a generator of features, taught by the clients' heads on the server, teaches the clients in turn.

    Loss:      F_i(y) + a_t * E_c E_e CE(h(G(e, c)), c) + b_t * mean_B KL( softmax h(G(e, y)) || softmax f(x) )
               c drawn from all clients' labels, e normal; the KL's first argument is constant
               a_t = alpha * decay^t, b_t = beta * decay^t, both 0 in round 0, when G has learnt nothing
    Server:    as FedAvg; then G takes server_steps steps of Adam (0.9, 0.999) on
               CE(sum_k w_kc h_k(z), c) + diversity * exp(-mean_ij ||e_i - e_j||^2 / dim e * |z_i - z_j|_1 / dim z)
               z = G(e, c), h_k: head of cohort client k, w_kc: its share of the cohort's examples of class c

    Parameters
    ----------
    alpha, beta : float, >= 0, default 10.0
        Both 0 is FedAvg, bit for bit.
    decay : float, 0 to 1, default 0.98
    diversity : float, >= 0, default 1.0
    noise, hidden : int, >= 1, default 32 and 256
        dim e, and the width of G, which has one hidden layer.
    server_steps, server_batch : int, >= 1, default 50 and 32
    server_lr : float, > 0, default 3e-4

    State
    -----
    server  m, v  like G           Adam's moments, from 0, kept between rounds
    server  t []                   Adam's steps
    server  prior [Y]              all clients' label shares, sent with the model

    Presets     no ``paper``: the defaults follow a later implementation, not the paper.
    Costs       FedAvg's traffic, and G and Y scalars down, Y scalars up.
    Differs     from the paper: G has no batch normalisation. Heads must be linear. Samples go through the plain head,
                and the KL term takes a forward pass of its own, without what add-ons change.
    Source      Zhu et al., ICML 2021, eq. 4-6, Algorithm 1. https://arxiv.org/abs/2105.10056
    """

    alpha: Annotated[float, Field(ge=0)] = 10.0
    beta: Annotated[float, Field(ge=0)] = 10.0
    decay: Annotated[float, Field(ge=0, le=1)] = 0.98
    diversity: Annotated[float, Field(ge=0)] = 1.0
    noise: Annotated[int, Field(ge=1)] = 32
    hidden: Annotated[int, Field(ge=1)] = 256
    server_steps: Annotated[int, Field(ge=1)] = 50
    server_batch: Annotated[int, Field(ge=1)] = 32
    server_lr: Annotated[float, Field(gt=0)] = 3e-4
    collects_uploads: ClassVar[bool] = True

    def check(self, net: Net, train: Train) -> None:
        """Refuse a head that is not linear: the server applies the clients' heads itself."""
        if net.module_types.get("head.weight") is not nn.Linear:
            raise ValueError("fedgen needs a model whose head is one linear layer")

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Bring G, which travels down only."""
        widths = [self.noise + net.num_classes, self.hidden, net.feature_dim]
        return perceptron.draw(net, _GEN, widths, generator)

    def is_trained(self, net: Net, name: str, phase: str) -> bool:
        """Leave G as received."""
        return not name.startswith(_GEN)

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Start Adam, and note the labels."""
        zeros = zeros_like(named(params, _GEN))
        counts = population.class_counts
        return {"m": zeros, "v": zeros, "t": counts.new_zeros(()), "prior": counts / counts.sum()}

    def broadcast(self, server: State) -> State:
        """Send the label shares."""
        return {"prior": server["prior"]}

    def draws(
        self, net: Net, generator: np.random.Generator, steps: int, batch_size: int, info: ClientInfo
    ) -> dict[str, Any]:
        """Draw labels (as uniform numbers) and noise for samples, and noise for the batch."""
        return {
            "fedgen.lots": generator.random((steps, batch_size)),
            "fedgen.noise": generator.standard_normal((steps, batch_size, self.noise)),
            "fedgen.batch_noise": generator.standard_normal((steps, batch_size, self.noise)),
        }

    def loss(self, fit: Fit, net: Net, params: Params, state: State, batch: Batch, view: View) -> tuple[Tensor, State]:
        """Add the generator's terms."""
        total, generator, fade = fit(params, batch), named(params, _GEN), self.decay**view.round
        if view.round > 0 and self.alpha:
            labels = _labels(batch.draws["fedgen.lots"], view.server["prior"])
            z = _generate(generator, batch.draws["fedgen.noise"], labels)
            total = total + self.alpha * fade * cross_entropy(net.classify(params, z), labels).mean()
        if view.round > 0 and self.beta:
            z = _generate(generator, batch.draws["fedgen.batch_noise"][: len(batch.y)], batch.y)
            target = net.classify(params, z).log_softmax(-1).detach()
            again = net.bind(net.buffers, training=True)  # moves no running statistics a second time
            ours = net.classify(params, again.features(params, batch.x)).log_softmax(-1)
            total = total + self.beta * fade * batch.mean((target.exp() * (target - ours)).sum(-1))
        return total, state

    def finish(self, shared: Params, params: Params, state: State, view: View) -> tuple[State, State]:
        """Send the delta and the label counts."""
        model = {n: p for n, p in shared.items() if not n.startswith(_GEN)}
        return {"delta": subtract(model, {n: view.anchor[n] for n in model}), "counts": view.info.class_counts}, state

    def aggregate(self, shared: Params, server: State, mean: State, cohort: Cohort) -> tuple[Params, State]:
        """Average the models, then teach G with the cohort's heads."""
        uploads = stack(list(cohort.uploads))
        weight, bias = (shared[n] + uploads["delta"][n] for n in ("head.weight", "head.bias"))  # [C, Y, D], [C, Y]
        shares = uploads["counts"] / uploads["counts"].sum(0).clamp(min=1)  # [C, Y]

        def objective(generator: Params, noise: Tensor, labels: Tensor) -> Tensor:
            z = _generate(generator, noise, labels)
            logits = torch.einsum("bd,cyd->cby", z, weight) + bias[:, None]
            logits = (shares[:, labels, None] * logits).sum(0)
            far = (noise[:, None] - noise).pow(2).mean(-1) * (z[:, None] - z).abs().mean(-1)
            return cross_entropy(logits, labels).mean() + self.diversity * torch.exp(-far.mean())

        generator, m, v, t = named(shared, _GEN), server["m"], server["v"], server["t"]
        for _ in range(self.server_steps):
            lots = _like(cohort.generator.random(self.server_batch), t)
            noise = _like(cohort.generator.standard_normal((self.server_batch, self.noise)), t)
            slope = grad(objective)(generator, noise, _labels(lots, server["prior"]))
            t = t + 1
            m = {n: 0.9 * m[n] + 0.1 * g for n, g in slope.items()}
            v = {n: 0.999 * v[n] + 0.001 * g**2 for n, g in slope.items()}
            rate = self.server_lr / (1 - 0.9**t)
            generator = {n: p - rate * m[n] / ((v[n] / (1 - 0.999**t)).sqrt() + 1e-8) for n, p in generator.items()}
        model = add({n: shared[n] for n in mean["delta"]}, mean["delta"])
        new = {**model, **{_GEN + n: p for n, p in generator.items()}}
        return {n: new[n] for n in shared}, {**server, "m": m, "v": v, "t": t}


def _generate(generator: Params, noise: Tensor, labels: Tensor) -> Tensor:
    """Return features [B, D] of noise [B, dim e] and labels [B]."""
    width = generator["0.weight"].shape[1] - noise.shape[-1]
    known = labels[:, None] == torch.arange(width, device=labels.device)  # `one_hot` looks at values: not under vmap
    x = torch.cat([noise, known], -1).type_as(generator["0.weight"])
    hidden = torch.relu(x @ generator["0.weight"].mT + generator["0.bias"])
    return hidden @ generator["1.weight"].mT + generator["1.bias"]


def _labels(lots: Tensor, prior: Tensor) -> Tensor:
    """Return labels [B] of these shares for uniform numbers [B]."""
    return (lots[:, None] >= prior.cumsum(0)).sum(-1).clamp(max=len(prior) - 1)


def _like(array: Any, like: Tensor) -> Tensor:
    return torch.as_tensor(array, dtype=like.dtype, device=like.device)
