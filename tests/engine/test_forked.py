"""Clients on forked processes, and who trains next."""

import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace

import psutil
import pytest
import torch

from fedcore.engine.executors import can_fork
from fedcore.engine.forked import ForkedExecutor, _serve
from fedcore.engine.local import Assignment
from fedcore.engine.serial import SerialExecutor
from fedcore.engine.turns import Turns
from fedcore.engine.wire import pack
from tests import toys


@dataclass(frozen=True)
class _Job:
    client: int
    num_steps: int


def _taken(turns):
    number, job = turns.take()
    return number, job.client


def test_the_longest_job_is_next_and_outcomes_keep_their_order():
    turns = Turns(iter([_Job(7, 2), _Job(8, 5), _Job(9, 5)]), workers=1)
    assert [_taken(turns) for _ in range(3)] == [(1, 8), (2, 9), (0, 7)]
    assert turns.take() is None
    turns.put(1, "eight")
    assert list(turns.due()) == []
    turns.put(0, "seven")
    assert list(turns.due()) == ["seven", "eight"]
    turns.put(2, "nine")
    assert list(turns.due()) == ["nine"]


def test_no_more_than_eight_jobs_a_worker_are_made_before_an_outcome_is_due():
    made = []

    def jobs():
        for client in range(100):
            made.append(client)
            yield _Job(client, client)

    turns = Turns(jobs(), workers=2)
    assert _taken(turns) == (15, 15)
    turns.put(15, "last")
    assert _taken(turns) == (14, 14)
    assert len(made) == 16
    turns.put(14, "other")
    assert list(turns.due()) == []
    for number in range(13, -1, -1):
        assert _taken(turns) == (number, number)
        turns.put(number, str(number))
    assert turns.take() is None
    assert len(list(turns.due())) == 16
    assert _taken(turns) == (31, 31)


@pytest.fixture
def forked(request):
    """Return a function that makes a training whose clients are trained by three forked processes."""

    def make(composed=None, **train):
        work = toys.training(composed, **train)
        work.executor = ForkedExecutor(SerialExecutor(work.executor.training, work.examples), work.federation, 3)
        request.addfinalizer(work.executor.close)
        return work

    return make


def _processes(work):
    return [psutil.Process(worker.process.pid) for worker in work.executor._workers]


def test_processes_change_nothing(forked):
    one, other = toys.run(rounds=2), forked(rounds=2).run()
    assert toys.equal(one.server.params, other.server.params)
    assert one.history == other.history


def test_a_client_trains_in_another_process(forked, monkeypatch):
    work = forked(rounds=1)
    monkeypatch.setattr(SerialExecutor, "train", None)  # after the fork: nothing is left of it in this process
    assert work.run().history


def test_a_lost_process_is_named_and_the_way_on_is(forked):
    work = forked(rounds=1)
    process = work.executor._workers[1].process
    process.kill()
    process.join()
    with pytest.raises(ValueError, match=rf"process {process.pid}, one of 3 .* killed by signal 9 .* checkpoint"):
        work.run()


def test_errors_come_back_and_the_next_round_is_not_mixed_up_with_them(forked):
    work = forked(rounds=1)
    whole = toys.run(rounds=1)
    jobs = list(work._jobs(range(3), 0, work.composition.phases(work.train), "batches"))
    spoiled = [jobs[0], *(_with_rows_of_nobody(job) for job in jobs[1:])]
    assignment = _assignment(work)
    with pytest.raises(RuntimeError, match="IndexError"):
        list(work.executor.train(iter(spoiled), assignment))
    assert toys.equal(work.run().server.params, whole.server.params)


def _with_rows_of_nobody(job):
    schedule = replace(job.schedules[0], positions=job.schedules[0].positions + 10_000)
    return replace(job, schedules=(schedule,))


def _assignment(work):
    server = work.progress.server
    sent = work.composition.broadcast(server.state)
    return Assignment(work.composition.phases(work.train), sent, work.resources, frozenset(server.params), 0)


def test_close_ends_the_processes(forked):
    work = forked()
    processes = _processes(work)
    work.executor.close()
    assert not psutil.wait_procs(processes, timeout=10)[1]
    with pytest.raises(RuntimeError, match="closed"):
        work.run()


def test_close_does_not_wait_for_a_client_that_takes_long(forked, monkeypatch):
    monkeypatch.setattr(SerialExecutor, "train", lambda *_: signal.pause())  # inherited by the processes
    work = forked(rounds=1)
    processes = _processes(work)
    jobs = list(work._jobs(range(2), 0, work.composition.phases(work.train), "batches"))
    work.executor._send(jobs[0], _assignment(work))
    work.executor._tell(work.executor._workers[0], pack(jobs[0], {}))
    work.executor.close()
    assert not psutil.wait_procs(processes, timeout=10)[1]


SCRIPT = """
import os, signal, sys
from tests import toys
work = toys.training(workers=2)
assert type(work.executor).__name__ == "ForkedExecutor", work.executor
work.run()
print(*(worker.process.pid for worker in work.executor._workers), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or (os.cpu_count() or 1) < 2, reason="two cores and fork")
def test_two_workers_are_processes_and_do_not_outlive_a_killed_training():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=10)[1]


PARALLEL = """
import torch
from fedcore.engine.forked import ForkedExecutor
from fedcore.engine.serial import SerialExecutor
from tests import toys
torch.set_num_threads(2)
large = toys.net({"name": "mlp", "hidden": [256, 256]})
torch.ones(4_000_000).sum()  # starts the second thread
work = toys.training(model=large, rounds=1)
work.executor = ForkedExecutor(SerialExecutor(work.executor.training, work.examples), work.federation, 2)
print(len(work.run().history))
work.executor.close()
"""


def test_a_parent_with_threads_for_sums_does_not_leave_its_processes_waiting_for_them():
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", PARALLEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.stdout.strip() == "1", done.stderr


COMPILED = """
import torch
from fedcore.engine.compiled import Compiler
from fedcore.engine.cuda_graphs import CudaGraphs
from fedcore.engine.forked import ForkedExecutor
from fedcore.engine.serial import SerialExecutor
from tests import toys, tape
traced = Compiler(CudaGraphs(tape.record))
assert traced.loop("steps", "key", lambda c, b, v, r: (c, b.sum()), 0, {"a": torch.ones(2)}, torch.ones(3), {})
toys.run(rounds=1)
work = toys.training(rounds=1)
work.executor = ForkedExecutor(SerialExecutor(work.executor.training, work.examples), work.federation, 2)
print(len(work.run().history))
work.executor.close()
"""


def test_a_training_on_processes_can_follow_a_compiled_one():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "1", done.stderr


def test_a_process_whose_parent_has_gone_by_then_ends():
    """Its parent is not who forked it, and nobody will ever write to its pipe."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    orphan = context.Process(target=_serve, args=(there, os.getpid() + 1, None, None))
    orphan.start()
    orphan.join(20)
    try:
        assert orphan.exitcode == 0
    finally:
        orphan.kill()
        here.close()


def test_a_process_with_other_threads_is_not_forked(monkeypatch):
    monkeypatch.setattr("threading.active_count", lambda: 2)
    assert not can_fork()
    monkeypatch.setattr("threading.active_count", lambda: 1)
    assert can_fork() == sys.platform.startswith("linux")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not can_fork()


def test_the_callers_threads_are_left_alone(forked):
    before = torch.get_num_threads()
    forked(rounds=1).run()
    assert torch.get_num_threads() == before
