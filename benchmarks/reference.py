"""R0, the reference loop: what one writes without a framework, and what every figure is a ratio to.

One module, the global weights loaded into it for every client, batches gathered from tensors in memory,
`torch.optim.SGD`, a weighted sum, an evaluation of all test rows in batches of 500. Its inputs are normalised and its
batch order is drawn before the clock starts.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.plan import plan_round, round_lr
from benchmarks.workloads import Workload
from fedcore.config import Cnn, Mlp, ResNet, SoftmaxRegression, Train, Vgg11
from fedcore.models.convolutional import cnn
from fedcore.models.dense import mlp, softmax_regression
from fedcore.models.resnet import resnet
from fedcore.models.vgg import vgg11
from fedcore.types import Params

EVALUATION_BATCH = 500


class Result(NamedTuple):
    """One round: seconds, and the accuracy [0, 1] and mean loss on all test rows."""

    train_seconds: float
    evaluate_seconds: float
    accuracy: float
    loss: float

    @property
    def seconds(self) -> float:
        """Training and evaluation."""
        return self.train_seconds + self.evaluate_seconds


def plain_module(workload: Workload) -> nn.Sequential:
    """Return the workload's model as a plain module whose parameters have the engine's names."""
    shape = workload.federation.dataset.input_shape
    classes = workload.federation.dataset.num_classes
    match workload.model_config:
        case SoftmaxRegression():
            model = softmax_regression(shape, classes)
        case Mlp() as config:
            model = mlp(config, shape, classes)
        case Cnn() as config:
            model = cnn(config, shape, classes)
        case Vgg11() as config:
            model = vgg11(config, shape, classes)
        case ResNet() as config:
            model = resnet(config, shape, classes)
        case other:
            raise ValueError(f"the reference loop has no model '{other.name}'")
    return nn.Sequential(OrderedDict(body=model.body, head=model.head))


class Reference:
    """The loop, with its global weights.

    Parameters
    ----------
    workload : Workload
        Its method is not looked at: the loop is FedAvg.
    train : Train
    seed : int
        The run's; decides cohorts and batch orders.
    initial : mapping
        Parameters and buffers to start from.
    device : torch.device
    """

    def __init__(self, workload: Workload, train: Train, seed: int, initial: Params, device: torch.device):
        self.train, self.seed, self.device = train, seed, device
        self.federation = workload.federation
        self.model = plain_module(workload).to(device)
        self.model.load_state_dict(initial, strict=False)
        self.weights: Params = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        clients = range(self.federation.num_clients)
        self._train = [self._tensors(self.federation.rows(client, "train")) for client in clients]
        test = np.concatenate([self.federation.rows(client, "test") for client in clients])
        self._test = [
            self._tensors(rows) for rows in np.split(test, range(EVALUATION_BATCH, len(test), EVALUATION_BATCH))
        ]
        self.tested = len(test)
        self._lr = train.lr
        self._work: list[tuple[int, float, list[Tensor]]] = []

    def _tensors(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        data = self.federation.dataset
        per_channel = (-1, *[1] * (len(data.input_shape) - 1))
        offset, scale = (torch.tensor(v, dtype=torch.float32).reshape(per_channel) for v in (data.offset, data.scale))
        x = torch.from_numpy(data.inputs[rows]).float().sub_(offset).mul_(scale)
        return x.to(self.device), torch.from_numpy(data.labels[rows]).to(self.device)

    def prepare(self, number: int) -> None:
        """Draw the cohort and the batch order of round `number`, counted from 0."""
        plans = plan_round(self.train, self.federation, self.seed, number)
        self._lr = round_lr(self.train, number)
        self._work = [(p.client, p.share, [torch.from_numpy(b).to(self.device) for b in p.batches]) for p in plans]
        self._wait()

    def round(self) -> Result:
        """Train and evaluate the round that was prepared; the weights move on."""
        began = time.perf_counter()
        self._train_round()
        self._wait()
        trained = time.perf_counter()
        accuracy, loss = self._evaluate()
        return Result(trained - began, time.perf_counter() - trained, accuracy, loss)

    def _train_round(self) -> None:
        model = self.model.train()
        total = {name: torch.zeros_like(tensor) for name, tensor in self.weights.items()}
        for client, share, batches in self._work:
            model.load_state_dict(self.weights)
            optimiser = torch.optim.SGD(
                model.parameters(), self._lr, momentum=self.train.momentum, weight_decay=self.train.weight_decay
            )
            x, y = self._train[client]
            for batch in batches:
                optimiser.zero_grad()
                loss = functional.cross_entropy(model(x[batch]), y[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            for name, tensor in model.state_dict().items():
                if tensor.is_floating_point():
                    total[name].add_(tensor, alpha=share)
        self.weights = total

    @torch.no_grad()
    def _evaluate(self) -> tuple[float, float]:
        self.model.load_state_dict(self.weights)
        model = self.model.eval()
        correct, loss = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for x, y in self._test:
            logits = model(x)
            correct += (logits.argmax(1) == y).sum()
            loss += functional.cross_entropy(logits, y, reduction="sum")
        return float(correct) / self.tested, float(loss) / self.tested

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
