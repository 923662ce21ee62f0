"""Trainings on the workers of a Ray cluster are those of this process, bit for bit, and outlive lost workers."""

import os
import signal
import socket

import pytest
import ray

from fedcore.engine.export import model_bytes, personal_bytes
from tests import toys
from tests.methods.cases import CASES

# Ray's own: sockets and processes it leaves to its garbage collector, and what it plans to change.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO:FutureWarning"),
]
SETTINGS = {"rounds": 2, "participation": 0.8, "momentum": 0.5, "lr_decay": 0.9}


@pytest.fixture(scope="module")
def cluster():
    """A cluster of this machine's processes, on loopback alone, with room for what the tests start side by side."""
    from fedcore.engine import ray_pool

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "OMP_NUM_THREADS": "1",
        }.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        assert ray_pool.connect(None, 8)
        yield
        ray.shutdown()


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}", "head", "127.0.0.1:no"])
def test_an_address_without_a_cluster_is_one_line(address):
    with socket.socket() as taken:  # bound and not listening: nobody answers, and nobody else can
        taken.bind(("127.0.0.1", 0))
        address = address.format(port=taken.getsockname()[1])
        with pytest.raises(ValueError, match=f"^train.ray.address: no Ray cluster at '{address}' .*`ray start --head`"):
            toys.run(executor="ray", ray={"address": address})
    assert not ray.is_initialized()


def _leftovers(work):
    """Return all that a run leaves, as bytes and plain values."""
    progress = work.progress
    return (
        model_bytes(work),
        personal_bytes(work),
        progress.history,
        progress.participations.tolist(),
        (progress.download_bytes, progress.upload_bytes),
    )


def _training(name="fedavg", **train):
    case = CASES[name]
    return toys.training(toys.composition(case.method, case.add, **case.settings), **{**SETTINGS, **train})


def _run(name="fedavg", **train):
    work = _training(name, **train)
    work.run()
    left = _leftovers(work)
    work.executor.close()
    return work, left


# FedAvg; clients with a state, own parameters, validation rows, uploads kept apart, virtual data; an adaptation.
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep", "fedfomo", "vhl", "fedavg_ft"])
@pytest.mark.slow
def test_the_same_bytes_as_the_serial_executor(cluster, name):
    _, here = _run(name)
    work, there = _run(name, executor="ray", workers=2)
    assert there == here
    assert work.executor.name == "ray, serial"
    assert ray.is_initialized(), "the cluster was not the run's own"


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(cluster):
    results = [_run(executor="ray", workers=workers)[1] for workers in (1, 3)]
    assert results[0] == results[1] == _run()[1]


@pytest.mark.slow
def test_a_tree_of_sums_differs_in_the_last_digits_and_is_the_same_every_time(cluster, monkeypatch):
    monkeypatch.setattr("fedcore.engine.ray_executor._FOLD", 2)
    tree = {"executor": "ray", "workers": 2, "ray": {"aggregation": "tree"}}
    work, first = _run("scaffold", **tree)
    _, second = _run("scaffold", **tree)
    here, exact = _run("scaffold")
    assert first == second
    assert toys.distance(work.progress.server.params, here.progress.server.params) < 1e-6
    assert first[4] == exact[4], "what clients send is counted before it is added up"
    assert "tree" in work.executor.name


@pytest.mark.slow
def test_a_method_that_needs_every_upload_gets_it_in_a_tree(cluster):
    _, here = _run("fedfomo")
    _, there = _run("fedfomo", executor="ray", workers=2, ray={"aggregation": "tree"})
    assert there == here


@pytest.mark.slow
def test_blocks_on_workers_agree_with_blocks_here(cluster):
    here, _ = _run(executor="stacked")
    there, _ = _run(executor="ray", workers=2, ray={"inside": "stacked"})
    assert toys.distance(here.progress.server.params, there.progress.server.params) < 1e-5
    assert there.executor.name == "ray, stacked"


def test_a_lost_workers_clients_are_trained_by_another(cluster, monkeypatch):
    """The process is stopped before a round and killed in it, so that it cannot have answered."""
    _, undisturbed = _run("scaffold", rounds=3)
    work = _training("scaffold", rounds=3, executor="ray", workers=2)
    executor, pool = work.executor, work.executor._pool
    send, answer, pids = executor._send, pool.answer, []

    def stopping(first, assignment):
        if assignment.round == 1:
            pids.append(ray.get(pool.worker(0).__ray_call__.remote(_pid)))
            os.kill(pids[0], signal.SIGSTOP)
        return send(first, assignment)

    def killing(ref, home):
        if home == 0 and len(pids) == 1:
            os.kill(pids[0], signal.SIGKILL)
            pids.append(0)
        return answer(ref, home)

    monkeypatch.setattr(executor, "_send", stopping)
    monkeypatch.setattr(pool, "answer", killing)
    work.run()
    assert len(pids) == 2
    assert ray.get(pool.worker(0).__ray_call__.remote(_pid)) != pids[0]
    assert _leftovers(work) == undisturbed
    executor.close()


def _pid(worker):
    return os.getpid()


@pytest.mark.slow
def test_another_worker_takes_over_where_there_is_no_room_for_a_new_one(cluster, monkeypatch):
    _, undisturbed = _run(rounds=3)
    work = _training(rounds=3, executor="ray", workers=2)
    executor, pool = work.executor, work.executor._pool
    send, start = executor._send, pool._start

    def losing(first, assignment):
        sent = send(first, assignment)
        if assignment.round == 1:
            ray.kill(pool.worker(0))
            monkeypatch.setattr("fedcore.engine.ray_pool._PLACE", 0.1)
            monkeypatch.setattr(pool, "_start", lambda home: start(home, cpus=100))
        return sent

    monkeypatch.setattr(executor, "_send", losing)
    work.run()
    assert pool.worker(0) is pool.worker(1)
    assert _leftovers(work) == undisturbed
    executor.close()


@pytest.mark.slow
def test_a_worker_that_is_lost_again_and_again_is_one_line(cluster, monkeypatch):
    work = _training(executor="ray", workers=1)
    executor = work.executor
    ask = executor._ask

    def hopeless(call, sent):
        ray.kill(executor._pool.worker(0))
        ask(call, sent)

    monkeypatch.setattr(executor, "_ask", hopeless)
    with pytest.raises(
        ValueError, match=r"^train.executor: ray: the worker of client 0 .* lost 3 times in a row: "
    ) as found:
        work.run()
    assert "\n" not in str(found.value)
    executor.close()


def test_more_workers_than_the_cluster_has_room_for(cluster):
    work = toys.training(executor="ray", workers=9)
    with pytest.raises(ValueError, match=r"^train.workers: 9 asked for, the Ray cluster has 8 CPUs"):
        work.run()


def test_without_ray_it_is_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^train.executor: 'ray' needs .* `pip install fedcore\[ray\]`$"):
        toys.training(executor="ray")
