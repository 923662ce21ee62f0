"""The round loop. There is no other."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedcore.compose import Composition
from fedcore.config import Train
from fedcore.data.federation import Federation
from fedcore.data.resources import bytes_sent
from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.client_file import ClientFile, DiskStore
from fedcore.engine.cohorts import draw_cohort
from fedcore.engine.evaluate import Scorer
from fedcore.engine.further_views import further_views
from fedcore.engine.jobs import JobMaker
from fedcore.engine.local import Assignment, Examples, Folding, Job, LocalTraining, Outcome
from fedcore.engine.precision import products
from fedcore.engine.progress import Progress, resume, save
from fedcore.engine.server import Reduction, Server
from fedcore.engine.store import ClientStore, first_tree
from fedcore.engine.views import Evaluation, evaluate
from fedcore.methods.base import Phase
from fedcore.models.net import Net
from fedcore.seeds import stream
from fedcore.tracking import NullTracker, Tracker
from fedcore.trees import Tree, num_bytes
from fedcore.types import Cohort, Params, Population, State

_SECONDS_BETWEEN_CHECKPOINTS = 60.0


class Executor(Protocol):
    """Runs local training; see `fedcore.engine.executors`."""

    @property
    def name(self) -> str:
        """What the lineage calls it."""
        ...

    @property
    def remarks(self) -> list[str]:
        """What ran slower than it could, and why: a line each."""
        ...

    def train(self, jobs: Iterator[Job], assignment: Assignment) -> Iterator[Outcome]:
        """Train every job's client; yield the outcomes in the order of the jobs."""
        ...

    def close(self) -> None:
        """Give back what it holds outside this process; to be called once, when nothing is trained any more."""
        ...


