"""What the clients of a cohort are to do, made one after another as the executor asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedcore.compose import Composition
from fedcore.config import Train
from fedcore.data.federation import Federation
from fedcore.engine import augment
from fedcore.engine.local import Examples, Job, at_rest
from fedcore.engine.optim import Motion, learning_rate, unit_motion
from fedcore.engine.progress import Progress
from fedcore.engine.schedule import num_steps, schedule, stream_names
from fedcore.methods.base import Phase
from fedcore.models.net import Net
from fedcore.seeds import Streams
from fedcore.types import ClientInfo

_TOGETHER = 64  # clients whose streams and facts are made at once, which costs little more than one client's


@dataclass(frozen=True)
class JobMaker:
    """Makes jobs of what the server and the clients hold."""

    composition: Composition
    net: Net
    train: Train
    federation: Federation
    examples: Examples
    seed: int

    def jobs(
        self, clients: Sequence[int], round: int, phases: tuple[Phase, ...], purpose: str, progress: Progress
    ) -> Iterator[Job]:
        """Give the clients' jobs in their order.

        Parameters
        ----------
        purpose : str
            What their batches are for; it names the streams that order them.

        Raises
        ------
        ValueError
            If a client has no batch; see `fedcore.engine.schedule.schedule`.
        """
        for begin in range(0, len(clients), _TOGETHER):
            some = clients[begin : begin + _TOGETHER]
            streams = Streams(self.seed, round, self._keys(some, phases, purpose))
            for client, info in zip(some, self._infos(some), strict=True):
                yield self._job(client, round, phases, purpose, progress, streams, info)

    def motion(self, client: int, round: int, phases: tuple[Phase, ...], progress: Progress) -> Motion:
        """Return how the client's optimiser moves, in the method's own phases, what has a gradient of one."""
        train, size = self.train, int(self.federation.num_examples[client])
        steps = sum(num_steps(train, phase, size) for phase in phases if phase.owner is None)
        lr = learning_rate(train, round, int(progress.participations[client]))
        velocity = float(progress.velocities[client])
        return unit_motion(steps, lr, train.momentum, self.composition.damping, velocity)

    def _keys(self, clients: Sequence[int], phases: tuple[Phase, ...], purpose: str) -> Iterator[tuple[str, int]]:
        for phase in phases:
            for client in clients:
                size = int(self.federation.num_examples[client])
                yield from ((name, client) for name in stream_names(self.train, phase, size, purpose))

    def _infos(self, clients: Sequence[int]) -> Iterator[ClientInfo]:
        index = np.asarray(clients)
        facts = np.column_stack([self.federation.num_examples[index], self.federation.class_counts[index]])
        sent = torch.tensor(facts, dtype=self.examples.dtype, device=self.examples.device)  # once for all of them
        return map(ClientInfo, sent[:, 0].unbind(), sent[:, 1:].unbind())

    def _job(
        self,
        client: int,
        round: int,
        phases: tuple[Phase, ...],
        purpose: str,
        progress: Progress,
        streams: Streams,
        info: ClientInfo,
    ) -> Job:
        train, composition = self.train, self.composition
        rows = self.federation.rows(client, "train")
        own = progress.store.get(client)
        schedules = tuple(schedule(train, phase, len(rows), streams, client, purpose) for phase in phases)
        image = self.federation.dataset.input_shape
        draws = tuple(
            composition.draws(self.net, self.seed, phase, round, client, s.steps, s.positions.shape[1], info)
            | augment.draws(train.augment, phase, self.seed, round, client, purpose, s.positions.shape, image)
            for phase, s in zip(phases, schedules, strict=True)
        )
        method = composition.method
        lr = learning_rate(train, round, int(progress.participations[client]))
        steps = sum(s.steps for phase, s in zip(phases, schedules, strict=True) if phase.owner is None)
        return Job(
            client,
            rows,
            *progress.server.model(own),
            at_rest(own["state"]) if purpose == "adapt" else own["state"],
            info,
            schedules,
            draws,
            steps,
            lr,
            self.motion(client, round, phases, progress).moved,
            method.download(progress.server.state["method"], client),
            self.federation.fitting_rows(client) if method.needs_validation else None,
        )
