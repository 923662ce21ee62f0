"""The walls of the project, read from the source: who may import whom, and what may not be written where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("fedcore", "tasks", "flows", "benchmarks")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FEDCORE = [path for path in FILES if path.is_relative_to(ROOT / "fedcore")]
HOOKS = [path for path in FEDCORE if path.parent.name in ("methods", "addons")]

GROUND = {f"fedcore.{name}" for name in ("config", "problems", "types", "trees", "seeds")}
# What a part of fedcore may import of ours besides itself: package or module -> allowed prefixes.
ALLOWED = {
    "config": GROUND,
    "problems": set[str](),
    "types": GROUND,
    "trees": GROUND,
    "seeds": GROUND,
    "tracking": GROUND,
    "data": GROUND | {"fedcore.data"},
    "models": GROUND | {"fedcore.models"},
    "metrics": GROUND | {"fedcore.metrics"},
    "methods": GROUND | {"fedcore.methods.base", "fedcore.methods.parts", "fedcore.models"},
    "addons": GROUND | {"fedcore.addons.base", "fedcore.addons.parts", "fedcore.methods.base", "fedcore.models"},
    "discovery": GROUND | {"fedcore.methods", "fedcore.addons"},
    "compose": GROUND
    | {"fedcore.methods", "fedcore.addons", "fedcore.models", "fedcore.discovery", "fedcore.objective"},
    "objective": GROUND | {"fedcore.addons", "fedcore.models", "fedcore.compose"},  # compose for its type alone
    "engine": {"fedcore"},
    "__init__": set[str](),
}
HEAVY = {"torch", "numpy", "pydantic", "safetensors"}
TOOLS = {"prefect", "mlflow", "dvc", "tasks", "flows", "argparse", "pickle", "dill", "cloudpickle", "joblib"}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
MAX_LINES = 400
MAX_CODE = 100  # of a method, besides its page of description
LONGER = {"fedbr": 115, "lg_fedavg": 125, "vhl": 170}  # papers whose tables have many variants


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, node: ast.AST | None = None) -> Iterator[str]:
    """Yield the dotted name of everything a file imports, `from a import b` as `a.b`."""
    for inner in ast.walk(node or tree(path)):
        if isinstance(inner, ast.Import):
            yield from (alias.name for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom):
            assert inner.level == 0, f"{path}:{inner.lineno}: relative import"
            yield from (f"{inner.module}.{alias.name}" for alias in inner.names)


def top(name: str) -> str:
    return name.split(".")[0]


def is_within(name: str, prefixes: set[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def called(node: ast.Call) -> str:
    """Return the called name with its owner where it is plain: `torch.load`, `x.item`, `print`."""
    if isinstance(node.func, ast.Name):
        return node.func.id
    if isinstance(node.func, ast.Attribute):
        owner = ast.unparse(node.func.value)
        return f"{owner}.{node.func.attr}"
    return ""


def calls(path: Path) -> Iterator[tuple[int, str, ast.Call]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield node.lineno, called(node), node


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 30
    assert len(HOOKS) > 5


@pytest.mark.parametrize("path", FEDCORE, ids=shown)
def test_the_engine_knows_no_tool(path: Path) -> None:
    assert not [name for name in imports(path) if top(name) in TOOLS]
    # At module level only the four libraries that `pip install fedcore` brings, and the standard library.
    module = tree(path)
    outer = ast.Module([node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    foreign = {top(name) for name in imports(path, outer)} & {
        "sklearn",
        "torchvision",
        "pandas",
        "scipy",
        "yaml",
        "ray",
    }
    assert not foreign
    assert "os.environ" not in path.read_text(encoding="utf-8")
    assert "getenv" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FEDCORE, ids=shown)
def test_inside_the_engine_imports_point_down(path: Path) -> None:
    part = path.relative_to(ROOT / "fedcore").with_suffix("").parts[0]
    assert part in ALLOWED, f"fedcore/{part} is new: say in ALLOWED what it may import"
    ours = [name for name in imports(path) if top(name) == "fedcore"]
    assert [name for name in ours if not is_within(name, ALLOWED[part])] == []


def test_tasks_do_not_know_flows() -> None:
    for path in (ROOT / "tasks").rglob("*.py"):
        assert not [name for name in imports(path) if top(name) in ("flows", "prefect", "dvc")], shown(path)


def test_benchmarks_know_the_engine_alone() -> None:
    for path in (ROOT / "benchmarks").rglob("*.py"):
        if path.stem in ("overheads", "sources", "one_round"):  # measure the pipeline around the engine
            continue
        assert not [name for name in imports(path) if top(name) in ("tasks", "flows")], shown(path)


def test_flows_hold_no_maths() -> None:
    for path in (ROOT / "flows").rglob("*.py"):
        assert not [name for name in imports(path) if top(name) in (*HEAVY, "mlflow", "fedcore")], shown(path)


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_files_are_small_and_named_for_what_they_hold(path: Path) -> None:
    assert path.stem not in FORBIDDEN_NAMES
    assert path.parent.name not in FORBIDDEN_NAMES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def code_lines(path: Path) -> int:
    """Return how many lines of a file are neither blank nor comments nor in a docstring."""
    described: set[int] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            described |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and at not in described for at, line in lines)


@pytest.mark.parametrize("path", HOOKS, ids=shown)
def test_a_method_fits_on_a_screen_or_two(path: Path) -> None:
    assert code_lines(path) <= LONGER.get(path.stem, MAX_CODE)


@pytest.mark.parametrize("path", HOOKS, ids=shown)
def test_hooks_are_pure(path: Path) -> None:
    """A hook is traced for many clients at once: no value leaves the graph, no device, no random state."""
    forbidden = ("item", "cuda", "to", "cpu", "numpy", "backward", "manual_seed", "requires_grad_")
    assert [(line, name) for line, name, _ in calls(path) if name.rsplit(".", 1)[-1] in forbidden and "." in name] == []


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "seeds"], ids=shown)
def test_one_owner_of_randomness(path: Path) -> None:
    forbidden = ("manual_seed", "manual_seed_all", "default_rng", "set_rng_state", "RandomState", "SeedSequence")
    found = [
        (line, name)
        for line, name, _ in calls(path)
        if name.rsplit(".", 1)[-1] in forbidden or name.startswith(("np.random.", "numpy.random."))
    ]
    assert found == []
    assert not [name for name in imports(path) if top(name) in ("random", "secrets")]


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_nothing_is_pickled(path: Path) -> None:
    assert not [name for name in imports(path) if top(name) in ("pickle", "cloudpickle", "dill", "joblib", "shelve")]
    for line, name, node in calls(path):
        assert name not in ("torch.load", "torch.save"), f"{shown(path)}:{line}"
        keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
        assert keywords.get("allow_pickle", "False") == "False", f"{shown(path)}:{line}"
        if name in ("np.load", "numpy.load", "np.save", "numpy.save"):
            assert "allow_pickle" in keywords, f"{shown(path)}:{line}: say allow_pickle=False"


@pytest.mark.parametrize("path", FEDCORE, ids=shown)
def test_the_engine_does_not_print(path: Path) -> None:
    assert [line for line, name, _ in calls(path) if name in ("print", "sys.stdout.write")] == []


@pytest.mark.parametrize(("folder", "base"), [("methods", "Method"), ("addons", "Addon")])
def test_methods_stand_on_the_base_alone(folder: str, base: str) -> None:
    """Depth one: a method is read in its own file and the base, nowhere else."""
    found = 0
    for path in (ROOT / "fedcore" / folder).glob("*.py"):
        if path.stem in ("base", "parts", "__init__"):
            continue
        public = [n for n in tree(path).body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
        for node in public:
            assert [ast.unparse(parent) for parent in node.bases] == [base], f"{shown(path)}: {node.name}"
            found += 1
    assert found > 1
