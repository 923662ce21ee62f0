"""Jobs and outcomes survive the way between processes bit for bit, and only what differs travels."""

import pytest
import torch

from fedcore.engine.local import Assignment
from fedcore.engine.wire import pack, pack_outcome, to_arrays, to_tensors, trees_of, unpack, unpack_outcome
from fedcore.trees import flatten
from tests import toys
from tests.methods.cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_jobs_on_the_wire_train_to_the_same_bits(name):
    case = CASES[name]
    work = toys.training(toys.composition(case.method, case.add, **case.settings), rounds=1)
    work.run()  # clients differ now
    phases = work.composition.phases(work.train)
    server = work.progress.server
    jobs = list(work._jobs([3, 1, 4], 1, phases, "batches"))
    sent = work.composition.broadcast(server.state)
    here = Assignment(phases, sent, work.resources, frozenset(server.params), 1)
    common = {**trees_of(jobs[0]), "server": sent}
    there_common = to_tensors(to_arrays(common), toys.CPU)
    there = Assignment(
        phases, there_common["server"], to_tensors(to_arrays(work.resources), toys.CPU), frozenset(server.params), 1
    )
    arrived = [
        unpack(pack(job, common), there_common, job.rows, work.federation.fitting_rows(job.client), toys.CPU)
        for job in jobs
    ]
    for one, other in zip(work.executor.train(jobs, here), work.executor.train(arrived, there), strict=True):
        other = unpack_outcome(pack_outcome(other), toys.CPU)
        assert (one.client, one.steps) == (other.client, other.steps)
        assert torch.equal(one.loss, other.loss)
        for part in ("params", "buffers", "state", "upload"):
            assert toys.equal(flatten(getattr(one, part)), flatten(getattr(other, part))), part


def test_what_clients_have_in_common_travels_once():
    work = toys.training()
    jobs = list(work._jobs([0, 1], 0, work.composition.phases(work.train), "batches"))
    parcel = pack(jobs[1], trees_of(jobs[0]))
    assert parcel.changes == {}
    own = toys.training(toys.composition("local"))
    own.run()
    jobs = list(own._jobs([0, 1], 3, own.composition.phases(own.train), "batches"))
    assert set(pack(jobs[1], trees_of(jobs[0])).changes["params"]) == set(own.initial)