class Training:
    """One method on one federation with one seed.

    Parameters
    ----------
    composition, net, federation, train, seed
        What is trained, on what, and how.
    executor, examples
        Where local training runs, and the data set there.
    resources : State or None
        Data that every client gets a copy of, by name, on the device of `examples`.
    """

    def __init__(
        self,
        composition: Composition,
        net: Net,
        federation: Federation,
        train: Train,
        seed: int,
        executor: Executor,
        examples: Examples,
        resources: State | None = None,
    ):
        self.resources: State = resources or {}
        composition.check_resources(self.resources, federation.dataset.num_classes)
        self.composition, self.net, self.federation = composition, net, federation
        self.train, self.seed, self.executor, self.examples = train, seed, executor, examples
        self._maker = JobMaker(composition, net, train, federation, examples, seed)
        scored = federation.held_out() if composition.method.needs_validation else federation
        self.scorer = Scorer(composition, net, examples, scored, min(train.workers, os.cpu_count() or 1))
        params = {**net.initial_params, **composition.extra_params(net, seed)}
        initial = {n: p.to(examples.device) for n, p in params.items()}
        self.initial: Params = composition.prepare(net, initial, self.resources, seed)
        self.progress = self._start()

    def run(self, tracker: Tracker | None = None, checkpoint: Checkpoint | None = None) -> Progress:
        """Train all rounds, from the checkpoint if there is one, and return what came of it."""
        tracker = tracker or NullTracker()
        if checkpoint:
            self.progress.store.keep_in(checkpoint.client_file)
            resume(self.progress, checkpoint, self.examples.device)
        # Local training chooses its own products; what the server computes and scores is single precision.
        with products("float32", self.examples.device):
            self._rounds(tracker, checkpoint)
        return self.progress

    def _rounds(self, tracker: Tracker, checkpoint: Checkpoint | None) -> None:
        """Train the rounds that are left."""
        progress = self.progress
        total = self.train.rounds + self.train.newcomer_rounds
        tracker.start(total, max(progress.next_round, 0))
        saved_at = time.monotonic()
        for round in range(progress.next_round, total):
            began = time.perf_counter()
            progress.restage(self.composition, self.net, round)
            if round == self.train.rounds:
                self._welcome()
            loss = self._train_round(round)
            trained = time.perf_counter()
            done = round + 1
            metrics: dict[str, float] = {}
            if round >= 0 and (done % self.train.evaluate_every == 0 or self._is_last(round)):
                metrics = {"train/loss": loss, **self._evaluate(round).metrics}
                metrics["cost/download_bytes"] = progress.download_bytes
                metrics["cost/upload_bytes"] = progress.upload_bytes
                progress.history.append({"round": done, **metrics})
            ended = time.perf_counter()
            times = {"train_seconds": trained - began, "evaluate_seconds": ended - trained}
            progress.timing.append({"round": done, **times, "total_seconds": ended - began})
            progress.next_round = done
            tracker.log(done, metrics, ended - began)
            late = time.monotonic() - saved_at > _SECONDS_BETWEEN_CHECKPOINTS
            if checkpoint and done < total and (late or done % self.train.checkpoint_every == 0):
                save(progress, checkpoint)
                saved_at = time.monotonic()

    # --- one round ---

    def _train_round(self, round: int) -> float:
        """Sample, send, train, merge; return the mean training loss over the cohort's local steps."""
        progress, composition = self.progress, self.composition
        cohort = self._cohort(round)
        progress.download_bytes += self._download_bytes(cohort.clients, round)
        phases = composition.setup_phases(self.train) if round < 0 else composition.phases(self.train)
        reduction = Reduction(cohort.weights)
        losses: list[Tensor] = []
        steps: list[int] = []
        uploads: list[State] = []
        for outcome in self._local(cohort.clients, round, phases, "batches", cohort):
            if outcome.folded is None:
                reduction.add(progress.server.upload(outcome))
            else:
                reduction.add_folded(outcome.folded)
            if composition.method.collects_uploads:
                uploads.append(outcome.upload["method"])
            if round >= 0:
                if self.train.keeps_momentum:
                    motion = self._maker.motion(outcome.client, round, phases, progress)
                    progress.velocities[outcome.client] = motion.velocity
                progress.keep(outcome)
            losses.append(outcome.loss)
            steps.append(outcome.steps)
        progress.upload_bytes += reduction.bytes
        assert reduction.mean is not None
        cohort = cohort._replace(uploads=tuple(uploads))
        progress.server = progress.server.merge(composition, reduction.mean, cohort)
        loss = _sum(losses, steps)
        if not math.isfinite(loss):
            raise ValueError(
                f"training diverged: the loss of round {round + 1} is {loss}; lower train.lr ({self.train.lr})"
                " or the method's strengths"
            )
        return loss / sum(steps)

    def _welcome(self) -> None:
        """Give the newcomers what they start with of what stays with clients."""
        trained, store = self.federation.num_clients, self.progress.store
        initial = {"params": self.initial, "buffers": self.net.initial_buffers}
        if self.train.newcomer_start == "server":
            own = store.initial
            params = self.composition.method.newcomer(self.net, {**own["params"], **self.progress.server.params})
            tree: Tree = {**own, "params": {n: params[n] for n in own["params"]}}
        else:
            others = None if self.train.newcomer_start == "initial" else range(trained)
            tree = first_tree(store, initial, others)
        for client in range(trained, self.federation.num_total):
            store.put(client, tree)

    def _cohort(self, round: int) -> Cohort:
        method = self.composition.method
        return draw_cohort(method, self.train, self.federation, self.seed, round, self.resources)

    def _is_first(self, client: int, round: int) -> bool:
        """Return whether a client that takes part in a round never did before, in a set-up round either."""
        set_up = self.composition.setup_rounds if client < self.federation.num_clients else 0
        return bool(self.progress.participations[client] == 0) and (not set_up or round == -set_up)

    def _download_bytes(self, clients: Sequence[int], round: int) -> int:
        """Count what a cohort receives: the same for all, each client's own, and resources the first time."""
        server, method = self.progress.server, self.composition.method
        shared = num_bytes(server.download(self.composition))
        own = num_bytes(method.download(server.state["method"], clients[0]))
        resources = sum(
            bytes_sent(self.resources[name], first=self._is_first(c, round))
            for name in self.composition.needs
            for c in clients
        )
        return (shared + own) * len(clients) + resources

    def _local(
        self,
        clients: Sequence[int],
        round: int,
        phases: tuple[Phase, ...],
        purpose: str,
        merged: Cohort | None = None,
    ) -> Iterator[Outcome]:
        """Train clients; with `merged`, of what they make only uploads and what they keep is wanted."""
        server = self.progress.server
        sent = self.composition.broadcast(server.state)
        shared = frozenset(server.params)
        assignment = Assignment(phases, sent, self.resources, shared, round, finishes=purpose != "adapt")
        if merged is not None:
            assignment = replace(assignment, returned=frozenset(self.progress.store.initial["params"]))
            if not self.composition.method.collects_uploads:
                weights = dict(zip(merged.clients, merged.weights, strict=True))
                assignment = replace(assignment, folding=Folding(weights, frozenset(server.buffers)))
        return self.executor.train(self._jobs(clients, round, phases, purpose), assignment)

    def _jobs(self, clients: Sequence[int], round: int, phases: tuple[Phase, ...], purpose: str) -> Iterator[Job]:
        return self._maker.jobs(clients, round, phases, purpose, self.progress)

    # --- evaluation ---

    def _evaluate(self, round: int) -> Evaluation:
        progress, method = self.progress, self.composition.method
        server = progress.server
        initial = progress.store.initial
        model = ({**initial["params"], **server.params}, {**initial["buffers"], **server.buffers})
        adapt = method.adapt_phases(self.train)
        has_own = bool(initial["params"] or initial["buffers"])
        result = evaluate(
            self.scorer,
            model,
            (lambda clients: self._own_models(clients, round, adapt)) if has_own or adapt else None,
            method.has_global,
            bool(adapt),
            round >= self.train.rounds,
        )
        everybody = partial(self._own_models, range(self.federation.num_clients), round, adapt)
        result.metrics.update(further_views(self, round, self._is_last(round), result, model, everybody))
        progress.select(result, round)
        return result

    def _is_last(self, round: int) -> bool:
        """Return whether this is the last round, of the training or of the newcomers."""
        return round + 1 in (self.train.rounds, self.train.rounds + self.train.newcomer_rounds)

    def chosen_models(self) -> Iterator[Outcome]:
        """Make the clients' own models of the selected round, adapted as they were evaluated then.

        Of every client that trains, whether or not it has by then, and of newcomers in their rounds. Empty when every
        client uses the server's model and that is a view of the method.
        """
        chosen, present = self.progress.selected["personal"], self.progress
        own, method = chosen.store.initial, self.composition.method
        adapt = method.adapt_phases(self.train)
        if method.has_global and not (own["params"] or own["buffers"] or adapt):
            return
        federation = self.federation
        has_newcomers = chosen.round >= self.train.rounds
        clients = range(federation.num_total if has_newcomers else federation.num_clients)
        self.progress = chosen.restored(present)
        try:
            yield from self._own_models(clients, chosen.round, adapt)
        finally:
            self.progress = present

    def _own_models(self, clients: Sequence[int], round: int, adapt: tuple[Phase, ...]) -> Iterator[Outcome]:
        """Make every client's own model; adaptation works on copies and nothing of it is kept."""
        personal = self.composition.method.personal
        if adapt:
            for outcome in self._local(clients, round, adapt, "adapt"):
                yield replace(outcome, params=personal(self.net, outcome.params))
            return
        for client in clients:
            params, buffers = self.progress.server.model(self.progress.store.get(client))
            yield Outcome(client, personal(self.net, params), buffers, {}, {}, torch.zeros(()), 0)

    def _start(self) -> Progress:
        counts = self.federation.class_counts[: self.federation.num_clients].sum(0)
        counts = self.examples.scale.new_tensor(counts.tolist())
        population = Population(self.federation.num_clients, counts, stream(self.seed, "server/start"))
        server = Server.initial(self.composition, self.net, self.initial, population)
        own: Tree = {
            "params": {n: p for n, p in self.initial.items() if n not in server.params},
            "buffers": {n: b for n, b in self.net.initial_buffers.items() if n not in server.buffers},
            "state": LocalTraining(self.composition, self.net, self.train).init_client(self.initial),
        }
        total = self.federation.num_total
        store = ClientStore(own) if self.train.store == "memory" else DiskStore(own, ClientFile())
        return Progress(server, store, np.zeros(total, np.int64), np.zeros(total), -self.composition.setup_rounds)


def _sum(losses: Sequence[Tensor], steps: Sequence[int]) -> float:
    """Return the sum of mean losses [] over their steps, with a single wait for the device."""
    total = 0.0
    for loss, count in zip(torch.stack([*losses]).tolist(), steps, strict=True):
        total += loss * count
    return total
