"""Steps that are recorded and replayed, with a recorder that needs no GPU."""

import pytest
import torch

from fedcore.engine import backends, compiled_steps, cuda_graphs, stacked
from fedcore.engine.compiled import Compiler
from fedcore.engine.cuda_graphs import CudaGraphs, CudaRecorder, Replayed
from fedcore.engine.executors import compiles
from fedcore.trees import flatten
from tests import toys
from tests.methods.cases import CASES
from tests.tape import record


def _replayed(function, *examples):
    return Replayed(function, [e.clone() for e in examples], record)


def _both(case, monkeypatch, **settings):
    """Train with steps as they are, and with recorded ones."""
    monkeypatch.setattr("fedcore.engine.executors.make_compiler", lambda device: Compiler(CudaGraphs(record)))
    monkeypatch.setattr(cuda_graphs, "_STEPS", 2)
    works = []
    for compile in ("never", "always"):
        composed = toys.composition(case.method, case.add, **case.settings)
        works.append(toys.training(composed, compile=compile, dtype=torch.float64, rounds=2, **settings))
        works[-1].run()
    return works


def _assert_same(one, other):
    assert other.executor.remarks == []
    assert toys.distance(one.progress.server.params, other.progress.server.params) < 1e-12
    for client in one.progress.store.clients:
        mine, same = (flatten(work.progress.store.get(client)) for work in (one, other))
        assert toys.distance(mine, same) < 1e-12
    assert other.progress.history[-1]["train/loss"] == pytest.approx(one.progress.history[-1]["train/loss"], abs=1e-12)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep", "dbe", "moon+dbe", "vhl", "fedbr", "pfedme"])
def test_recorded_steps_agree(name, monkeypatch):
    """Ragged clients on two lanes, which other clients take over; two steps a call, of which the last may idle."""
    _assert_same(*_both(CASES[name], monkeypatch, executor="stacked", block_size=2))


def test_recorded_steps_of_one_client_at_a_time_agree(monkeypatch):
    """Where a CPU would exchange the first layer's weight, a recording has it as it is."""
    monkeypatch.setattr(compiled_steps, "is_worthwhile", lambda num_examples, steps, rows, weight: True)
    _assert_same(*_both(CASES["fedavg"], monkeypatch, executor="serial", local_epochs=3))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize("name", CASES)
def test_recorded_steps_of_every_method_agree(name, executor, monkeypatch):
    _assert_same(*_both(CASES[name], monkeypatch, executor=executor))


def test_momentum_and_a_rate_that_decays_are_read_anew(monkeypatch):
    settings = {"executor": "stacked", "momentum": 0.5, "weight_decay": 0.01, "lr_decay": 0.5}
    one, other = _both(CASES["fedavg"], monkeypatch, **settings)
    _assert_same(one, other)
    assert len(other.executor.compiler._by_structure) == 1


def test_every_call_sees_its_own_numbers():
    function = _replayed(lambda a, b: [a * b, a + 1], torch.ones(2), torch.ones(2))
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    first = function(a, b)
    second = function(first[0], b)
    assert [t.tolist() for t in first] == [[3.0, 8.0], [2.0, 3.0]]
    assert [t.tolist() for t in second] == [[9.0, 32.0], [4.0, 9.0]]


def test_a_tensor_that_was_changed_in_place_is_read_again():
    function, a = _replayed(lambda a: [a * 2], torch.ones(1)), torch.ones(1)
    assert function(a)[0].tolist() == [2.0]
    a.add_(1)
    assert function(a)[0].tolist() == [4.0]


def test_a_tensor_in_the_place_of_one_that_is_gone_is_read():
    function = _replayed(lambda a: [a * 2], torch.ones(1))
    found = [float(function(torch.full((1,), float(k)))[0]) for k in range(4)]
    assert found == [0.0, 2.0, 4.0, 6.0]


def test_what_stays_is_copied_once(monkeypatch):
    function, copies = _replayed(lambda a, b: [a * b], torch.ones(1), torch.ones(1)), []
    for own in function._inputs:
        monkeypatch.setattr(own, "copy_", lambda tensor, own=own: (copies.append(1), own.set_(tensor.clone()))[1])
    constant = torch.full((1,), 3.0)
    for k in range(4):
        function(torch.full((1,), float(k)), constant)
    assert len(copies) == 4 + 1


def test_a_recording_that_gives_other_numbers_is_refused():
    """As one would that a library's choice of the moment, or a number of the host, went into."""
    numbers = iter(range(9))
    with pytest.raises(RuntimeError, match="the recorded steps give other numbers than the steps"):
        _replayed(lambda a: [a + next(numbers)], torch.ones(1))


def test_steps_that_cannot_be_recorded_run_as_they_are(monkeypatch):
    def fails(run):
        raise RuntimeError("operation not permitted when stream is capturing\nand so on")

    monkeypatch.setattr("fedcore.engine.executors.make_compiler", lambda device: Compiler(CudaGraphs(fails)))
    work = toys.training(compile="always", executor="stacked")
    plain = toys.run(executor="stacked")
    assert toys.distance(work.run().server.params, plain.server.params) < 1e-6
    assert work.executor.remarks == [
        "steps of phase 'train' ran uncompiled: RuntimeError: operation not permitted when stream is capturing"
    ]


def test_without_memory_recordings_are_let_go_of_and_made_for_fewer_lanes(monkeypatch):
    """Memory holds two clients: a recording for more fails, and nothing of it is kept."""
    lanes, made = [], Compiler(CudaGraphs(record))

    class Group(stacked.Group):
        def _plan(self, *arguments):
            timetable = super()._plan(*arguments)
            lanes.append(self.lanes)
            return timetable

    def scarce(run):
        if lanes[-1] > 2:
            raise torch.OutOfMemoryError
        return record(run)

    made.backend = CudaGraphs(scarce)
    monkeypatch.setattr(stacked, "Group", Group)
    monkeypatch.setattr("fedcore.engine.executors.make_compiler", lambda device: made)
    work = toys.training(compile="always", executor="stacked", rounds=1, block_size=5)
    plain = toys.run(executor="stacked", rounds=1)
    assert toys.distance(work.run().server.params, plain.server.params) < 1e-6
    assert max(lanes) > 2
    assert lanes[-1] <= 2
    assert made.reasons == {}
    held = {shapes[0][0] for *_, shapes in made._by_structure}
    assert {shape[0] for shape in held} <= {1, 2}


def test_a_gpu_gets_recorded_steps_when_told_to():
    gpu = torch.device("cuda", 0)  # its name is enough here
    assert backends.can_compile(gpu)
    backend = backends.make_compiler(gpu).backend
    assert isinstance(backend, CudaGraphs)
    assert isinstance(backend._record, CudaRecorder)
    fed = toys.federation()
    decided = {
        compile: compiles(toys.training(compile=compile, rounds=99_999).train, gpu, fed)
        for compile in ("auto", "always", "never")
    }
    assert decided == {"auto": False, "always": True, "never": False}
