"""Compiled functions that the next process finds on disk."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._inductor import compile_fx
from torch.fx.experimental.proxy_tensor import make_fx

from fedcore.engine import kept_functions
from fedcore.engine.inductor import Inductor
from tests import toys


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_functions, "folder", lambda: tmp_path / "kept")
    return tmp_path / "kept"


def _scaled(factor=2.0):
    return lambda x: [x * factor, x.sum(0)]


def _made(function=None, x=None):
    """The function an `Inductor` makes of a traced one, and its example."""
    x = torch.arange(6.0).reshape(3, 2) if x is None else x
    graph = make_fx(function or _scaled(), tracing_mode="fake")(x)
    return Inductor().made(graph, [x], None), x


def _no_compiler(*args, **kwargs):
    raise AssertionError("compiled again")


def test_a_function_is_compiled_once(folder, monkeypatch):
    first, x = _made()
    monkeypatch.setattr(compile_fx, "compile_fx", _no_compiler)
    again, _ = _made()
    for function in (first, again):
        doubled, total = function(x + 1)
        assert doubled.tolist() == [[2, 4], [6, 8], [10, 12]]
        assert total.tolist() == [9, 12]
    assert [path.suffix for path in folder.glob("*.*")] == [".py"]


def test_a_second_run_finds_all_its_steps(folder, monkeypatch):
    settings = {"compile": "always", "rounds": 2}
    one = toys.training(**settings).run()
    assert list(folder.glob("*.py"))
    monkeypatch.setattr(compile_fx, "compile_fx", _no_compiler)
    work = toys.training(**settings)
    other = work.run()
    assert work.executor.compiler.reasons == {}
    assert toys.equal(one.server.params, other.server.params)


OTHERS = {
    "another number in it": (_scaled(3.0), torch.zeros(3, 2)),
    "another shape": (_scaled(), torch.zeros(4, 2)),
    "another order in memory": (_scaled(), torch.zeros(2, 3).T),
    "another type": (_scaled(), torch.zeros(3, 2, dtype=torch.float64)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_differs_has_another_name(other):
    function, x = OTHERS[other]
    plain = torch.zeros(3, 2)
    pairs = ((_scaled(), plain), (function, x))
    names = [kept_functions.name_of(make_fx(f, tracing_mode="fake")(t), [t], {}) for f, t in pairs]
    assert None not in names
    assert len(set(names)) == 2


def test_the_processor_and_settings_are_in_the_name(monkeypatch):
    from torch._inductor import config, cpu_vec_isa

    x = torch.zeros(3)
    graph = make_fx(_scaled(), tracing_mode="fake")(x)
    names = [kept_functions.name_of(graph, [x], {}), kept_functions.name_of(graph, [x], {"cpp.threads": 1})]
    monkeypatch.setattr(cpu_vec_isa, "pick_vec_isa", lambda: "half as wide")
    names.append(kept_functions.name_of(graph, [x], {}))
    with config.patch(freezing=True):
        names.append(kept_functions.name_of(graph, [x], {}))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    names.append(kept_functions.name_of(graph, [x], {}))
    monkeypatch.setattr(torch, "__version__", "9.9")
    names.append(kept_functions.name_of(graph, [x], {}))
    assert len(set(names)) == 6
    with config.patch({"cutlass.cutlass_dir": "elsewhere"}):
        assert kept_functions.name_of(graph, [x], {}) == names[-1]


def test_a_function_with_a_tensor_of_its_own_is_not_kept(folder):
    def shifted(x):
        return [x + torch.tensor([1.0, 5.0])]

    function, x = _made(shifted)
    assert kept_functions.name_of(make_fx(shifted, tracing_mode="fake")(x), [x], {}) is None
    assert function(x)[0].tolist() == [[1, 6], [3, 8], [5, 10]]
    assert not folder.exists()


def test_a_file_cut_short_is_made_anew(folder):
    _made()
    (path,) = folder.glob("*.py")
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    function, x = _made()
    assert function(x)[0].tolist() == (2 * x).tolist()
    assert path.read_text() == whole


def test_a_library_cut_short_is_made_anew(folder):
    """As a machine leaves it that stops while it is written; another process made it, as one loads a library once."""
    words = (
        "import sys; from tests.engine.test_kept_functions import _made, _scaled; _made(_scaled(7.25));"
        "print(*(m.__file__ for m in sys.modules.values() if str(getattr(m, '__file__', '')).endswith('.main.so')))"
    )
    root = Path(__file__).parents[2]
    made = subprocess.run([sys.executable, "-c", words], check=True, cwd=root, capture_output=True, text=True)
    libraries = [Path(name) for name in made.stdout.split()]
    assert libraries
    for library in libraries:
        library.write_bytes(library.read_bytes()[:100])
    function, x = _made(_scaled(7.25))
    assert function(x)[0].tolist() == (7.25 * x).tolist()
    assert [library for library in libraries if library.stat().st_size <= 100] == []


def test_only_files_of_the_compilers_cache_are_discarded(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    files = [tmp_path / "cache" / "a.so", tmp_path / "cache" / "b.so", tmp_path / "c.so"]
    for file in files:
        file.touch()
    assert kept_functions.discard(f"file too short ({files[0]}), unlike {files[2]}")
    assert [file.exists() for file in files] == [False, True, True]
    assert not kept_functions.discard(f"{files[0]}: file too short, unlike {files[2]}")
    assert not kept_functions.discard(f"{tmp_path}/cache/none of these")


def test_a_source_that_does_something_else_is_not_kept(folder):
    x = torch.ones(3)
    wrong = "def call(tensors):\n    return [tensors[0] + 1]\n"
    assert kept_functions.keep("a", wrong, [x], [x * 2]) is not None
    assert kept_functions.keep("b", wrong, [x], [x * 3]) is None
    assert kept_functions.keep("c", "import nothing_of_this_name", [x], [x * 3]) is None
    turned = "def call(tensors):\n    return [tensors[0].T.contiguous().T]\n"
    square = torch.ones(2, 2)
    assert kept_functions.keep("d", turned, [square], [square]) is None
    assert [path.name for path in folder.glob("*.*")] == ["a.py"]


def test_where_nothing_can_be_written_it_compiles_all_the_same(folder):
    folder.write_text("a file where the folder should be")
    function, x = _made()
    assert function(x)[0].tolist() == (2 * x).tolist()
