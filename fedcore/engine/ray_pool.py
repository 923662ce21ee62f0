"""The workers of a Ray cluster: started, asked, replaced when they are lost, ended."""

from __future__ import annotations

import importlib.util
import logging
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from fedcore.data.federation import Federation
from fedcore.engine.local import Examples
from fedcore.engine.ray_worker import Setup, Worker
from fedcore.engine.shares import Share, homes, share_of
from fedcore.engine.wire import Returned

_LOSSES = 3  # of one home without a result between them, before the run gives up
_START = 300.0  # seconds in which all workers must be there
_PLACE = 60.0  # seconds in which a replacement must be there; after that another worker takes over
_KNOCK = 10.0  # seconds in which a cluster must take a connection
_ATTEMPTS = 3  # Ray gives its own processes 30 s to start, which a busy machine may exceed


class Pool:
    """Workers, and which clients each one holds.

    Parameters
    ----------
    setup : Setup
        What every worker is started with.
    examples, federation
        The data set, from which workers get their clients' rows.

    Raises
    ------
    ValueError
        If Ray is not installed.
    """

    def __init__(self, setup: Setup, examples: Examples, federation: Federation):
        check_installed()
        self.size = setup.train.workers
        self._setup, self._examples, self._federation = setup, examples, federation
        self._homes = homes(federation.num_examples, self.size)
        self._workers: list[Any] = []  # by home; after a loss a worker may serve two
        self._losses = [0] * self.size  # by home, since its last result
        self._reason = ""
        self._owns_cluster = False

    def home(self, client: int) -> int:
        """Return which home a client has, 0..size-1."""
        return int(self._homes[client])

    def worker(self, home: int) -> Any:
        """Return the worker of a home, now."""
        return self._workers[home]

    def put(self, value: Any) -> Any:
        """Return a reference to a value that every worker can read."""
        import ray

        return ray.put(value)

    def open(self) -> None:
        """Start or find the cluster, and start the workers; nothing when they are there.

        Raises
        ------
        ValueError
            One line: no cluster, no room in it, or other versions there.
        """
        if self._workers:
            return
        import ray

        self._owns_cluster = connect(self._setup.train.ray.address, self.size)
        there = int(ray.cluster_resources().get("CPU", 0))
        if there < self.size:
            self.close()
            raise ValueError(
                f"train.workers: {self.size} asked for, the Ray cluster has {there} CPUs; use at most that"
            )
        self._workers = [self._start(home) for home in range(self.size)]
        try:
            found = ray.get([worker.facts.remote() for worker in self._workers], timeout=_START)
        except ray.exceptions.GetTimeoutError:
            self.close()
            raise ValueError(
                f"train.workers: no room for {self.size} workers in the Ray cluster within {_START:.0f} s; `ray status`"
                " says who has it"
            ) from None
        except ray.exceptions.RayError as error:
            self.close()
            raise ValueError(f"train.executor: ray: a worker did not start: {_line(error)}") from None
        ours = Worker.versions()
        for theirs in found:
            different = [
                f"{name} {theirs[name]} instead of {ours[name]}" for name in ours if theirs[name] != ours[name]
            ]
            if different:
                self.close()
                raise ValueError(
                    f"train.ray.address: a worker has {', '.join(different)}; install the same on all nodes"
                )

    def answer(self, answer: Any, home: int) -> list[Returned] | None:
        """Wait for an answer; None if the worker was lost.

        Raises
        ------
        ValueError, OSError
            What the worker raised.
        """
        import ray

        try:
            found: list[Returned] = ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ValueError | OSError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            self._reason = _line(error)
            return None
        self._losses[home] = 0
        return found

    def replace(self, home: int) -> None:
        """Give the clients of a lost worker to a new one, or where there is no room for it, to one of the others.

        Raises
        ------
        ValueError
            When the worker of this home is lost again and again, or was the last one.
        """
        import ray

        self._losses[home] += 1
        lost = self._workers[home]
        if self._losses[home] == _LOSSES:
            raise ValueError(
                f"train.executor: ray: the worker of client {self._clients(home)[0]} and others was lost {_LOSSES}"
                f" times in a row: {self._reason}"
            )
        new = self._start(home)
        try:
            ray.get(new.facts.remote(), timeout=_PLACE)
        except ray.exceptions.RayError as error:
            ray.kill(new)
            others = [worker for worker in self._workers if worker is not lost]
            if not others:
                raise ValueError(
                    f"train.executor: ray: the last worker was lost: {self._reason}; {_line(error)}"
                ) from None
            new = others[home % len(others)]
            new.take.remote(self._share(home))
        self._workers[home] = new

    def close(self) -> None:
        """End the workers, and the cluster if this run started it."""
        if not self._workers and not self._owns_cluster:
            return
        import ray

        for worker in self._workers:
            ray.kill(worker)
        self._workers = []
        if self._owns_cluster:
            ray.shutdown()
        self._owns_cluster = False

    def _start(self, home: int, cpus: int = 1) -> Any:
        import ray

        gpus = 0.0
        if self._setup.device == "cuda":
            gpus = min(1.0, ray.cluster_resources().get("GPU", 0) / self.size)
        actor = ray.remote(Worker).options(num_cpus=cpus, num_gpus=gpus, max_restarts=0)
        return actor.remote(self._setup, self._share(home))

    def _share(self, home: int) -> Share:
        needs = self._setup.composition.method.needs_validation
        return share_of(self._examples, self._federation, self._clients(home), with_validation=needs)

    def _clients(self, home: int) -> list[int]:
        clients: list[int] = np.flatnonzero(self._homes == home).tolist()
        return clients


def check_installed() -> None:
    """Raise ValueError, one line, if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ValueError(
            "train.executor: 'ray' needs the package ray, which is not installed; run `pip install fedcore[ray]`"
        )


def connect(address: str | None, workers: int) -> bool:
    """Connect this process to a cluster, or start one of `workers` processes here; nothing when it is connected.

    Returns
    -------
    bool
        Whether the connection was made here, and is to be ended with ``ray.shutdown()``.

    Raises
    ------
    ValueError
        One line, if there is no such cluster or none could be started.
    """
    import ray

    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is not None:
        try:
            _knock(address)
            ray.init(address=address, **quiet)
        except (OSError, ValueError, RuntimeError, AssertionError) as error:
            ray.shutdown()
            raise ValueError(
                f"train.ray.address: no Ray cluster at '{address}' ({_line(error)}); start one with `ray start --head`,"
                " or use null for processes of this machine"
            ) from None
        return True
    # Ray takes 127.0.0.1 for "any address of this machine"; on Linux all of 127/8 is the machine itself.
    loopback = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            ray.init(address="local", num_cpus=workers, include_dashboard=False, _node_ip_address=loopback, **quiet)
        except Exception as error:  # Ray raises no class of its own here
            ray.shutdown()
            if attempt == _ATTEMPTS:
                raise ValueError(
                    f"train.executor: ray: no cluster of this machine's processes: {_line(error)}"
                ) from None
        else:
            break
    return True


def _knock(address: str) -> None:
    """Raise OSError or ValueError if nobody listens there: Ray itself tries for minutes, and says so many times."""
    if address == "auto":
        return
    where = urlsplit(address if "://" in address else f"//{address}")
    if where.hostname is None or where.port is None:
        raise ValueError("expected host:port, ray://host:port or auto")
    socket.create_connection((where.hostname, where.port), timeout=_KNOCK).close()


def _line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
