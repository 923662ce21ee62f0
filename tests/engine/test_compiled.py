"""Compiled steps against the same steps as they are."""

import pytest
import torch

from fedcore.engine import inductor
from fedcore.engine.compiled import Compiler
from fedcore.engine.executors import compiles, remarks
from fedcore.engine.inductor import Inductor, can_compile, is_worthwhile
from fedcore.engine.observed import Observed
from fedcore.engine.serial import SerialExecutor
from tests import toys


def _both(composition=None, **train):
    plain = toys.training(composition, **train)
    compiled = toys.training(composition, compile="always", **train)
    return plain.run(), compiled.run(), compiled.executor.compiler


def test_there_is_a_compiler_here():
    """The tests below would compare a path with itself."""
    assert can_compile()


@pytest.mark.parametrize(("executor", "lanes"), [("serial", None), ("stacked", None), ("stacked", 2)])
def test_compiled_steps_agree(executor, lanes, monkeypatch):
    """Ragged clients, short last batches, momentum and weight decay; 3 steps a call and single ones."""
    monkeypatch.setattr(Inductor, "unrolled", lambda self, num_params, rows, convolves: 3)
    settings = {"rounds": 2, "momentum": 0.5, "weight_decay": 0.01, "executor": executor, "block_size": lanes}
    plain, compiled, compiler = _both(**settings)
    assert compiler.reasons == {}
    assert 0 < toys.distance(plain.server.params, compiled.server.params) < 1e-6
    assert compiled.history[-1]["train/loss"] == pytest.approx(plain.history[-1]["train/loss"], abs=1e-6)


def test_a_rate_that_decays_needs_no_second_function():
    plain, compiled, compiler = _both(rounds=3, lr_decay=0.5)
    assert len(compiler._by_structure) == 1
    assert toys.distance(plain.server.params, compiled.server.params) < 1e-6


def test_workers_change_nothing():
    one = toys.training(compile="always", rounds=1).run()
    other = toys.training(compile="always", rounds=1, workers=2).run()
    assert toys.equal(one.server.params, other.server.params)


def test_what_a_client_raises_in_a_thread_ends_the_training(monkeypatch):
    original = SerialExecutor._client

    def refusing(self, job, assignment):
        if job.client == 3:
            raise ValueError("client 3 has had enough")
        return original(self, job, assignment)

    monkeypatch.setattr(SerialExecutor, "_client", refusing)
    work = toys.training(compile="always", rounds=1, workers=2)
    assert isinstance(work.executor, SerialExecutor)
    with pytest.raises(ValueError, match="has had enough"):
        work.run()


def test_what_cannot_be_compiled_runs_as_it_is():
    def steps(carry, batches, view, round):
        if carry["a"].sum() > 0:  # a decision on a value, which a tracer does not have
            return carry, batches.sum()
        return carry, batches.sum()

    compiler = Compiler(Inductor())
    arguments = ({"a": torch.ones(2)}, torch.ones(3), {})
    assert compiler.loop("steps", "key", steps, 0, *arguments) is None
    assert compiler.loop("steps", "key", steps, 1, *arguments) is None
    assert list(compiler.reasons) == ["steps"]


def _rounds_seen(steps):
    """Call one compiler's loop for rounds 0 to 5; return the functions' answers, and the compiler."""
    compiler, answers = Compiler(Inductor()), []
    for round in range(6):
        loop = compiler.loop("steps", "key", steps, round, {"a": torch.zeros(2)}, torch.ones(3), {})
        answers.append(None if loop is None else float(loop([torch.zeros(2)], [torch.ones(3)])[0][0][0]))
    return answers, compiler


def test_steps_that_look_at_the_round_get_a_function_for_each_answer():
    def steps(carry, batches, view, round):
        return {"a": carry["a"] + (10.0 if round >= 3 else 1.0)}, batches.sum()

    answers, compiler = _rounds_seen(steps)
    assert answers == [1.0, 1.0, 1.0, 10.0, 10.0, 10.0]
    assert [len(entry.functions) for entry in compiler._by_structure.values()] == [2]


