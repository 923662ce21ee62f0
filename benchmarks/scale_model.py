"""What a round of a large federation would take on a cluster: formulas over constants measured on one machine.

`--measure` measures the constants again and prints them; without it the table comes from those in this file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.options import positive, run_command


@dataclass(frozen=True)
class Constants:
    """Rates of one driver process and one network card.

    Attributes
    ----------
    job_seconds : per client, driver
        Making its batch order and draws, and handing it out.
    result_seconds : per message, driver
        Taking an answer of a worker, without its bytes.
    wire : bytes per second, driver
        From a message of the object store to tensors of the driver.
    put : bytes per second
        From tensors into the object store.
    add : bytes per second, driver
        Weighted sum of an upload into the total.
    network : bytes per second
        Of the driver's card; not measured: 100 Gbit/s at 80 %.
    """

    job_seconds: float = 2.9e-4
    result_seconds: float = 1.1e-3
    wire: float = 1.7e9
    put: float = 8.3e8
    add: float = 1.5e9
    network: float = 1.0e10


@dataclass(frozen=True)
class Federation:
    """What is trained.

    Attributes
    ----------
    clients, cohort : int
    parameters : int
        Of the model, four bytes each.
    client_seconds : float
        A client's local training on one worker's share of a block.
    workers, fold : int
        GPUs, and how many uploads `aggregation: tree` adds up into one.
    state : float
        Bytes that stay with a client, in models (0: FedAvg, 1: SCAFFOLD).
    """

    clients: int = 10_000_000
    cohort: int = 100_000
    parameters: int = 600_000
    client_seconds: float = 0.01
    workers: int = 64
    fold: int = 64
    state: float = 0.0


@dataclass(frozen=True)
class Round:
    """Bytes and seconds of one round.

    Attributes
    ----------
    down, up : float, bytes through the driver's card
    train, jobs, receive, add, send : float, seconds
        Of the workers; of the driver: handing jobs out, taking answers, adding up, sending.
    """

    down: float
    up: float
    train: float
    jobs: float
    receive: float
    add: float
    send: float

    @property
    def seconds(self) -> float:
        """Driver and workers run side by side; the driver does one thing after the other."""
        return max(self.train, self.driver)

    @property
    def driver(self) -> float:
        """Seconds of the driver."""
        return self.jobs + self.receive + self.add + self.send

    @property
    def bottleneck(self) -> str:
        """The largest part."""
        if self.train >= self.driver:
            return "training"
        return max(("jobs", "receive", "add", "send"), key=lambda part: float(getattr(self, part)))


def modelled(federation: Federation, constants: Constants, *, tree: bool) -> Round:
    """Return what a round takes.

    With b bytes of a model, C clients of a cohort, W workers, U = C uploads, or ceil(C / fold) in a tree, and s models
    of state for each client: down = b W + s b C, up = b U + s b C; train = C * client_seconds / W,
    jobs = C * job_seconds, receive = messages * result_seconds + up / min(wire, network), where four uploads are a
    message, or in a tree one, add = b U / add, send = down / min(put, network).
    """
    model = 4.0 * federation.parameters
    uploads = -(-federation.cohort // federation.fold) if tree else federation.cohort
    state = federation.state * model * federation.cohort
    down, up = model * federation.workers + state, model * uploads + state
    messages = uploads if tree else -(-federation.cohort // 4)
    return Round(
        down,
        up,
        federation.cohort * federation.client_seconds / federation.workers,
        federation.cohort * constants.job_seconds,
        messages * constants.result_seconds + up / min(constants.wire, constants.network),
        model * uploads / constants.add,
        down / min(constants.put, constants.network),
    )


def measure(megabytes: int = 64, repeats: int = 5) -> Constants:
    """Measure the constants here, on a cluster of one process; the network's stays what it is."""
    import ray
    import torch

    from fedcore.engine.ray_pool import connect
    from fedcore.engine.wire import to_arrays, to_tensors
    from fedcore.trees import accumulate

    tree = {str(n): torch.rand(megabytes * 250_000 // 8) for n in range(8)}
    owned = connect(None, 1)
    try:
        put = _median_seconds(lambda: ray.put(to_arrays(tree)), repeats)
        held = ray.put(to_arrays(tree))
        wire = _median_seconds(lambda: to_tensors(ray.get(held), torch.device("cpu")), repeats)
        echo = ray.remote(num_cpus=1)(_echo)
        result = _median_seconds(lambda: ray.get([echo.remote(n) for n in range(200)]), repeats) / 200
    finally:
        if owned:
            ray.shutdown()
    total = accumulate(None, tree, 0.5)
    add = _median_seconds(lambda: accumulate(total, tree, 0.5), repeats)
    size = 1e6 * megabytes
    rates = {"wire": size / wire, "put": size / put, "add": size / add}
    return replace(Constants(), job_seconds=_job_seconds(), result_seconds=result, **rates)


def _job_seconds() -> float:
    """Return what making and packing the job of a client with ten examples takes."""
    import tempfile
    from pathlib import Path

    import torch

    from benchmarks.engine import composition
    from benchmarks.scale import federation
    from fedcore import models
    from fedcore.config import SoftmaxRegression, Train
    from fedcore.engine.executors import make_executor
    from fedcore.engine.local import Examples
    from fedcore.engine.rounds import Training
    from fedcore.engine.wire import pack, trees_of

    with tempfile.TemporaryDirectory() as folder:
        fed = federation(Path(folder), 2000, 20_000, 60)
        data, composed, train = fed.dataset, composition({}), Train(device="cpu", executor="serial")
        net = models.build(SoftmaxRegression(name="softmax_regression"), data.input_shape, 10, 0)
        examples = Examples(fed.inputs(), data.labels, data.offset, data.scale, torch.device("cpu"))
        executor = make_executor(composed, net, train, examples, fed)
        training = Training(composed, net, fed, train, 0, executor, examples)
        phases = composed.phases(train)
        first = trees_of(next(training._jobs([0], 0, phases, "batches")))
        began = time.perf_counter()
        for job in training._jobs(range(fed.num_clients), 0, phases, "batches"):
            pack(job, first)
        return (time.perf_counter() - began) / fed.num_clients


def _echo(number: int) -> int:
    return number


def _median_seconds(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return sorted(times[1:])[repeats // 2]


CASES = (
    ("FedAvg, exact", Federation(), False),
    ("FedAvg, tree", Federation(), True),
    ("FedAvg, tree, ten times the work", Federation(client_seconds=0.1), True),
    ("SCAFFOLD, tree", Federation(state=1.0), True),
    ("FedAvg, tree, 11 million parameters", Federation(parameters=11_000_000, client_seconds=0.2), True),
)


def table(constants: Constants, cases: Sequence[tuple[str, Federation, bool]] = CASES) -> str:
    """Return the rounds of some federations as a Markdown table."""
    lines = [
        "| round | down GB | up GB | training s | jobs s | receive s | add s | send s | round s | bottleneck |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, federation, tree in cases:
        found = modelled(federation, constants, tree=tree)
        parts = (found.train, found.jobs, found.receive, found.add, found.send, found.seconds)
        cells = [name, f"{found.down / 1e9:,.2f}", f"{found.up / 1e9:,.2f}", *(f"{part:,.1f}" for part in parts)]
        lines.append("| " + " | ".join([*cells, found.bottleneck]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the constants and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure the constants here instead")
    parser.add_argument("--workers", type=positive, help="GPUs, in place of those of every row")
    arguments = parser.parse_args()
    constants = measure() if arguments.measure else Constants()
    cases = CASES
    if arguments.workers:
        cases = tuple((name, replace(fed, workers=arguments.workers), tree) for name, fed, tree in CASES)
    for name, value in asdict(constants).items():
        print(f"{name:15} {value:.3g}")
    print(table(constants, cases))


if __name__ == "__main__":
    run_command(main)
