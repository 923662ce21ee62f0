"""What imperative twins share: a model as plain tensors, and the batches a client sees. No engine code."""

from __future__ import annotations

import numpy as np
import torch

from fedcore.seeds import stream

LAYERS = ("body.1", "body.3")


def features(params, x):
    """The toy perceptron's body."""
    for layer in LAYERS:
        x = torch.relu(x @ params[f"{layer}.weight"].T + params[f"{layer}.bias"])
    return x


def classify(params, z):
    """Its head."""
    return z @ params["head.weight"].T + params["head.bias"]


def rows(work, client):
    """A client's train inputs and labels."""
    index = work.federation.rows(client, "train")
    data = work.federation.dataset
    return torch.from_numpy(np.array(data.inputs[index])).double(), torch.from_numpy(np.array(data.labels[index]))


def batches(work, client, round, epochs=1, first=0):
    """A client's batches of a round, short ones short."""
    x, y = rows(work, client)
    for epoch in range(first, first + epochs):
        order = stream(work.seed, f"batches/{epoch}", round, client).permutation(len(y))
        for start in range(0, len(y), work.train.batch_size):
            picked = order[start : start + work.train.batch_size]
            yield x[picked], y[picked]


def leaves(params):
    """Copies that can be differentiated."""
    return {n: p.detach().clone().requires_grad_() for n, p in params.items()}


def slopes(loss, params):
    """Gradients by name; zero for what the loss does not touch."""
    found = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(params, found, strict=True))


def mean(uploads, weights):
    """The weighted mean of dictionaries of tensors."""
    return {n: sum(w * u[n] for u, w in zip(uploads, weights, strict=True)) for n in uploads[0]}


class Quadratic:
    """A `Local` whose loss is 1/2 w' H w - b' w, whatever the batch."""

    hessian = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    offset = torch.tensor([1.0, -4.0], dtype=torch.float64)

    def gradient(self, params, state, batch):
        return {"w": self.hessian @ params["w"] - self.offset}, state

    def descend(self, params, gradient):
        return {**params, "w": params["w"] - 0.1 * gradient["w"]}