def test_a_weight_that_decays_with_the_round_is_computed_in_one_function():
    def steps(carry, batches, view, round):
        return {"a": carry["a"] + 0.5**round}, batches.sum()

    answers, compiler = _rounds_seen(steps)
    assert answers == [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert [len(entry.functions) for entry in compiler._by_structure.values()] == [1]


def test_fedgen_gets_one_function_for_all_rounds_but_the_first(monkeypatch):
    monkeypatch.setattr(Inductor, "unrolled", lambda self, num_params, rows, convolves: 1)
    plain, compiled, compiler = _both(toys.composition("fedgen", decay=0.5), rounds=5)
    assert compiler.reasons == {}
    assert [len(entry.functions) for entry in compiler._by_structure.values()] == [2]
    assert toys.distance(plain.server.params, compiled.server.params) < 1e-5


def test_fedbr_chooses_among_many_sets_of_pseudo_data_in_one_function(monkeypatch):
    monkeypatch.setattr(Inductor, "unrolled", lambda self, num_params, rows, convolves: 1)
    generator = torch.Generator().manual_seed(0)
    sets = {"x": torch.randn(6, 4, 5, generator=generator), "y": torch.rand(6, 4, 3, generator=generator)}
    plain, compiled, compiler = _both(toys.composition("fedbr"), rounds=7, resources={"pseudo": sets})
    assert compiler.reasons == {}
    assert [len(entry.functions) for entry in compiler._by_structure.values()] == [1]
    assert toys.distance(plain.server.params, compiled.server.params) < 1e-5


def test_steps_that_use_the_round_itself_are_compiled_four_times_and_then_given_up():
    def steps(carry, batches, view, round):
        return {"a": carry["a"] + int(round)}, batches.sum()

    answers, compiler = _rounds_seen(steps)
    assert answers == [0.0, 1.0, 2.0, 3.0, None, None]
    assert compiler.reasons == {"steps": "its steps depend on the number of the round"}


def test_a_part_of_a_larger_tensor_is_read_where_it_begins():
    def steps(carry, batches, view, round):
        return {"a": carry["a"] * batches.sum()}, batches.sum()

    numbers = torch.arange(12.0).reshape(4, 3)
    loop = Compiler(Inductor()).loop("steps", "key", steps, 0, {"a": torch.ones(2)}, numbers[0], {})
    (after,), loss = loop([torch.arange(4.0)[2:]], [numbers[2]])
    assert after.tolist() == [42.0, 63.0]
    assert float(loss) == 21.0


def test_a_run_says_what_ran_uncompiled(monkeypatch):
    work = toys.training(rounds=1, compile="always")
    device, fed = work.examples.device, work.federation
    assert remarks(work.executor, work.train, device, fed) == []
    work.executor.compiler.reasons["steps of phase 'train'"] = "no luck"
    assert remarks(work.executor, work.train, device, fed) == ["steps of phase 'train' ran uncompiled: no luck"]
    monkeypatch.setattr(inductor, "can_compile", lambda: False)
    plain = toys.training(rounds=1, compile="always")
    (line,) = remarks(plain.executor, plain.train, device, fed)
    assert "no C++ compiler" in line
    short = toys.training(rounds=1)
    assert remarks(short.executor, short.train, device, fed) == []


def test_what_hooks_ask_of_the_round_decides_whether_a_function_serves_it():
    observed = Observed(7)
    assert observed >= 5
    assert observed % 2 == 1
    assert observed.looks_like(9)
    assert not observed.looks_like(8)
    assert not observed.looks_like(3)
    observed.traced = torch.tensor(11.0)
    assert float(0.5**observed) == 0.5**11
    assert observed.looks_like(9)
    assert Observed(3).looks_like(12)


ASKED = {
    "<": lambda r: r < 5,
    "<=": lambda r: r <= 5,
    ">": lambda r: r > 6,
    ">=": lambda r: r >= 7,
    "==": lambda r: r == 6,
    "!=": lambda r: r != 6,
    "%": lambda r: r % 4 == 2,
    "//": lambda r: r // 4 >= 1,
    "/": lambda r: r / 4 < 2,
    "+": lambda r: r + 4 > 9,
    "-": lambda r: r - 4 > 2,
    "*": lambda r: r * 4 < 30,
    "right %": lambda r: 20 % (r + 1) == 6,
    "right //": lambda r: 20 // (r + 1) == 2,
    "right /": lambda r: 20 / (r + 1) > 2,
    "right +": lambda r: 4 + r > 9,
    "right -": lambda r: 4 - r < -1,
    "right *": lambda r: 4 * r < 30,
    "several": lambda r: (r + 3) * 2 % 8 < 5,
    "after another": lambda r: r > 3 and 12 / (r - 3) == 4,  # no answer at all for 3
    "remainder's truth": lambda r: bool(r % 3),
    "remainder as an index": lambda r: "abcd"[r % 4],
    "index": lambda r: "abcdefghijklmnop"[r],
    "int": int,
    "float": float,
    "bool": bool,
}


@pytest.mark.parametrize("asked", ASKED)
def test_a_round_answers_as_its_number_does_and_remembers_it(asked):
    ask, observed = ASKED[asked], Observed(6)
    assert ask(observed) == ask(6)
    assert [round for round in range(16) if observed.looks_like(round)] == [r for r in range(16) if ask(r) == ask(6)]


MET = {
    "+": lambda r, t: t + r,
    "-": lambda r, t: t - r,
    "*": lambda r, t: t * r,
    "%": lambda r, t: t % r,
    "//": lambda r, t: t // r,
    "/": lambda r, t: t / r,
    "**": lambda r, t: 0.5**r * t,
    "right +": lambda r, t: r + t,
    "right -": lambda r, t: r - t,
    "right *": lambda r, t: r * t,
    "right %": lambda r, t: r % t,
    "right //": lambda r, t: r // t,
    "right /": lambda r, t: r / t,
    "remainder": lambda r, t: t + r % 4 * 10,
    "power of a quotient": lambda r, t: 0.5 ** (r // 2) * t,
    "<": lambda r, t: t < r,
    "right <": lambda r, t: r < t,
}


@pytest.mark.parametrize("met", MET)
def test_where_a_round_meets_a_tensor_it_is_the_functions_argument(met):
    meet, observed, tensor = MET[met], Observed(6), torch.tensor([2, 5, 30])
    observed.traced = torch.tensor(11.0)
    found, expected = meet(observed, tensor), meet(11, tensor)
    assert found.tolist() == expected.tolist()
    assert found.dtype == expected.dtype
    assert all(observed.looks_like(round) for round in range(16))


def test_two_numbers_of_a_round_are_compared_as_plain_ones():
    observed = Observed(6)
    assert observed % 5 == observed // 6
    assert [round for round in range(16) if observed.looks_like(round)] == [6, 11]


def test_a_number_used_as_it_is_binds_the_round():
    observed = Observed(2)
    assert [10, 20, 30][observed] == 30
    assert observed.looks_like(2)
    assert not observed.looks_like(1)


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize("model", [None, {"name": "cnn", "channels": [2, 2], "hidden": 4}])
def test_a_model_that_convolves_says_so(model, executor, monkeypatch):
    told = []
    monkeypatch.setattr(Inductor, "unrolled", lambda self, num_params, rows, convolves: told.append(convolves) or 1)
    monkeypatch.setattr(Compiler, "loop", lambda *args: None)
    fed = toys.federation() if model is None else toys.federation(image=True)
    net = None if model is None else toys.net(model, image=True, classes=fed.dataset.num_classes)
    toys.training(fed=fed, model=net, compile="always", executor=executor, rounds=1).run()
    assert set(told) == {model is not None}


def test_short_steps_are_unrolled_and_long_ones_are_not():
    unrolled = Inductor().unrolled
    assert unrolled(610, 10, convolves=False) == 15
    assert unrolled(159_010, 20, convolves=False) == 5
    assert unrolled(11_000_000, 32, convolves=False) == 1
    assert unrolled(610, 10, convolves=True) == 2
    assert unrolled(11_000_000, 32, convolves=True) == 1


def test_a_run_is_compiled_when_it_is_long_or_told_to():
    fed, net = toys.federation(), toys.net()

    def compiled(**settings):
        work = toys.training(None, fed, net, **settings)
        return compiles(work.train, toys.CPU, fed)

    # 71 train rows in batches of 8: 8.875 steps a round.
    assert not is_worthwhile(int(8.875 * 5633))
    assert not compiled(rounds=5633)
    assert compiled(rounds=5634)
    assert compiled(rounds=1, compile="always")
    assert not compiled(rounds=9999, compile="never")
    assert compiled(rounds=1000, local_steps=10)
    assert not compiled(rounds=999, local_steps=10)
